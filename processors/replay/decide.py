"""Decides what becomes of a run: what its code asks for, what time brings, what others send.

Pure: (run, what is asked, facts) -> events or a rejection; the caller applies the events before it
asks again. What comes too late (from an attempt that has timed out, a run that was restarted, a
branch that was cancelled) is rejected as STALE and changes nothing.
"""

from collections.abc import Callable
from typing import Any, Final

from headwater.processors.replay.beginning import begin
from headwater.processors.replay.cancelling import cancel, cut_off
from headwater.processors.replay.commands import (
    Advance,
    BeginRollback,
    Cancel,
    Close,
    Fail,
    Log,
    Losers,
    Mark,
    Open,
    Raise,
    Return,
    RolledBack,
    Suspend,
)
from headwater.processors.replay.ends import end_children, ending, failed, started_again
from headwater.processors.replay.entry_keys import keys_at_or_beneath
from headwater.processors.replay.retrying import retry
from headwater.processors.replay.rolling_back import (
    begin_rollback,
    left_undone,
    rollback_raised,
    rolled_back,
)
from headwater.processors.replay.state import CodeRun
from headwater.processors.replay.waits import (
    caught_up,
    due,
    is_out_of_time,
    met,
    settle,
    slept,
    too_long,
)
from headwater.processors.runs import decide as runs
from headwater.processors.runs.decisions import STALE, Decision, Facts, Rejection
from headwater.processors.runs.limits import (
    CLEANUP_MS,
    ENTRIES_MAX,
    SYSTEM,
    TOLD_MAX,
    USUAL,
    too_many_entries,
)
from headwater.processors.runs.outbox import queue
from headwater.processors.runs.requests import (
    HostGone,
    Reached,
    Request,
    RollbackRaised,
    StepRaised,
    StepReturned,
    StepUnderWay,
    Wake,
)
from headwater.processors.runs.retries import retry_at_ms
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
    NoteRefusal,
    Parent,
    PauseRun,
    Post,
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
    SlotCommand,
    StartRun,
    StepCompleted,
    StepFailed,
    StepStarted,
    TerminateRun,
)
from headwater.schemas.statuses import OPEN, EntryKind, RunStatus

#: Tries of a run whose own code, not a step, takes its host with it, before the run is given up.
HOSTS_LOST_MAX: Final = 3
_HOST_LOST_DELAY_MS: Final = 1_000
#: The kind of runs that are decided here.
KIND: Final = "replay"

_UNWANTED: Final = "its parent no longer waits for it"


def decide_command(
    run: CodeRun | None,
    command: RunCommand,
    facts: Facts,
    cleanup_ms: int = CLEANUP_MS,
    limits: Limits = USUAL,
) -> Decision:
    """Decides a command from outside; limits are used if a run begins."""
    if run is None or isinstance(command, StartRun | RestartRun):
        started = started_again(run, runs.begin(run, command, facts, KIND, limits))
        if run is None or isinstance(started, Rejection):
            return started
        return [*started, *left_undone(run)]
    if isinstance(command, CancelRun):
        return cancel(run, command, facts.reached_ms, facts.now_ms + cleanup_ms)
    return _decide_of(run, command, facts, limits)


def _decide_of(  # noqa: PLR0911, PLR0912, C901, one for each command
    run: CodeRun,
    command: SendEvent
    | PauseRun
    | ResumeRun
    | TerminateRun
    | RetryRun
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
            return resumed + caught_up(run, reached_ms)
        case TerminateRun():
            refused = runs.may_end(run, command)
            return refused or [*left_undone(run), *ending(run, RunTerminated(command.reason))]
        case RetryRun():
            return retry(run, command, limits)
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
    run: CodeRun, asked: Request, now_ms: int, entries_max: int = ENTRIES_MAX
) -> Decision:
    """Decides what the run's code, its host or the clock asks for."""
    if run.ended:
        return STALE
    decision = _DECIDERS[type(asked)](run, asked, now_ms)
    if len(run.entries) >= entries_max and decision is not STALE:
        key = _one_more(run, asked)
        if key is not None and _counted(run) >= entries_max:
            failure = Failure(failures.MAX_STEPS_EXCEEDED, too_many_entries(key, entries_max))
            return failed(run, failure)
    return decision


def _received(run: CodeRun, received: EventReceived | Rejection, reached_ms: int) -> Decision:
    if isinstance(received, Rejection):
        return received
    if run.stands_still:
        return [received]
    return [*_slept(run, reached_ms), received, *met(run, received)]


def _slept(run: CodeRun, reached_ms: int) -> list[RunEvent]:
    return [event for _, event in slept(run, reached_ms)]


