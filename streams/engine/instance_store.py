"""Where instances lie to which nothing happens: they rest, or have ended."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from headwater.schemas.history import NO_LEADER_EPOCH


class StoredState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An instance as bytes.

    Shape:  state is the encoding of this kind's engine, of this format; wake_at_ms is when time
            moves it again: 0 at once, -1 never; position is the offset in the history from which
            on events are not yet in the state; parts is in how many records its snapshot is, or
            was once.
    """

    kind: str
    format: int
    wake_at_ms: int
    position: int
    state: bytes
    parts: int = 1


#: What there is of an instance that was deleted.
GONE: Final = StoredState("", 0, -1, 0, b"")


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From where on the history has to be read: all that it holds before is in the store.

    Shape:  an offset, and the claims of the partition there (`processors.runs.claims`).
    """

    position: int
    epoch: int
    cause: int
    leader_epoch: int = NO_LEADER_EPOCH


class InstanceStore(Protocol):
    """The states of a partition, by the key of their instance.

    It is no fact: what it holds comes from the partition's history, and may be lost. It is never
    ahead of that: what is put is durable there, and counts. A state may be newer than the mark.
    """

    def mark(self) -> Mark | None:
        """From where the history has to be read; None from its beginning."""

    def set_mark(self, mark: Mark) -> None:
        """Keeps a mark; what was put before is not lost as long as the mark is there."""

    def get(self, key: str) -> StoredState | None:
        """The state of an instance, if it has one."""

    def put(self, states: Mapping[str, StoredState]) -> None:
        """Keeps states in place of what their instances had."""

    def remove(self, keys: Collection[str]) -> None:
        """Forgets the states of instances, if it has them."""

    def wakes(self) -> Iterable[tuple[int, str]]:
        """Times and keys of the instances that time moves."""

    def clear(self) -> None:
        """Forgets everything."""

    def close(self) -> None:
        """Lets whoever has the partition next have its store."""


class MemoryStore:
    """A store in memory."""

    def __init__(self) -> None:
        self._states: dict[str, StoredState] = {}
        self._mark: Mark | None = None

    def mark(self) -> Mark | None:
        """From where the history has to be read."""
        return self._mark

    def set_mark(self, mark: Mark) -> None:
        """Keeps a mark."""
        self._mark = mark

    def get(self, key: str) -> StoredState | None:
        """The state of an instance."""
        return self._states.get(key)

    def put(self, states: Mapping[str, StoredState]) -> None:
        """Keeps states."""
        self._states.update(states)

    def remove(self, keys: Collection[str]) -> None:
        """Forgets the states of instances."""
        for key in keys:
            self._states.pop(key, None)

    def wakes(self) -> Iterable[tuple[int, str]]:
        """Times and keys of the instances that time moves."""
        return [
            (each.wake_at_ms, key) for key, each in self._states.items() if each.wake_at_ms >= 0
        ]

    def clear(self) -> None:
        """Forgets everything."""
        self._states.clear()
        self._mark = None

    def close(self) -> None:
        """Nobody else can have it."""
