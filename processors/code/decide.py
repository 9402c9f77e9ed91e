"""Decide commands, requests of the code, timeouts and messages for a run of a code workflow.

Pure: (run, command or request, facts) -> events or a rejection. The caller applies the events
before it decides anything else. A request that arrives too late (from an attempt that timed out, a
run that was restarted, a branch that was canceled) is rejected as STALE and changes nothing.
"""

from collections.abc import Callable
from typing import Any, Final

from headwater.processors.code.host_messages import (
    Advance,
    BeginRollback,
    Cancel,
    Close,
    Fail,
    Log,
    Losers,
    Open,
    OpenCompleted,
    Raise,
    Return,
    RolledBack,
    Suspend,
)
from headwater.processors.code.lifecycle import (
    begin,
    begin_rollback,
    cancel,
    counted_entries,
    counted_key,
    end_children,
    end_run,
    fail_run,
    rollback_raised,
    rolled_back,
    terminate_cancelled,
    unfinished_rollback_log,
    with_children_ended,
)
from headwater.processors.code.retrying import retry
from headwater.processors.code.state import CodeRun, keys_at_or_under
from headwater.processors.code.waits import (
    catch_up,
    cleanup_expired,
    complete_waits,
    due_events,
    ended_sleeps,
    match_wait,
    too_long,
)
from headwater.processors.runs import decide as runs
from headwater.processors.runs.decisions import (
    STALE,
    Decision,
    Facts,
    HostFailed,
    Reached,
    Rejection,
    Request,
    RollbackRaised,
    StepRaised,
    StepReturned,
    StepUnderWay,
    Wake,
    retry_at_ms,
)
from headwater.processors.runs.limits import (
    CLEANUP_MS,
    DEFAULT_LIMITS,
    ENTRIES_MAX,
    LOGGED_ONCE_MAX,
    SYSTEM,
    too_many_entries,
)
from headwater.processors.runs.outbox import queue, start_child
from headwater.processors.runs.slots import no_slots
from headwater.schemas import failures
from headwater.schemas.history import (
    ActivateJob,
    AskSlot,
    CancelRun,
    Child,
    CompleteJob,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EventReceived,
    ExtendJob,
    FailJob,
    Failure,
    FinishChild,
    GrantSlot,
    HostLost,
    JobCommand,
    Limits,
    LogWritten,
    LoopAdvanced,
    MigrateRun,
    NoteRefusal,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    ReturnSlot,
    RunCommand,
    RunCompleted,
    RunEvent,
    RunSuspended,
    RunTerminated,
    SendEvent,
    SetBranchOutput,
    SlotCommand,
    StartRun,
    StepCompleted,
    StepFailed,
    StepStarted,
    TerminateRun,
)
from headwater.schemas.statuses import OPEN, EntryKind, RunStatus

#: How often a run's own code, outside any step, may crash its host in a row before the run fails.
HOSTS_LOST_MAX: Final = 3
_HOST_LOST_DELAY_MS: Final = 1_000
#: Kind of the runs that are decided here.
KIND: Final = "replay"

_NOT_AWAITED: Final = "its parent no longer waits for it"


def decide_command(
    run: CodeRun | None,
    command: RunCommand,
    facts: Facts,
    cleanup_ms: int = CLEANUP_MS,
    limits: Limits = DEFAULT_LIMITS,
) -> Decision:
    """Decide a command. `limits` apply if it starts a run."""
    if run is None or isinstance(command, StartRun | RestartRun):
        decision = with_children_ended(run, runs.begin(run, command, facts, KIND, limits))
        if run is None or isinstance(decision, Rejection):
            return decision
        return [*decision, *unfinished_rollback_log(run)]
    if isinstance(command, CancelRun):
        return cancel(run, command, facts.reached_ms, facts.now_ms + cleanup_ms)
    return _decide_by_type(run, command, facts, limits)