def _child_finished(run: CodeRun, command: FinishChild, facts: Facts) -> Decision:
    entry = run.entries.get(command.key)
    if run.ended or command.run_number != run.run_number:
        return STALE
    if entry is None or entry.kind is not EntryKind.CHILD or entry.status not in OPEN:
        return STALE
    before = [] if run.stands_still else _slept(run, facts.reached_ms)
    if entry.wake_at_ms is not None and facts.sent_at_ms > entry.wake_at_ms:
        return [*before, EntryErrored(command.key, too_long(entry))]
    if command.failure is None:
        return [*before, EntryCompleted(command.key, command.output or "null")]
    return [*before, EntryErrored(command.key, command.failure)]


def is_stale(run: CodeRun, key: str, attempt: int) -> bool:
    """Whether what an attempt of a step says comes too late."""
    entry = run.entries.get(key)
    if entry is None:
        return attempt != 1
    if entry.kind is not EntryKind.DO or entry.status not in OPEN:
        return True
    return attempt != entry.attempts + 1


def _step_under_way(run: CodeRun, asked: StepUnderWay, _: int) -> Decision:
    """Later attempts are known by the event that begins them; what fails is not of interest."""
    step = asked.step
    if asked.attempt != 1 or step.key in run.entries or run.rollback is not None:
        return STALE
    return [
        StepStarted(
            step.key,
            step.name,
            step.ordinal,
            step.at_ms,
            asked.attempt,
            step.max_attempts,
            step.timeout_ms,
        )
    ]


def _step_returned(run: CodeRun, asked: StepReturned, _: int) -> Decision:
    step = asked.step
    # What comes once the rollback has begun would be left out of it.
    if is_stale(run, step.key, asked.attempt) or run.rollback is not None:
        return STALE
    return [
        *queue(run, asked.posts),
        StepCompleted(
            step.key,
            step.name,
            step.ordinal,
            step.at_ms,
            asked.attempt,
            step.max_attempts,
            step.timeout_ms,
            asked.result,
            asked.rollback,
        ),
    ]


def _step_raised(run: CodeRun, asked: StepRaised, now_ms: int) -> Decision:
    step = asked.step
    if is_stale(run, step.key, asked.attempt):
        return STALE
    again = retry_at_ms(asked.policy, asked.attempt, now_ms) if asked.retryable else None
    return [
        StepFailed(
            step.key,
            step.name,
            step.ordinal,
            step.at_ms,
            asked.attempt,
            step.max_attempts,
            step.timeout_ms,
            asked.failure,
            again,
        )
    ]


def _one_more(run: CodeRun, asked: Request) -> str | None:
    """The key of the entry that comes to those that count, if one does."""
    match asked:
        case StepUnderWay() | StepReturned():
            key = asked.step.key
        case Open(kind=kind) | Mark(kind=kind) if kind is not EntryKind.SLEEP:
            key = asked.key
        case _:
            return None
    return None if key in run.entries else key


def _counted(run: CodeRun) -> int:
    return sum(entry.kind is not EntryKind.SLEEP for entry in run.entries.values())


def _open(run: CodeRun, asked: Open, now_ms: int) -> Decision:
    if asked.key in run.entries:
        return STALE
    wake_at_ms = asked.wake_at_ms
    if asked.wait_ms is not None:
        wake_at_ms = now_ms + asked.wait_ms
    child = None
    if asked.kind is EntryKind.CHILD:
        child = Child(asked.child_workflow or "", asked.child_id or "")
    opened = EntryOpened(
        asked.key,
        asked.name,
        asked.kind,
        asked.ordinal,
        wake_at_ms,
        asked.event_types,
        asked.limit,
        child,
        asked.value if asked.kind is EntryKind.LOOP else None,
    )
    return [opened, *_at_once(run, opened, asked, now_ms)]


def _at_once(run: CodeRun, opened: EntryOpened, asked: Open, now_ms: int) -> list[RunEvent]:
    """What an entry that was just opened leads to in the same breath."""
    match opened.kind:
        case EntryKind.SLEEP if (opened.wake_at_ms or 0) <= now_ms:
            return [EntryCompleted(opened.key, "null")]
        case EntryKind.WAIT if run.status is not RunStatus.PAUSED:
            return list[RunEvent](settle(run, opened))
        case EntryKind.CHILD:
            me = Parent(run.workflow, run.instance_id, run.run_number, opened.key)
            command = StartRun(asked.value or "null", me, deployment=run.deployment)
            post = Post(0, asked.child_workflow, asked.child_id, command)
            return queue(run, [post])
        case _:
            return []


