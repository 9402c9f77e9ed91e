"""What a client has written, so that it reads it: positions in the log, by instance.

The answer to a write names the place of its outcome in the log; a read that carries it is answered
from rows that have it.
"""

import re
from collections import OrderedDict
from typing import Final

#: Of an instance that was written to so many instances ago, the rows have everything by now.
_INSTANCES_MAX: Final = 10_000
#: Positions of one read: with more of them its URL would outgrow what servers take.
_ASKED_MAX: Final = 100
_POSITION: Final = re.compile(r"([a-z-]+/\d+)@(\d+)")


class Positions:
    """The latest position of each instance, and of each partition of the log."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, str] = OrderedDict()
        self._offsets: OrderedDict[str, int] = OrderedDict()

    def note(self, header: str, instance: str | None) -> None:
        """Notes the positions of an answer, of which a batch has several."""
        found = _POSITION.findall(header)
        for partition, offset in found:
            self._offsets[partition] = max(self._offsets.get(partition, -1), int(offset))
            self._offsets.move_to_end(partition)
        if instance is not None and len(found) == 1:
            # The furthest that is known: of two writes at a time the later may answer first.
            self._of[instance] = f"{found[0][0]}@{self._offsets[found[0][0]]}"
            self._of.move_to_end(instance)
            if len(self._of) > _INSTANCES_MAX:
                self._of.popitem(last=False)

    def seen(self, instance: str | None) -> str | None:
        """What a read has to wait for, of an instance, or of many.

        An instance that was written to in a batch is in any of the partitions.
        """
        if instance is not None and instance in self._of:
            return self._of[instance]
        latest = list(self._offsets.items())[-_ASKED_MAX:]
        return ",".join(f"{partition}@{offset}" for partition, offset in latest) or None