def _decide_by_type(  # noqa: PLR0911, PLR0912, C901, one per command
    run: CodeRun,
    command: SendEvent
    | PauseRun
    | ResumeRun
    | TerminateRun
    | RetryRun
    | SetBranchOutput
    | MigrateRun
    | FinishChild
    | NoteRefusal
    | JobCommand
    | SlotCommand,
    facts: Facts,
    limits: Limits,
) -> Decision:
    reached_ms = facts.reached_ms
    match command:
        case SendEvent():
            return _received(
                run, runs.send_event(run, command, facts.sent_at_ms, limits), reached_ms
            )
        case PauseRun():
            return runs.pause(run, command)
        case ResumeRun():
            resumed = runs.resume(run, command)
            if isinstance(resumed, Rejection) or run.waits_for_slot:
                return resumed
            return resumed + catch_up(run, reached_ms)
        case TerminateRun():
            refused = runs.may_end(run, command)
            return refused or [
                *unfinished_rollback_log(run),
                *end_run(run, RunTerminated(command.reason)),
            ]
        case RetryRun():
            return retry(run, command, limits)
        case SetBranchOutput() | MigrateRun():
            return runs.no_graph(run)
        case FinishChild():
            return _child_finished(run, command, facts)
        case NoteRefusal():
            return runs.note_refusal(run, command)
        case GrantSlot():
            return begin(run, command, reached_ms)
        case AskSlot() | ReturnSlot():
            return no_slots(run)
        case ActivateJob() | CompleteJob() | FailJob() | ExtendJob():
            return runs.no_job(run)


def decide_request(
    run: CodeRun, request: Request, now_ms: int, entries_max: int = ENTRIES_MAX
) -> Decision:
    """Decide a request of the run's code, its host or the clock."""
    if run.ended:
        return STALE
    decision = _DECIDERS[type(request)](run, request, now_ms)
    if len(run.entries) >= entries_max and decision is not STALE:
        key = counted_key(run, request)
        if key is not None and counted_entries(run) >= entries_max:
            failure = Failure(failures.MAX_STEPS_EXCEEDED, too_many_entries(key, entries_max))
            return fail_run(run, failure)
    return decision


def _received(run: CodeRun, received: EventReceived | Rejection, reached_ms: int) -> Decision:
    if isinstance(received, Rejection):
        return received
    if run.is_halted:
        return [received]
    return [*_ended_sleeps(run, reached_ms), received, *match_wait(run, received)]


def _ended_sleeps(run: CodeRun, reached_ms: int) -> list[RunEvent]:
    return [event for _, event in ended_sleeps(run, reached_ms)]


def _child_finished(run: CodeRun, command: FinishChild, facts: Facts) -> Decision:
    entry = run.entries.get(command.key)
    if run.ended or command.run_number != run.run_number:
        return STALE
    if entry is None or entry.kind is not EntryKind.CHILD or entry.status not in OPEN:
        return STALE
    before = [] if run.is_halted else _ended_sleeps(run, facts.reached_ms)
    if entry.wake_at_ms is not None and facts.sent_at_ms > entry.wake_at_ms:
        return [*before, EntryErrored(command.key, too_long(entry))]
    if command.failure is None:
        return [*before, EntryCompleted(command.key, command.output or "null")]
    return [*before, EntryErrored(command.key, command.failure)]


def is_stale(run: CodeRun, key: str, attempt: int) -> bool:
    """Return whether the outcome of an attempt of a step arrives too late to count."""
    entry = run.entries.get(key)
    if entry is None:
        return attempt != 1
    if entry.kind is not EntryKind.DO or entry.status not in OPEN:
        return True
    return attempt != entry.attempts + 1


def _step_under_way(run: CodeRun, request: StepUnderWay, _: int) -> Decision:
    """Start the entry of a first attempt; the events that start later attempts record those."""
    step = request.step
    if request.attempt != 1 or step.key in run.entries or run.rollback is not None:
        return STALE
    return [
        StepStarted(
            step.key,
            step.name,
            step.ordinal,
            step.at_ms,
            request.attempt,
            step.max_attempts,
            step.timeout_ms,
        )
    ]


