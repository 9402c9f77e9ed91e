"""Who is ready for a host: a queue for each, because one may be away while the others go on."""

import heapq
from collections import defaultdict
from collections.abc import Collection
from enum import IntEnum
from typing import TypeAlias

#: How urgent an instance is, since when it is ready, its place among equals, its key.
_Ready: TypeAlias = tuple["Priority", int, int, str]


class Priority(IntEnum):
    """What a tick takes first: what goes on before what begins."""

    CONTINUE = 0
    BEGIN = 1


class ReadyInstances:
    """The instances of one owner that wait for their hosts, by the number of the host."""

    def __init__(self) -> None:
        self._queues: dict[int, list[_Ready]] = defaultdict(list)
        self._count = 0

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def put(self, host: int, key: str, priority: Priority, at_ms: int) -> None:
        """Lets an instance wait, since a time."""
        self._count += 1
        heapq.heappush(self._queues[host], (priority, at_ms, self._count, key))

    def hosts(self) -> set[int]:
        """The numbers of the hosts that somebody waits for."""
        return {host for host, queue in self._queues.items() if queue}

    def urgency(self, closed: Collection[int] = ()) -> tuple[Priority, int] | None:
        """How urgent the first is whose host is not closed, and since when it is ready."""
        queue = self._first(closed)
        return queue[0][:2] if queue else None

    def take(self, closed: Collection[int] = ()) -> str | None:
        """Takes out the key of the instance that goes on first, if its host is not closed."""
        queue = self._first(closed)
        return heapq.heappop(queue)[3] if queue else None

    def _first(self, closed: Collection[int]) -> list[_Ready]:
        if not self:
            return []
        waiting = [queue for host, queue in self._queues.items() if queue and host not in closed]
        return min(waiting, key=lambda queue: queue[0], default=[])
