"""Timers by key. Every key has at most one."""

import heapq
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: Outdated times stay in the heap until they are more than half of it, and this many.
_STALE_MIN: Final = 1_000


class Timers(Generic[K]):
    """A heap of times in milliseconds, in which the time of a key can be changed or dropped.

    The caller chooses the clock.
    """

    def __init__(self, times: Iterable[tuple[K, int]] = ()) -> None:
        self._time_of: dict[K, int] = dict(times)
        self._heap: list[tuple[int, Any]] = []
        self._rebuild()

    def __len__(self) -> int:
        return len(self._time_of)

    def put(self, key: K, at_ms: int) -> None:
        """Set the time of a key."""
        if self._time_of.get(key) == at_ms:
            return
        self._time_of[key] = at_ms
        heapq.heappush(self._heap, (at_ms, key))
        if len(self._heap) > 2 * len(self._time_of) + _STALE_MIN:
            self._rebuild()

    def drop(self, key: K) -> None:
        """Drop the time of a key, if it has one."""
        self._time_of.pop(key, None)

    def next_ms(self) -> int | None:
        """Return the earliest time, or None."""
        heap = self._heap
        while heap and self._time_of.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """Remove and yield the keys whose time has come, in the order of their times.

        This includes keys whose time is set during the iteration.
        """
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            key: K = heapq.heappop(self._heap)[1]
            del self._time_of[key]
            yield key

    def _rebuild(self) -> None:
        self._heap = [(at_ms, key) for key, at_ms in self._time_of.items()]
        heapq.heapify(self._heap)