def _step_returned(run: CodeRun, request: StepReturned, _: int) -> Decision:
    step = request.step
    # A result that arrives after the rollback began would not be rolled back.
    if is_stale(run, step.key, request.attempt) or run.rollback is not None:
        return STALE
    return [
        *queue(run, request.posts),
        StepCompleted(
            step.key,
            step.name,
            step.ordinal,
            step.at_ms,
            request.attempt,
            step.max_attempts,
            step.timeout_ms,
            request.result,
            request.rollback,
        ),
    ]


def _step_raised(run: CodeRun, request: StepRaised, now_ms: int) -> Decision:
    step = request.step
    if is_stale(run, step.key, request.attempt):
        return STALE
    retry_ms = retry_at_ms(request.policy, request.attempt, now_ms) if request.retryable else None
    return [
        StepFailed(
            step.key,
            step.name,
            step.ordinal,
            step.at_ms,
            request.attempt,
            step.max_attempts,
            step.timeout_ms,
            request.failure,
            retry_ms,
        )
    ]


def _open(run: CodeRun, request: Open, now_ms: int) -> Decision:
    if request.key in run.entries:
        return STALE
    wake_at_ms = request.wake_at_ms
    if request.wait_ms is not None:
        wake_at_ms = now_ms + request.wait_ms
    child = None
    if request.kind is EntryKind.CHILD:
        child = Child(request.child_workflow or "", request.child_id or "")
    opened = EntryOpened(
        request.key,
        request.name,
        request.kind,
        request.ordinal,
        wake_at_ms,
        request.event_types,
        request.limit,
        child,
        request.value if request.kind is EntryKind.LOOP else None,
    )
    return [opened, *_immediate_events(run, opened, request, now_ms)]


def _immediate_events(
    run: CodeRun, opened: EntryOpened, request: Open, now_ms: int
) -> list[RunEvent]:
    """Return the events that follow in the same decision from an entry that was just opened."""
    match opened.kind:
        case EntryKind.SLEEP if (opened.wake_at_ms or 0) <= now_ms:
            return [EntryCompleted(opened.key, "null")]
        case EntryKind.WAIT if run.status is not RunStatus.PAUSED:
            return list[RunEvent](complete_waits(run, opened))
        case EntryKind.CHILD if opened.child is not None:
            post = start_child(run, opened.child, request.value or "null", opened.key)
            if isinstance(post, Failure):
                return [EntryErrored(opened.key, post)]
            return queue(run, [post])
        case _:
            return []


def _open_completed(run: CodeRun, request: OpenCompleted, now_ms: int) -> Decision:
    if request.key in run.entries:
        return STALE
    result = str(now_ms) if request.kind is EntryKind.NOW else "null"
    return [
        EntryOpened(request.key, request.name, request.kind, request.ordinal),
        EntryCompleted(request.key, result),
    ]


def _close(run: CodeRun, request: Close, _: int) -> Decision:
    if request.key not in run.open:
        return STALE
    return [*_cancel_losers(run, request.losers), EntryCompleted(request.key, request.result)]


def _fail(run: CodeRun, request: Fail, _: int) -> Decision:
    if request.key not in run.open:
        return STALE
    return [*_cancel_losers(run, request.losers), EntryErrored(request.key, request.failure)]


def _cancel(run: CodeRun, request: Cancel, _: int) -> Decision:
    # If its result was recorded first, the entries under it have ended as well.
    if request.key in run.entries and request.key not in run.open:
        return STALE
    return _cancel_under(run, (request.key,), request.steps) or STALE


def _cancel_losers(run: CodeRun, losers: Losers | None) -> list[RunEvent]:
    return _cancel_under(run, losers.scopes, losers.steps) if losers else []


