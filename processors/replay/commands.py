"""What the code of a run asks for, as its host tells the owner; each has a decision.

They are not durable: after a crash the code runs again and asks again. Every one names the entry it
is about by its key. The owner's own `Wake` is here too, because time asks in the same way.
"""

from typing import TypeAlias

import msgspec

from headwater.schemas.history import EntryKind, Failure, Json, Post


class Asked(msgspec.Struct, frozen=True, tag=True, tag_field="_", array_like=True, gc=False):
    """Base of what code asks for."""


class RetryPolicy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a failed step is tried again.

    Shape:  limit is the number of retries, -1 any; backoff is constant, linear or exponential.
    """

    limit: int
    delay_ms: int
    backoff: str


class Reached(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that code has come to."""

    key: str
    name: str
    ordinal: int
    at_ms: int
    max_attempts: int
    timeout_ms: int


class StepReturned(Asked, frozen=True):
    """An attempt has its result, and its transaction what it wants done with it.

    Shape:  posts have no numbers yet; statements are pairs of SQL and its parameters as JSON text.
    """

    step: Reached
    attempt: int
    policy: RetryPolicy
    result: Json
    rollback: bool = False
    posts: tuple[Post, ...] = ()
    statements: tuple[tuple[str, Json], ...] = ()


class StepRaised(Asked, frozen=True):
    """An attempt failed."""

    step: Reached
    attempt: int
    failure: Failure
    policy: RetryPolicy
    retryable: bool = True


class Open(Asked, frozen=True):
    """An entry begins.

    Units:  wait_ms is the length of a sleep or the timeout of a wait or child; wake_at_ms the end
            of a `sleep_until`.
    """

    key: str
    name: str
    kind: EntryKind
    ordinal: int
    wait_ms: int | None = None
    wake_at_ms: int | None = None
    event_types: tuple[str, ...] | None = None
    limit: int | None = None
    child_workflow: str | None = None
    child_id: str | None = None
    #: The params of a child, or the first state of a loop.
    value: Json | None = None


class Mark(Asked, frozen=True):
    """An entry that is done as soon as it is there: a checkpoint, a removal, the time."""

    key: str
    name: str
    kind: EntryKind
    ordinal: int


class Losers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The losers of a race: their scopes, and those of their steps that nothing is recorded of."""

    scopes: tuple[str, ...]
    steps: tuple[Reached, ...] = ()


class Close(Asked, frozen=True):
    """A loop, join or race has its result; a race has losers."""

    key: str
    result: Json
    losers: Losers | None = None


class Fail(Asked, frozen=True):
    """A loop, join or race ends with an error; a race may have losers all the same."""

    key: str
    failure: Failure
    losers: Losers | None = None


class Cancel(Asked, frozen=True):
    """Nobody awaits an entry any more, nor what is beneath it.

    Shape:  steps are those of them that nothing is recorded of.
    """

    key: str
    steps: tuple[Reached, ...] = ()


class Advance(Asked, frozen=True):
    """A loop has come to an iteration, or only forgets those before `trim_before`."""

    key: str
    iteration: int
    state: Json
    trim_before: int = 0


class Log(Asked, frozen=True):
    """A line of `step.log`."""

    level: str
    category: str
    message: str
    data: Json | None
    step_key: str | None
    attempt: int | None
    is_replay: bool


class Suspend(Asked, frozen=True):
    """Nothing moves in the code; `seen` is the sequence of the latest event it was told of."""

    seen: int


class BeginRollback(Asked, frozen=True):
    """The code failed and handlers are there to be run."""

    failure: Failure


class RolledBack(Asked, frozen=True):
    """A rollback handler returned."""

    key: str


class RollbackRaised(Asked, frozen=True):
    """A rollback handler failed."""

    key: str
    failure: Failure


class Return(Asked, frozen=True):
    """The author's function returned."""

    output: Json


class Raise(Asked, frozen=True):
    """The author's function raised, and nothing is left to be rolled back."""

    failure: Failure


class HostGone(Asked, frozen=True):
    """The owner's: the host ended or stood still while the run's code had its turn."""

    reason: str


class Wake(Asked, frozen=True):
    """The owner's: what is due until this time is due.

    Shape:  heard if all that others have sent until then is known, that moment included.
    """

    until_ms: int
    heard: bool = False


CodeCommand: TypeAlias = (
    StepReturned
    | StepRaised
    | Open
    | Mark
    | Close
    | Fail
    | Cancel
    | Advance
    | Log
    | Suspend
    | BeginRollback
    | RolledBack
    | RollbackRaised
    | Return
    | Raise
)
