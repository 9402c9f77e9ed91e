"""The events of a code workflow: its steps and its other entries."""

from typing import TypeAlias

from headwater.schemas.history.values import Child, Failure, Json, Tagged
from headwater.schemas.statuses import EntryKind


class StepStarted(Tagged, frozen=True):
    """The first attempt of a `step.do` takes a while; that of a short step is not recorded."""

    #: The step within its run.
    key: str
    #: The author's name for it.
    name: str
    #: Its place among the entries of the run.
    ordinal: int
    #: When the run came to it, and the attempt began, Unix milliseconds.
    reached_at_ms: int
    #: The attempt that is under way: the first, 1.
    attempt: int
    #: How many it may have; 0 for any number.
    max_attempts: int
    #: How long an attempt may take.
    timeout_ms: int


class StepCompleted(Tagged, frozen=True):
    """A `step.do` has its result. Most are never opened: one record a step is enough."""

    #: The step within its run.
    key: str
    #: The author's name for it.
    name: str
    #: Its place among the entries of the run.
    ordinal: int
    #: When the run came to it, Unix milliseconds.
    reached_at_ms: int
    #: The attempt that succeeded; the first is 1.
    attempt: int
    #: How many it may have; 0 for any number.
    max_attempts: int
    #: How long an attempt may take.
    timeout_ms: int
    #: What it returned, JSON text.
    result: Json
    #: Whether it has a rollback handler.
    rollback: bool = False


class StepFailed(Tagged, frozen=True):
    """An attempt of a `step.do` failed."""

    #: The step within its run.
    key: str
    #: The author's name for it.
    name: str
    #: Its place among the entries of the run.
    ordinal: int
    #: When the run came to it, Unix milliseconds.
    reached_at_ms: int
    #: The attempt that failed; the first is 1.
    attempt: int
    #: How many it may have; 0 for any number.
    max_attempts: int
    #: How long an attempt may take.
    timeout_ms: int
    #: What it failed with.
    failure: Failure
    #: When it is tried again, Unix milliseconds; null if this was the last attempt.
    retry_at_ms: int | None = None


class StepsRetried(Tagged, frozen=True):
    """The next attempts of steps begin: the time of each has come."""

    #: The steps within their run.
    keys: tuple[str, ...]


class EntryOpened(Tagged, frozen=True):
    """An entry other than a step begins."""

    #: The entry within its run.
    key: str
    #: The author's name for it.
    name: str
    #: sleep, wait_for_event, loop, join, race, child, checkpoint, removed or now.
    kind: EntryKind
    #: Its place among the entries of the run.
    ordinal: int
    #: When time ends it, Unix milliseconds.
    wake_at_ms: int | None = None
    #: The types of events that it waits for.
    event_types: tuple[str, ...] | None = None
    #: How many of them it takes at most.
    limit: int | None = None
    #: The instance that it started.
    child: Child | None = None
    #: JSON text that a loop starts from.
    state: Json | None = None


class EntryCompleted(Tagged, frozen=True):
    """An entry has its result."""

    #: The entry within its run.
    key: str
    #: The result, JSON text.
    result: Json
    #: Ids of the events that it took out of the mailbox.
    consumed: tuple[str, ...] = ()


class EntryErrored(Tagged, frozen=True):
    """An entry ended with an error, which the author's code sees."""

    #: The entry within its run.
    key: str
    #: The error.
    failure: Failure


class EntriesCancelled(Tagged, frozen=True):
    """Entries that were open and that the code awaits no longer, as those of a race's losers."""

    #: The entries within their run.
    keys: tuple[str, ...]
    #: Whether the code has ended: a retry continues with the sleeps and containers among them.
    ended: bool = False


class LoopAdvanced(Tagged, frozen=True):
    """A loop has come to an iteration."""

    #: The loop's entry.
    key: str
    #: The iteration that begins.
    iteration: int
    #: What it begins with, JSON text.
    state: Json
    #: Iterations before this one are forgotten.
    trim_before: int = 0


class CancelRequested(Tagged, frozen=True):
    """The run is to end; its code is told here, after what came before and before what follows."""

    #: Why, for people.
    reason: str
    #: How long its code may clean up, Unix milliseconds.
    until_ms: int


class RollbackStarted(Tagged, frozen=True):
    """The run failed or was cancelled; rollback handlers run now."""

    #: Why.
    failure: Failure
    #: Whether its code was not asked: its time to clean up was over, or it had returned already.
    cut_off: bool = False


class EntryRolledBack(Tagged, frozen=True):
    """A rollback handler is through: it is done, or given up."""

    #: The entry whose handler it is.
    key: str
    #: What its last attempt failed with, if it was given up.
    failure: Failure | None = None


class RollbackFailed(Tagged, frozen=True):
    """An attempt of a rollback handler failed and is tried again."""

    #: The entry whose handler it is.
    key: str
    #: The attempt that failed; the first is 1.
    attempt: int
    #: What it failed with.
    failure: Failure
    #: When it is tried again, Unix milliseconds.
    retry_at_ms: int


class HostLost(Tagged, frozen=True):
    """The code host died or stood still while the run's own code, not a step, was running."""

    #: What was seen of it.
    reason: str
    #: When the run goes on, Unix milliseconds.
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
