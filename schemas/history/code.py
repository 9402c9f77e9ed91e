"""Events of a code workflow: its steps and its other entries."""

from typing import TypeAlias

from headwater.schemas.history.values import Child, Failure, Json, Tagged
from headwater.schemas.statuses import EntryKind


class StepStarted(Tagged, frozen=True):
    """The first attempt of a `step.do` takes long; that of a short step is not recorded."""

    #: The step within its run.
    key: str
    #: The author's name of it.
    name: str
    #: Its position among the entries of the run.
    ordinal: int
    #: When the code reached it and the attempt started, Unix milliseconds.
    reached_at_ms: int
    #: The running attempt: the first, 1.
    attempt: int
    #: Maximum number of attempts; 0 for any number.
    max_attempts: int
    #: Timeout of an attempt, milliseconds.
    timeout_ms: int


class StepCompleted(Tagged, frozen=True):
    """A `step.do` has its result. Most steps have no earlier event: one record each is enough."""

    #: The step within its run.
    key: str
    #: The author's name of it.
    name: str
    #: Its position among the entries of the run.
    ordinal: int
    #: When the code reached it, Unix milliseconds.
    reached_at_ms: int
    #: The attempt that succeeded; the first is 1.
    attempt: int
    #: Maximum number of attempts; 0 for any number.
    max_attempts: int
    #: Timeout of an attempt, milliseconds.
    timeout_ms: int
    #: The result, JSON text.
    result: Json
    #: Whether it has a rollback handler.
    rollback: bool = False


class StepFailed(Tagged, frozen=True):
    """An attempt of a `step.do` failed."""

    #: The step within its run.
    key: str
    #: The author's name of it.
    name: str
    #: Its position among the entries of the run.
    ordinal: int
    #: When the code reached it, Unix milliseconds.
    reached_at_ms: int
    #: The attempt that failed; the first is 1.
    attempt: int
    #: Maximum number of attempts; 0 for any number.
    max_attempts: int
    #: Timeout of an attempt, milliseconds.
    timeout_ms: int
    #: The error.
    failure: Failure
    #: When it is retried, Unix milliseconds; null if this was the last attempt.
    retry_at_ms: int | None = None


class StepsRetried(Tagged, frozen=True):
    """The next attempts of steps start, because they are due."""

    #: The steps within their run.
    keys: tuple[str, ...]


class EntryOpened(Tagged, frozen=True):
    """An entry other than a step was opened."""

    #: The entry within its run.
    key: str
    #: The author's name of it.
    name: str
    #: sleep, wait_for_event, loop, join, race, child, checkpoint, removed or now.
    kind: EntryKind
    #: Its position among the entries of the run.
    ordinal: int
    #: When its time is over, Unix milliseconds.
    wake_at_ms: int | None = None
    #: The event types that it waits for.
    event_types: tuple[str, ...] | None = None
    #: Maximum number of events that it consumes.
    limit: int | None = None
    #: The instance that it started.
    child: Child | None = None
    #: Initial state of a loop, JSON text.
    state: Json | None = None


class EntryCompleted(Tagged, frozen=True):
    """An entry has its result."""

    #: The entry within its run.
    key: str
    #: The result, JSON text.
    result: Json
    #: Ids of the events that it consumed from the mailbox.
    consumed: tuple[str, ...] = ()


class EntryErrored(Tagged, frozen=True):
    """An entry ended with an error, which the author's code sees."""

    #: The entry within its run.
    key: str
    #: The error.
    failure: Failure


class EntriesCancelled(Tagged, frozen=True):
    """Open entries that the code no longer awaits, for example those of a race's losers."""

    #: The entries within their run.
    keys: tuple[str, ...]
    #: Whether the code has ended: a retry continues the sleeps and containers among them.
    ended: bool = False


class LoopAdvanced(Tagged, frozen=True):
    """A loop has advanced to an iteration."""

    #: The loop's entry.
    key: str
    #: The iteration that starts.
    iteration: int
    #: Its initial state, JSON text.
    state: Json
    #: Iterations before this one are dropped.
    trim_before: int = 0


class CancelRequested(Tagged, frozen=True):
    """The run is to end; its code is notified after earlier events and before later ones."""

    #: Reason, for people.
    reason: str
    #: End of the time in which its code may clean up, Unix milliseconds.
    until_ms: int


class RollbackStarted(Tagged, frozen=True):
    """The run failed or was canceled; its rollback handlers run now."""

    #: The reason.
    failure: Failure
    #: Whether its code was not involved: its cleanup time was over, or it had returned already.
    cut_off: bool = False


class EntryRolledBack(Tagged, frozen=True):
    """A rollback handler returned, or failed finally."""

    #: The entry whose handler it is.
    key: str
    #: Error of its last attempt, if it failed finally.
    failure: Failure | None = None


class RollbackFailed(Tagged, frozen=True):
    """An attempt of a rollback handler failed and is retried."""

    #: The entry whose handler it is.
    key: str
    #: The attempt that failed; the first is 1.
    attempt: int
    #: The error.
    failure: Failure
    #: When it is retried, Unix milliseconds.
    retry_at_ms: int


class HostLost(Tagged, frozen=True):
    """The code host died or hung while it executed the run's own code, not a step."""

    #: What was observed.
    reason: str
    #: When the run continues, Unix milliseconds.
    retry_at_ms: int


CodeEvent: TypeAlias = (
    StepCompleted
    | StepFailed
    | EntryOpened
    | EntryCompleted
    | EntryErrored
    | EntriesCancelled
    | LoopAdvanced
    | CancelRequested
    | RollbackStarted
    | EntryRolledBack
    | RollbackFailed
    | HostLost
    | StepsRetried
    | StepStarted
)
