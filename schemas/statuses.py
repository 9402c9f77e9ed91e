"""Statuses of runs and their entries, and kinds of entries; the values are those of the API."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, Self

from typing_extensions import override

_keep_unknown: Final = ContextVar("keep_unknown_values", default=False)


@contextmanager
def keep_unknown_values() -> Iterator[None]:
    """Decode values that only a newer release knows as text that equals itself.

    For code that displays decisions of other processes: one unknown value must not make all of it
    unreadable. Everywhere else such a value is an error.
    """
    token = _keep_unknown.set(True)
    try:
        yield
    finally:
        _keep_unknown.reset(token)


class _Word(StrEnum):
    """A value of the API."""

    @override
    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not (_keep_unknown.get() and isinstance(value, str)):
            return None
        return cls.spelled(value)

    @classmethod
    def spelled(cls, value: str) -> Self:
        """Return a value that is not a member."""
        member = str.__new__(cls, value)
        member._name_ = value.upper()
        member._value_ = value
        return member


class RunStatus(_Word):
    """Status of a run."""

    ACTIVE = "active"
    WAITING = "waiting"
    PAUSED = "paused"
    ERRORED = "errored"
    TERMINATED = "terminated"
    COMPLETE = "complete"


class RunState(_Word):
    """Status of a run in `/v1`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: Final statuses of a run; only a restart or, if it has errored, a retry may follow.
ENDED: Final = frozenset({RunStatus.ERRORED, RunStatus.TERMINATED, RunStatus.COMPLETE})


class EntryStatus(_Word):
    """Status of an entry of a history."""

    PENDING = "pending"
    WAITING = "waiting"
    COMPLETED = "completed"
    ERRORED = "errored"
    CANCELLED = "cancelled"


#: Statuses of an entry without a result.
OPEN: Final = frozenset({EntryStatus.PENDING, EntryStatus.WAITING})


#: Type of a wait in HTTP.
_WAIT: Final = "waitForEvent"


class EntryKind(_Word):
    """Kind of an entry of a history; the values are those of `history.steps[i].type`."""

    DO = "do"
    SLEEP = "sleep"
    WAIT = "wait_for_event"
    LOOP = "loop"
    JOIN = "join"
    RACE = "race"
    CHILD = "child"
    CHECKPOINT = "checkpoint"
    REMOVED = "removed"
    #: `step.now()`; not displayed.
    NOW = "now"

    @override
    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls("wait_for_event") if value == _WAIT else super()._missing_(value)


#: Kind of a wait in HTTP responses.
WAIT_OVER_HTTP: Final = EntryKind.spelled(_WAIT)
