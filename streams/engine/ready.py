"""Queues of instances that are ready for a host. Every host has its own queue."""

import heapq
from collections import defaultdict
from collections.abc import Collection
from enum import IntEnum
from typing import TypeAlias

#: Priority of an instance, since when it is ready, its sequence number, its key.
_Ready: TypeAlias = tuple["Priority", int, int, str]


class Priority(IntEnum):
    """Priorities of ready instances: runs that continue come before runs that start."""

    CONTINUE = 0
    BEGIN = 1


class ReadyInstances:
    """Instances of one owner that wait for their hosts, by the number of the host."""

    def __init__(self) -> None:
        self._queues: dict[int, list[_Ready]] = defaultdict(list)
        self._count = 0

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def put(self, host: int, key: str, priority: Priority, at_ms: int) -> None:
        """Queue an instance that is ready since a time."""
        self._count += 1
        heapq.heappush(self._queues[host], (priority, at_ms, self._count, key))

    def hosts(self) -> set[int]:
        """Return the numbers of hosts with waiting instances."""
        return {host for host, queue in self._queues.items() if queue}

    def urgency(self, closed: Collection[int] = ()) -> tuple[Priority, int] | None:
        """Return the priority of the first instance whose host is not closed, and its time."""
        queue = self._first(closed)
        return queue[0][:2] if queue else None

    def pop(self, closed: Collection[int] = ()) -> str | None:
        """Remove and return the key of the first instance whose host is not closed."""
        queue = self._first(closed)
        return heapq.heappop(queue)[3] if queue else None

    def _first(self, closed: Collection[int]) -> list[_Ready]:
        if not self:
            return []
        waiting = [queue for host, queue in self._queues.items() if queue and host not in closed]
        return min(waiting, key=lambda queue: queue[0], default=[])
