"""Stores of instances that are not in memory, because they rest or have ended."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from headwater.schemas.history import NO_LEADER_EPOCH


class StoredState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An encoded instance.

    Attributes:
        kind: Kind of its engine.
        format: Format of the encoding.
        wake_at_ms: When a timer makes it continue, in Unix milliseconds: 0 at once, -1 never.
        position: Offset in the history; events from there on are not in the state yet.
        state: Encoding by the engine.
        parts: Largest number of records that its snapshot has had.
    """

    kind: str
    format: int
    wake_at_ms: int
    position: int
    state: bytes
    parts: int = 1


#: Stored instead of a deleted instance.
DELETED: Final = StoredState("", 0, -1, 0, b"")


class HistoryMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The offset from which the history has to be read; the store has all events before it.

    Its other fields are the claims of the partition at that offset (`processors.runs.claims`).
    """

    position: int
    epoch: int
    cause: int
    leader_epoch: int = NO_LEADER_EPOCH


class InstanceStore(Protocol):
    """The states of a partition's instances, by key.

    The store is derived from the partition's history, and may be lost. It is never ahead of the
    history: only durable states that count are put. A state may be newer than the mark.
    """

    def mark(self) -> HistoryMark | None:
        """Return from where the history has to be read; None from its beginning."""

    def set_mark(self, mark: HistoryMark) -> None:
        """Store a mark. States that were put before are as durable as the mark."""

    def get(self, key: str) -> StoredState | None:
        """Return the state of an instance, if it has one."""

    def put(self, states: Mapping[str, StoredState]) -> None:
        """Replace states."""

    def remove(self, keys: Collection[str]) -> None:
        """Remove states, if they exist."""

    def wakes(self) -> Iterable[tuple[int, str]]:
        """Return times and keys of the instances with a timer."""

    def clear(self) -> None:
        """Remove everything."""

    def close(self) -> None:
        """Release the store for the next owner of the partition."""


class MemoryStore:
    """A store in memory."""

    def __init__(self) -> None:
        self._states: dict[str, StoredState] = {}
        self._mark: HistoryMark | None = None

    def mark(self) -> HistoryMark | None:
        """Return from where the history has to be read."""
        return self._mark

    def set_mark(self, mark: HistoryMark) -> None:
        """Store a mark."""
        self._mark = mark

    def get(self, key: str) -> StoredState | None:
        """Return the state of an instance."""
        return self._states.get(key)

    def put(self, states: Mapping[str, StoredState]) -> None:
        """Replace states."""
        self._states.update(states)

    def remove(self, keys: Collection[str]) -> None:
        """Remove states."""
        for key in keys:
            self._states.pop(key, None)

    def wakes(self) -> Iterable[tuple[int, str]]:
        """Return times and keys of the instances with a timer."""
        states = self._states.items()
        return [(state.wake_at_ms, key) for key, state in states if state.wake_at_ms >= 0]

    def clear(self) -> None:
        """Remove everything."""
        self._states.clear()
        self._mark = None

    def close(self) -> None:
        """Do nothing: no other owner can use it."""
