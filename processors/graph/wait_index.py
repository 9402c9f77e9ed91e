"""The times of a run in order, and its waits for events by type, so that neither is searched."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple


class TimeOfKey(NamedTuple):
    """When time moves a token or join; numbers of tokens are in numeric order."""

    at_ms: int
    length: int
    key: str


def time_of_key(key: str, at_ms: int) -> TimeOfKey:
    """Return an entry of the index."""
    return TimeOfKey(at_ms, len(key), key)


class WaitIndex:
    """Index of a run's times and waits. It is computed from the state, and never stored."""

    def __init__(self, times: Mapping[str, int], waits: Mapping[int, str | None]) -> None:
        self._times = sorted(time_of_key(key, at_ms) for key, at_ms in times.items())
        self._waits: dict[str, dict[int, None]] = {}
        for number, event_type in waits.items():
            self.add_wait(number, event_type)

    def __iter__(self) -> Iterator[TimeOfKey]:
        """Yield the times in order."""
        return iter(self._times)

    def until(self, until_ms: int) -> list[TimeOfKey]:
        """Return the times up to one, inclusive, in order."""
        return self._times[: bisect_left(self._times, (until_ms + 1,))]

    def add_time(self, key: str, at_ms: int) -> None:
        """Add a time."""
        insort(self._times, time_of_key(key, at_ms))

    def drop_time(self, key: str, at_ms: int) -> None:
        """Remove a time."""
        del self._times[bisect_left(self._times, time_of_key(key, at_ms))]

    def waiting_for(self, event_type: str) -> Iterable[int]:
        """Return the tokens that wait for events of a type, the oldest first."""
        return self._waits.get(event_type, ())

    def add_wait(self, number: int, event_type: str | None) -> None:
        """Add a wait; one for a time is not in the index."""
        if event_type is not None:
            self._waits.setdefault(event_type, {})[number] = None

    def drop_wait(self, number: int, event_type: str | None) -> None:
        """Remove a wait."""
        if event_type is not None:
            waits = self._waits[event_type]
            del waits[number]
            if not waits:
                del self._waits[event_type]
