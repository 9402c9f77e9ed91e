"""Timers by key: each key has one time at most."""

import heapq
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: Times that no longer hold stay in the heap until they are the larger half of it, and this many.
_STALE_MIN: Final = 1_000


class Timers(Generic[K]):
    """A heap of times, in which a key's time can be moved and dropped.

    Units:  milliseconds, of whatever clock the caller has.
    """

    def __init__(self, times: Iterable[tuple[K, int]] = ()) -> None:
        self._time_of: dict[K, int] = dict(times)
        self._heap: list[tuple[int, Any]] = []
        self._rebuild()

    def __len__(self) -> int:
        return len(self._time_of)

    def put(self, key: K, at_ms: int) -> None:
        """Gives a key its time."""
        if self._time_of.get(key) == at_ms:
            return
        self._time_of[key] = at_ms
        heapq.heappush(self._heap, (at_ms, key))
        if len(self._heap) > 2 * len(self._time_of) + _STALE_MIN:
            self._rebuild()

    def drop(self, key: K) -> None:
        """Takes a key's time away, if it has one."""
        self._time_of.pop(key, None)

    def next_ms(self) -> int | None:
        """The earliest time, or None."""
        heap = self._heap
        while heap and self._time_of.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """Takes out the keys whose time has come, in the order of their times.

        Keys that get a time while the caller is at work are taken too, if it has come.
        """
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            key: K = heapq.heappop(self._heap)[1]
            del self._time_of[key]
            yield key

    def _rebuild(self) -> None:
        self._heap = [(at_ms, key) for key, at_ms in self._time_of.items()]
        heapq.heapify(self._heap)
