"""Decide which records of a partition count: a record is void after one of a newer owner.

A process that acquires a partition has a greater epoch than all earlier owners. It claims the
partition, in each of its topics, before it appends anything else, and every record carries the
epoch. So a record with a lower epoch than an earlier record is from a superseded owner. This is the
idea of `processors.runs.claims` for compacted topics: compaction may remove a claim, so the
greatest epoch that was seen stands in for the latest claim.
"""

from dataclasses import dataclass
from typing import Final

#: Epoch of a partition that has not been claimed yet.
UNCLAIMED: Final = -1


@dataclass(slots=True)
class NewestEpoch:
    """The newest writer of one partition, up to the position that was read."""

    epoch: int = UNCLAIMED

    def admit(self, epoch: int | None) -> bool:
        """Record an epoch, and return whether its record counts.

        Must be called for every record of the partition, in order. A record without an epoch, which
        no owner has written (an operator's tombstone), counts.
        """
        if epoch is None:
            return True
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        return True


def epoch_after(offset: int, newest: int) -> int:
    """Return the epoch of a claim at an offset of `admissions`.

    It is the offset, or greater than `newest` if the topic was created again and its offsets
    restarted.
    """
    return offset if offset > newest else newest + 1 + offset
