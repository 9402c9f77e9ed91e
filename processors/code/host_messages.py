"""Messages between the owner of a run and its code host, with the requests of the run's code.

Requests are not durable: after a crash the code runs again and repeats them. A request names its
entry by the key.
"""

from typing import TypeAlias

import msgspec

from headwater.processors.code.state import CodeRun, Entry
from headwater.processors.hooks import HookOrigin
from headwater.processors.runs.decisions import (
    Reached,
    Request,
    RollbackRaised,
    StepRaised,
    StepReturned,
)
from headwater.processors.runs.host_messages import (
    AbandonAttempt,
    AllowAttempts,
    AttemptStarted,
    Evict,
    HostMessage,
    Ping,
    PollProgress,
    Pong,
    Requested,
    YieldBack,
)
from headwater.schemas.history import (
    CancelRequested,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    Failure,
    HostLost,
    Json,
    Limits,
    LogWritten,
    LoopAdvanced,
    OfGraph,
    OfSlots,
    PostsQueued,
    PostsSent,
    RollbackFailed,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunMoved,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotGranted,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
)
from headwater.schemas.statuses import EntryKind


class Open(Request, frozen=True):
    """Open an entry.

    Attributes:
        wait_ms: Length of a sleep, or timeout of a wait or child, in ms.
        wake_at_ms: End of a `sleep_until`, in ms since the epoch.
        value: The params of a child, or the initial state of a loop.
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
    value: Json | None = None


class OpenCompleted(Request, frozen=True):
    """Record an entry that completes immediately: a checkpoint, a removal, the current time."""

    key: str
    name: str
    kind: EntryKind
    ordinal: int


class Losers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The losers of a race: their scopes, and those of their steps that are not recorded yet."""

    scopes: tuple[str, ...]
    steps: tuple[Reached, ...] = ()


class Close(Request, frozen=True):
    """Complete a loop, join or race; a race has losers."""

    key: str
    result: Json
    losers: Losers | None = None


class Fail(Request, frozen=True):
    """Fail a loop, join or race; a failed race may have losers as well."""

    key: str
    failure: Failure
    losers: Losers | None = None


class Cancel(Request, frozen=True):
    """Cancel an entry that the code no longer awaits, and everything under it.

    Attributes:
        steps: Affected steps that are not recorded yet.
    """

    key: str
    steps: tuple[Reached, ...] = ()


class Advance(Request, frozen=True):
    """Commit an iteration of a loop, or only drop iterations before `trim_before`.

    Attributes:
        knows_cancelled: Whether the code knows that the run is canceled.
    """

    key: str
    iteration: int
    state: Json
    trim_before: int = 0
    knows_cancelled: bool = False


class Log(Request, frozen=True):
    """Write a line of `step.log`, or of the engine.

    Attributes:
        once: Name of a warning that is written only once per run.
        missed: Keys of recorded entries that, according to this line, the code no longer reaches.
        seen: Sequence of the latest event that the run's own code has seen, if the line is new.
    """

    level: str
    category: str
    message: str
    data: Json | None
    step_key: str | None
    attempt: int | None
    is_replay: bool
    once: str | None = None
    missed: tuple[str, ...] = ()
    seen: int | None = None


class Suspend(Request, frozen=True):
    """Nothing progresses in the code; `seen` is the sequence of the latest event that it knows."""

    seen: int


class BeginRollback(Request, frozen=True):
    """The code failed, and there are rollback handlers to run."""

    failure: Failure


class RolledBack(Request, frozen=True):
    """A rollback handler returned."""

    key: str


class Return(Request, frozen=True):
    """The author's function returned."""

    output: Json


class Raise(Request, frozen=True):
    """The author's function raised, and nothing is left to roll back."""

    failure: Failure


