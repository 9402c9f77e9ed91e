"""Positions of a client's writes, by instance, so that its reads include them.

The answer to a write names the position of its outcome in the log. A read that carries the position
is answered from rows that include the outcome.
"""

import re
from collections import OrderedDict
from typing import Final

#: After writes to this many other instances, the rows have caught up with an instance's writes.
_INSTANCES_MAX: Final = 10_000
#: Positions of one read: more would make the URL longer than servers accept.
_READ_POSITIONS_MAX: Final = 100
_POSITION: Final = re.compile(r"([a-z-]+/\d+)@(\d+)")


class Positions:
    """Latest written position of every instance, and of every partition of the log."""

    def __init__(self) -> None:
        self._by_instance: OrderedDict[str, str] = OrderedDict()
        self._offsets: OrderedDict[str, int] = OrderedDict()

    def note(self, header: str, instance: str | None) -> None:
        """Record the positions of an answer; that of a batch has several."""
        positions = _POSITION.findall(header)
        for partition, offset in positions:
            self._offsets[partition] = max(self._offsets.get(partition, -1), int(offset))
            self._offsets.move_to_end(partition)
        if instance is not None and len(positions) == 1:
            # Two writes at a time may be answered in either order: keep the greater offset.
            self._by_instance[instance] = f"{positions[0][0]}@{self._offsets[positions[0][0]]}"
            self._by_instance.move_to_end(instance)
            if len(self._by_instance) > _INSTANCES_MAX:
                self._by_instance.popitem(last=False)

    def seen(self, instance: str | None) -> str | None:
        """Return the positions that a read of an instance, or of many, has to wait for.

        An instance of a batch may be in any of the batch's partitions.
        """
        if instance is not None and instance in self._by_instance:
            return self._by_instance[instance]
        latest = list(self._offsets.items())[-_READ_POSITIONS_MAX:]
        return ",".join(f"{partition}@{offset}" for partition, offset in latest) or None