def _mark(run: CodeRun, asked: Mark, now_ms: int) -> Decision:
    if asked.key in run.entries:
        return STALE
    result = str(now_ms) if asked.kind is EntryKind.NOW else "null"
    return [
        EntryOpened(asked.key, asked.name, asked.kind, asked.ordinal),
        EntryCompleted(asked.key, result),
    ]


def _close(run: CodeRun, asked: Close, _: int) -> Decision:
    if asked.key not in run.open:
        return STALE
    return [*_lost(run, asked.losers), EntryCompleted(asked.key, asked.result)]


def _fail(run: CodeRun, asked: Fail, _: int) -> Decision:
    if asked.key not in run.open:
        return STALE
    return [*_lost(run, asked.losers), EntryErrored(asked.key, asked.failure)]


def _cancel(run: CodeRun, asked: Cancel, _: int) -> Decision:
    # Its result may have come first: then what is beneath it is over, too.
    if asked.key in run.entries and asked.key not in run.open:
        return STALE
    return _unwanted(run, (asked.key,), asked.steps) or STALE


def _lost(run: CodeRun, losers: Losers | None) -> list[RunEvent]:
    return _unwanted(run, losers.scopes, losers.steps) if losers else []


def _unwanted(run: CodeRun, scopes: tuple[str, ...], steps: tuple[Reached, ...]) -> list[RunEvent]:
    """Cancels what is open at some keys and beneath them."""
    keys = keys_at_or_beneath(run.open, scopes)
    fresh = [step for step in steps if step.key not in run.entries]
    if not keys and not fresh:
        return []
    return [
        *(EntryOpened(step.key, step.name, EntryKind.DO, step.ordinal) for step in fresh),
        *queue(run, end_children(run, keys, _UNWANTED, cancelled=run.cancelling is not None)),
        EntriesCancelled((*keys, *(step.key for step in fresh))),
    ]


def _advance(run: CodeRun, asked: Advance, _: int) -> Decision:
    entry = run.entries.get(asked.key)
    if asked.key not in run.open or entry is None:
        return STALE
    # A replay begins at the latest commit: none may lie between the code and what it is told.
    if run.cancelling is not None and not asked.told:
        return STALE
    return [LoopAdvanced(asked.key, asked.iteration, asked.state, asked.trim_before)]


def _log(run: CodeRun, asked: Log, __: int) -> Decision:
    if asked.once is not None and (asked.once in run.told or len(run.told) >= TOLD_MAX):
        return STALE
    return [
        LogWritten(
            asked.level,
            asked.category,
            asked.message,
            asked.data,
            asked.step_key,
            asked.attempt,
            asked.is_replay,
            asked.once,
            asked.missed,
            asked.seen,
        )
    ]


def _suspend(run: CodeRun, asked: Suspend, _: int) -> Decision:
    if max(run.resolved, run.retried) > asked.seen or run.status is not RunStatus.ACTIVE:
        return STALE
    return [RunSuspended()]


def _return(run: CodeRun, asked: Return, _: int) -> Decision:
    if run.cancelling is not None:
        # It has returned without knowing: what it has done is to be undone all the same.
        return cut_off(run, "the code had returned before it was told")
    return ending(run, RunCompleted(asked.output))


def _raise(run: CodeRun, asked: Raise, _: int) -> Decision:
    return failed(run, run.rollback or asked.failure)


def _host_gone(run: CodeRun, asked: HostGone, now_ms: int) -> Decision:
    lost = run.hosts_lost + 1
    if lost > HOSTS_LOST_MAX:
        failure = Failure(
            failures.HOST_LOST,
            f"{asked.reason}, {lost} times in a row while the workflow's own code ran; "
            "do what takes long, blocks or may crash inside step.do",
        )
        return failed(run, failure)
    message = f"{asked.reason}; tried again in {_HOST_LOST_DELAY_MS * lost // 1_000} s"
    return [
        LogWritten("error", SYSTEM, message),
        HostLost(asked.reason, now_ms + _HOST_LOST_DELAY_MS * lost),
    ]


def _wake(run: CodeRun, asked: Wake, _: int) -> Decision:
    if run.stands_still:
        return STALE
    if is_out_of_time(run, asked.until_ms):
        return cut_off(run, "the code took too long to clean up")
    events, late_children = due(run, asked.until_ms, complete=asked.complete)
    if not events:
        return STALE
    return [*queue(run, end_children(run, late_children, "it took too long")), *events]


_DECIDERS: Final[dict[type, Callable[[CodeRun, Any, int], Decision]]] = {
    StepUnderWay: _step_under_way,
    StepReturned: _step_returned,
    StepRaised: _step_raised,
    Open: _open,
    Mark: _mark,
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
    HostGone: _host_gone,
    Wake: _wake,
}
