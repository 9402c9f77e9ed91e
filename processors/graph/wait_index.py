"""The times of a run in order, and its waits for events by type, so that neither is searched."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from headwater.processors.graph.state import GraphRun


class DueTime(NamedTuple):
    """When a token or join is due; numbers of tokens are in numeric order."""

    due_ms: int
    length: int
    key: str


class WaitIndex:
    """Index of a run's times and waits. It is computed from the state, and never stored."""

    def __init__(self, due: Iterable[tuple[str, int]], waits: Mapping[int, str | None]) -> None:
        self._due = {key: DueTime(due_ms, len(key), key) for key, due_ms in due}
        self._ordered = sorted(self._due.values())
        self._waits: dict[str, dict[int, None]] = {}
        for number, event_type in waits.items():
            self.add_wait(number, event_type)

    def __iter__(self) -> Iterator[DueTime]:
        """Yield what is due, in order."""
        return iter(self._ordered)

    def until(self, until_ms: int) -> list[DueTime]:
        """Return what is due until a time, inclusive, in order."""
        return self._ordered[: bisect_left(self._ordered, (until_ms + 1,))]

    def set_time(self, key: str, due_ms: int) -> None:
        """Set when a token or join is due."""
        self.clear_time(key)
        self._due[key] = due = DueTime(due_ms, len(key), key)
        insort(self._ordered, due)

    def clear_time(self, key: str) -> None:
        """Remove the time of a token or join, if it has one."""
        due = self._due.pop(key, None)
        if due is not None:
            del self._ordered[bisect_left(self._ordered, due)]

    def waiting_for(self, event_type: str) -> Iterable[int]:
        """Return the tokens that wait for events of a type, the oldest first."""
        return self._waits.get(event_type, ())

    def add_wait(self, number: int, event_type: str | None) -> None:
        """Add a wait; one for a time is not in the index."""
        if event_type is not None:
            self._waits.setdefault(event_type, {})[number] = None

    def remove_wait(self, number: int, event_type: str | None) -> None:
        """Remove a wait."""
        if event_type is not None:
            waits = self._waits[event_type]
            del waits[number]
            if not waits:
                del self._waits[event_type]


# -- of a run

#: Where a run has its index, besides its fields.
_INDEX: Final = "wait_index"


def others_can_end(run: GraphRun, key: str) -> bool:
    """Whether another party can end the wait with this key; else it is a retry or for a time."""
    token = run.token_of(key)
    return token is None or token.waits_for_others


def due_ms(run: GraphRun, key: str, at_ms: int) -> int:
    """Return when a time is due: a deadline one millisecond later, other times at their time."""
    return at_ms + others_can_end(run, key)


def index_of(run: GraphRun) -> WaitIndex:
    """Return the index of a run's times and waits, which is computed when it is first used."""
    index: WaitIndex | None = run.__dict__.get(_INDEX)
    if index is None:
        due = ((key, due_ms(run, key, at_ms)) for key, at_ms in run.times.items())
        index = run.__dict__[_INDEX] = WaitIndex(due, run.waits)
    return index


def drop_index(run: GraphRun) -> None:
    """Have the index computed again, after changes of many times."""
    run.__dict__.pop(_INDEX, None)


def set_time(run: GraphRun, key: str, at_ms: int) -> None:
    """Set when time moves a token, which waits already, or a join."""
    run.times[key] = at_ms
    index: WaitIndex | None = run.__dict__.get(_INDEX)
    if index is not None:
        index.set_time(key, due_ms(run, key, at_ms))


def clear_time(run: GraphRun, key: str) -> None:
    """Remove the time of a token or join, if it has one."""
    run.times.pop(key, None)
    index: WaitIndex | None = run.__dict__.get(_INDEX)
    if index is not None:
        index.clear_time(key)


def add_wait(run: GraphRun, number: int, event_type: str | None) -> None:
    """Add the wait of a token: for an event, or for a time."""
    run.waits[number] = event_type
    index: WaitIndex | None = run.__dict__.get(_INDEX)
    if index is not None:
        index.add_wait(number, event_type)


def remove_wait(run: GraphRun, number: int) -> None:
    """Remove the wait of a token, if it has one."""
    event_type = run.waits.pop(number, None)
    index: WaitIndex | None = run.__dict__.get(_INDEX)
    if index is not None:
        index.remove_wait(number, event_type)
