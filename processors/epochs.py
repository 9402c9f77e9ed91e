"""Which records of a partition count: a record is void when a newer owner wrote before it.

Whoever takes a partition has a greater epoch than all who had it before. It claims the partition,
in each of its topics, before it writes anything else there, and each of its records carries the
epoch. So a record of a lower epoch than one before it is from somebody who was superseded, and did
not know. That is the idea of `processors.runs.claims`, for topics that are compacted: compaction
may take a claim away, so the greatest epoch that was seen stands in for the latest claim.
"""

from dataclasses import dataclass
from typing import Final

#: The epoch of a partition that nobody has claimed yet.
UNCLAIMED: Final = -1


@dataclass(slots=True)
class Newest:
    """The newest writer of one partition, as far as it was read."""

    epoch: int = UNCLAIMED

    def admit(self, epoch: int | None) -> bool:
        """Takes note of a record's epoch, and says whether the record counts.

        Shape:  to be called for every record of the partition, in order. None, for what no owner
                has written (an operator's tombstone), counts.
        """
        if epoch is None:
            return True
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        return True


def epoch_after(offset: int, newest: int) -> int:
    """The epoch of a claim that lies at an offset of `admissions`, of a partition with such epochs.

    Shape:  the offset; greater where that topic was made anew, and its offsets began again.
    """
    return offset if offset > newest else newest + 1 + offset