CodeCommand: TypeAlias = (
    StepReturned
    | StepRaised
    | Open
    | OpenCompleted
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


# -- messages


class Activate(HostMessage, frozen=True):
    """Activate a run: replay its code against these entries."""

    workflow: str
    instance_id: str
    run_number: int
    params: Json
    seed: str
    started_at_ms: int
    #: Sequence of the latest event that this message includes.
    seen: int
    #: Sequence of the latest event that the code had seen when it last logged.
    logged_at: int
    #: Number of lines that it has logged since that event.
    lines: int
    entries: dict[str, Entry]
    #: Maximum number of entries.
    entries_max: int
    #: Ordinals in the previous run of entries that a retry executes again.
    ordinals: dict[str, int]
    #: Ordinal of the first other new entry.
    first_ordinal: int
    rollback: Failure | None = None
    #: Sequence of the event that canceled it.
    cancelled_at: int | None = None
    #: Limits of its code; None for the defaults.
    limits: Limits | None = None
    #: What creates its hooks; None if no key is configured.
    hooks: HookOrigin | None = None
    #: Its trace context, as text.
    trace: str = ""


class Resolved(HostMessage, frozen=True):
    """An entry has a durable result."""

    key: str
    sequence: int
    attempts: int = 0
    result: Json | None = None
    failure: Failure | None = None
    #: Whether it has a rollback handler.
    rollback: bool = False


class Advanced(HostMessage, frozen=True):
    """A loop's commit is durable, and iterations before `trim_before` are dropped."""

    key: str
    sequence: int
    trim_before: int


class Cancelled(HostMessage, frozen=True):
    """The cancellation of the run is durable."""

    sequence: int


class HandlerDone(HostMessage, frozen=True):
    """It is durable that an entry is rolled back or that its handler failed finally."""

    key: str
    sequence: int


class RetrySteps(HostMessage, frozen=True):
    """Retry steps: attempt numbers by key."""

    attempts: dict[str, int]
    sequence: int


class RetryHandler(HostMessage, frozen=True):
    """Retry the rollback handler of a step."""

    key: str
    attempt: int


ToHost: TypeAlias = (
    Activate
    | Resolved
    | Advanced
    | Cancelled
    | HandlerDone
    | RetrySteps
    | RetryHandler
    | AbandonAttempt
    | PollProgress
    | AllowAttempts
    | Evict
    | Ping
)

FromHost: TypeAlias = Requested[CodeCommand] | AttemptStarted | YieldBack | Pong


def message_for_host(  # noqa: C901, PLR0911, one per event
    run: CodeRun, event: RunEvent, activation: int, sequence: int
) -> HostMessage | None:
    """Return what the host has to know about an event that was applied, or None."""
    match event:
        case StepCompleted(key, attempt=attempt, result=result, rollback=rollback):
            return Resolved(activation, key, sequence, attempt, result, rollback=rollback)
        case StepFailed(key, attempt=attempt, failure=failure):
            if event.retry_at_ms is not None:
                return None
            return Resolved(activation, key, sequence, attempt, None, failure)
        case StepsRetried(keys):
            attempts = {key: run.entries[key].attempts + 1 for key in keys}
            return RetrySteps(activation, attempts, sequence)
        case EntryCompleted(key, result):
            return Resolved(activation, key, sequence, 0, result)
        case EntryErrored(key, failure):
            return Resolved(activation, key, sequence, 0, None, failure)
        case LoopAdvanced(key, trim_before=before):
            return Advanced(activation, key, sequence, before)
        case CancelRequested():
            return Cancelled(activation, sequence)
        case EntryRolledBack(key):
            return HandlerDone(activation, key, sequence)
        case (
            LogWritten()
            | EntryOpened()
            | StepStarted()
            | EntriesCancelled()
            | EventReceived()
            | PostsQueued()
            | PostsSent()
            | RollbackStarted()
            | RollbackFailed()
            | HostLost()
            | RunStarted()
            | RunSuspended()
            | RunPaused()
            | RunResumed()
            | RunMoved()
            | RunTerminated()
            | RunCompleted()
            | RunErrored()
            | SlotAsked()
            | SlotGranted()
            | OfGraph()
            | OfSlots()
        ):
            return None


def activate(
    activation: int, run: CodeRun, entries_max: int, hooks: HookOrigin | None = None
) -> Activate:
    """Return the activation of a run: a copy, because it is sent later, once it is durable."""
    return Activate(
        activation,
        run.workflow,
        run.instance_id,
        run.run_number,
        run.params,
        run.seed,
        run.started_at_ms,
        max(run.resolved, run.retried),
        run.logged_at,
        run.lines,
        {key: _copy(entry) for key, entry in run.entries.items()},
        entries_max,
        run.ordinals,
        run.first_ordinal,
        run.rollback,
        None if run.cancelling is None else run.cancelling.sequence,
        run.limits,
        hooks,
        run.context.text,
    )


def _copy(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, commits=dict(entry.commits))
