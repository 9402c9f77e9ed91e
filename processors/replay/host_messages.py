"""What owners and the host of workflow code send each other."""

from typing import TypeAlias

import msgspec

from headwater.processors.replay.commands import CodeCommand
from headwater.processors.replay.state import CodeRun, Entry
from headwater.processors.runs.host_messages import (
    Allow,
    Ask,
    Drop,
    Forget,
    HandBack,
    HostMessage,
    Ping,
    Pong,
    Requested,
    Started,
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


class Activate(HostMessage, frozen=True):
    """Take a run in hand: replay its code against these entries."""

    workflow: str
    instance_id: str
    run_number: int
    params: Json
    seed: str
    started_at_ms: int
    #: The latest event that it holds.
    seen: int
    #: The latest event that the code had seen when it logged last, and its lines since then.
    logged_at: int
    lines: int
    entries: dict[str, Entry]
    #: How many entries it may have.
    entries_max: int
    #: Of entries that a retry does again, their ordinals; and that of the first other new one.
    ordinals: dict[str, int]
    first_ordinal: int
    rollback: Failure | None = None
    #: The event by which it was cancelled.
    cancelled_at: int | None = None
    #: What its code is held to; None for the usual limits.
    limits: Limits | None = None


class Resolved(HostMessage, frozen=True):
    """An entry has its result, and it is durable."""

    key: str
    sequence: int
    attempts: int = 0
    result: Json | None = None
    failure: Failure | None = None
    #: Whether it can be rolled back.
    rollback: bool = False


class Advanced(HostMessage, frozen=True):
    """A loop's commit is durable, and iterations before some are forgotten."""

    key: str
    sequence: int
    trim_before: int


class Cancelled(HostMessage, frozen=True):
    """The run is cancelled, and that is durable."""

    sequence: int


class HandlerDone(HostMessage, frozen=True):
    """That an entry is rolled back, or that its handler is given up, is durable."""

    key: str
    sequence: int


class Again(HostMessage, frozen=True):
    """Try steps again: the numbers of their attempts, by key."""

    attempts: dict[str, int]
    sequence: int


class HandlerAgain(HostMessage, frozen=True):
    """Try the rollback handler of a step again."""

    key: str
    attempt: int


ToHost: TypeAlias = (
    Activate
    | Resolved
    | Advanced
    | Cancelled
    | HandlerDone
    | Again
    | HandlerAgain
    | Drop
    | Ask
    | Allow
    | Forget
    | Ping
)

FromHost: TypeAlias = Requested[CodeCommand] | Started | HandBack | Pong


def message_for_host(  # noqa: C901, PLR0911, one for each event
    run: CodeRun, event: RunEvent, activation: int, sequence: int
) -> HostMessage | None:
    """What the code of a run has to see of an event that was applied."""
    match event:
        case StepCompleted(key, attempt=attempt, result=result, rollback=rollback):
            return Resolved(activation, key, sequence, attempt, result, rollback=rollback)
        case StepFailed(key, attempt=attempt, failure=failure):
            if event.retry_at_ms is not None:
                return None
            return Resolved(activation, key, sequence, attempt, None, failure)
        case StepsRetried(keys):
            attempts = {key: run.entries[key].attempts + 1 for key in keys}
            return Again(activation, attempts, sequence)
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
            | RunTerminated()
            | RunCompleted()
            | RunErrored()
            | SlotAsked()
            | SlotGranted()
            | OfGraph()
            | OfSlots()
        ):
            return None


def activate(activation: int, run: CodeRun, entries_max: int) -> Activate:
    """The activation of a run as it stands: a copy, because it is sent when it is durable."""
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
    )


def _copy(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, commits=dict(entry.commits))