def _cancel_under(
    run: CodeRun, scopes: tuple[str, ...], steps: tuple[Reached, ...]
) -> list[RunEvent]:
    """Cancel the open entries at these keys and under them."""
    keys = keys_at_or_under(run.open, scopes)
    unrecorded = [step for step in steps if step.key not in run.entries]
    if not keys and not unrecorded:
        return []
    return [
        *(EntryOpened(step.key, step.name, EntryKind.DO, step.ordinal) for step in unrecorded),
        *queue(run, end_children(run, keys, _NOT_AWAITED, cancelled=run.cancelling is not None)),
        EntriesCancelled((*keys, *(step.key for step in unrecorded))),
    ]


def _advance(run: CodeRun, request: Advance, _: int) -> Decision:
    entry = run.entries.get(request.key)
    if request.key not in run.open or entry is None:
        return STALE
    # A replay starts at the latest commit. A commit between a cancellation and the iteration that
    # observes it would hide the cancellation from the replay.
    if run.cancelling is not None and not request.knows_cancelled:
        return STALE
    return [LoopAdvanced(request.key, request.iteration, request.state, request.trim_before)]


def _log(run: CodeRun, request: Log, __: int) -> Decision:
    if request.once is not None and (
        request.once in run.logged_once or len(run.logged_once) >= LOGGED_ONCE_MAX
    ):
        return STALE
    return [
        LogWritten(
            request.level,
            request.category,
            request.message,
            request.data,
            request.step_key,
            request.attempt,
            request.is_replay,
            request.once,
            request.missed,
            request.seen,
        )
    ]


def _suspend(run: CodeRun, request: Suspend, _: int) -> Decision:
    if max(run.resolved, run.retried) > request.seen or run.status is not RunStatus.ACTIVE:
        return STALE
    return [RunSuspended()]


def _return(run: CodeRun, request: Return, _: int) -> Decision:
    if run.cancelling is not None:
        # The code returned before it saw the cancellation: its steps are rolled back anyway.
        return terminate_cancelled(run, "the code had returned before it saw the cancellation")
    return end_run(run, RunCompleted(request.output))


def _raise(run: CodeRun, request: Raise, _: int) -> Decision:
    return fail_run(run, run.rollback or request.failure)


def _host_failed(run: CodeRun, request: HostFailed, now_ms: int) -> Decision:
    losses = run.hosts_lost + 1
    if losses > HOSTS_LOST_MAX:
        failure = Failure(
            failures.HOST_LOST,
            f"{request.reason}, {losses} times in a row while the workflow's own code ran; "
            "do what takes long, blocks or may crash inside step.do",
        )
        return fail_run(run, failure)
    message = f"{request.reason}; retried in {_HOST_LOST_DELAY_MS * losses // 1_000} s"
    return [
        LogWritten("error", SYSTEM, message),
        HostLost(request.reason, now_ms + _HOST_LOST_DELAY_MS * losses),
    ]


def _wake(run: CodeRun, request: Wake, _: int) -> Decision:
    if run.is_halted:
        return STALE
    if cleanup_expired(run, request.until_ms):
        return terminate_cancelled(run, "the code took too long to clean up")
    events, late_children = due_events(run, request.until_ms, complete=request.complete)
    if not events:
        return STALE
    return [*queue(run, end_children(run, late_children, "it took too long")), *events]


_DECIDERS: Final[dict[type, Callable[[CodeRun, Any, int], Decision]]] = {
    StepUnderWay: _step_under_way,
    StepReturned: _step_returned,
    StepRaised: _step_raised,
    Open: _open,
    OpenCompleted: _open_completed,
    Close: _close,
    Fail: _fail,
    Cancel: _cancel,
    Advance: _advance,
    Log: _log,
    Suspend: _suspend,
    BeginRollback: begin_rollback,
    RolledBack: rolled_back,
    RollbackRaised: rollback_raised,
    Return: _return,
    Raise: _raise,
    HostFailed: _host_failed,
    Wake: _wake,
}
