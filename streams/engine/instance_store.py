"""Where instances lie to which nothing happens: they rest, or have ended."""

from typing import Protocol

import msgspec


class StoredState(msgspec.Struct, frozen=True, gc=False):
    """An instance as bytes.

    Shape:  state is the encoding of this kind's engine, of this format; wake_at_ms is when time
            moves it again: 0 at once, -1 never.
    """

    kind: str
    format: int
    wake_at_ms: int
    state: bytes


class InstanceStore(Protocol):
    """The states of a partition, by the key of their instance.

    It is no fact: what it holds comes from the partition's history, and may be lost.
    """

    def __len__(self) -> int:
        """How many there are."""

    def get(self, key: str) -> StoredState:
        """The state of an instance.

        Errors: KeyError, if it has none.
        """

    def take(self, key: str) -> StoredState | None:
        """Takes out the state of an instance, if it has one."""

    def put(self, key: str, state: StoredState) -> None:
        """Keeps the state of an instance in place of what it had."""


class MemoryStore:
    """A store in memory."""

    def __init__(self) -> None:
        self._states: dict[str, StoredState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def get(self, key: str) -> StoredState:
        """The state of an instance."""
        return self._states[key]

    def take(self, key: str) -> StoredState | None:
        """Takes out the state of an instance."""
        return self._states.pop(key, None)

    def put(self, key: str, state: StoredState) -> None:
        """Keeps the state of an instance."""
        self._states[key] = state
