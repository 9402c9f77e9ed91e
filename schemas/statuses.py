"""How runs and their entries stand, and what entries are; the values are those of the API."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, Self

from typing_extensions import override

_newer_kept: Final = ContextVar("newer_kept", default=False)


@contextmanager
def newer_kept() -> Iterator[None]:
    """Reads values that only a later release knows as what they are: text that equals itself.

    For whoever shows what somebody else has decided: one new word must not make all of it
    unreadable. Everywhere else such a value is an error.
    """
    token = _newer_kept.set(True)
    try:
        yield
    finally:
        _newer_kept.reset(token)


class _Word(StrEnum):
    """A word of the API."""

    @override
    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not (_newer_kept.get() and isinstance(value, str)):
            return None
        return cls.spelled(value)

    @classmethod
    def spelled(cls, value: str) -> Self:
        """A word that is none of these."""
        word = str.__new__(cls, value)
        word._name_ = value.upper()
        word._value_ = value
        return word


class RunStatus(_Word):
    """How a run stands."""

    ACTIVE = "active"
    WAITING = "waiting"
    PAUSED = "paused"
    ERRORED = "errored"
    TERMINATED = "terminated"
    COMPLETE = "complete"


class RunState(_Word):
    """How a run stands, in the words of `/v1`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: A run in one of these has ended; only a restart follows or, if it has errored, a retry.
ENDED: Final = frozenset({RunStatus.ERRORED, RunStatus.TERMINATED, RunStatus.COMPLETE})


class EntryStatus(_Word):
    """How an entry of a history stands."""

    PENDING = "pending"
    WAITING = "waiting"
    COMPLETED = "completed"
    ERRORED = "errored"
    CANCELLED = "cancelled"


#: An entry in one of these has no result yet.
OPEN: Final = frozenset({EntryStatus.PENDING, EntryStatus.WAITING})


#: How HTTP spells the type of a wait.
_WAIT: Final = "waitForEvent"


class EntryKind(_Word):
    """What an entry of a history is; the values are those of `history.steps[i].type`."""

    DO = "do"
    SLEEP = "sleep"
    WAIT = "wait_for_event"
    LOOP = "loop"
    JOIN = "join"
    RACE = "race"
    CHILD = "child"
    CHECKPOINT = "checkpoint"
    REMOVED = "removed"
    #: `step.now()`; not shown to people.
    NOW = "now"

    @override
    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls("wait_for_event") if value == _WAIT else super()._missing_(value)


#: A wait, as answers over HTTP have it.
WAIT_OVER_HTTP: Final = EntryKind.spelled(_WAIT)
