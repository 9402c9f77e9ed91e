"""Apply events to a code workflow's run: live, and for readers of its history.

The state is changed in place and returned. An event that does not fit the state is a bug in
Headwater, because `decide` wrote it: InvariantViolation.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headwater.processors.code.state import (
    CONTAINERS,
    UNRESOLVED,
    Cancelling,
    CodeRun,
    Entry,
    keys_at_or_under,
    trim,
)
from headwater.processors.runs import appliers as runs
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    CancelRequested,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    HistoryAppended,
    HostLost,
    LogEvent,
    LogWritten,
    LoopAdvanced,
    PostsSent,
    Reopened,
    RollbackFailed,
    RollbackStarted,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
)
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus

_PENDING, _WAITING = EntryStatus.PENDING, EntryStatus.WAITING

#: Every transition of an entry: in this status, this event leads to one of those statuses; fields
#: of the event decide which. None is the status before the first record: a short step has no entry
#: until its first attempt has ended. A timed-out attempt may still complete while the step waits
#: for the next one.
TRANSITIONS: Final[dict[type, dict[EntryStatus | None, frozenset[EntryStatus]]]] = {
    EntryOpened: {None: frozenset({_PENDING, _WAITING})},
    StepStarted: {None: frozenset({_PENDING})},
    StepCompleted: dict.fromkeys((None, _PENDING, _WAITING), frozenset({EntryStatus.COMPLETED})),
    StepFailed: dict.fromkeys(
        (None, _PENDING, _WAITING), frozenset({_WAITING, EntryStatus.ERRORED})
    ),
    StepsRetried: {_WAITING: frozenset({_PENDING})},
    EntryCompleted: dict.fromkeys((_PENDING, _WAITING), frozenset({EntryStatus.COMPLETED})),
    EntryErrored: dict.fromkeys((_PENDING, _WAITING), frozenset({EntryStatus.ERRORED})),
    EntriesCancelled: dict.fromkeys((_PENDING, _WAITING), frozenset({EntryStatus.CANCELLED})),
}


# -- applying: `apply(run, event, at_ms)`

#: Kinds that wait for something outside the code; the others wait for the entries under them.
_WAITS: Final = frozenset({EntryKind.SLEEP, EntryKind.WAIT, EntryKind.CHILD})


def begin(before: CodeRun | None, record: HistoryAppended) -> CodeRun:
    """Return the state of a new run, with the entries that it keeps of a run that it retries."""
    run, event = runs.begin(CodeRun, before, record)
    if before is not None and event.kept is not None:
        _take_over(run, before, event.kept, event.reopened)
    return run


def _take_over(
    run: CodeRun, before: CodeRun, kept: tuple[str, ...], reopened: tuple[Reopened, ...]
) -> None:
    """Copy entries and mailbox from `before`, which stays unchanged for its readers."""
    by_key = {entry.key: entry for entry in reopened}
    known = {*kept, *by_key}
    if not known <= before.entries.keys():
        raise InvariantViolation(
            f"expected run {run.run_number} of {run.workflow}/{run.instance_id} to keep entries of "
            f"the run before it, found {', '.join(sorted(known - before.entries.keys()))}"
        )
    for key, entry in before.entries.items():
        if key in known:
            run.entries[key] = _kept(entry, before.sequence)
    for key, reopened_as in by_key.items():
        entry = run.entries[key]
        if key not in before.left or reopened_as.iteration is not None:
            entry.sequence = UNRESOLVED
        _open_again(entry, reopened_as, run.updated_at_ms)
    repeated = [key for key in before.entries if key not in known or key in by_key]
    ended = [key for key in repeated if key not in before.left]
    for key in _reached_after(before.entries, ended) & known:
        run.entries[key].excused = True
    run.open = {key: None for key, entry in run.entries.items() if entry.status in OPEN}
    run.ordinals = {key: old.ordinal for key, old in before.entries.items() if key not in known}
    run.first_ordinal = 1 + max((old.ordinal for old in before.entries.values()), default=-1)
    run.mailbox = list(before.mailbox)


def _reached_after(entries: dict[str, Entry], repeated: list[str]) -> set[str]:
    """Return the entries that may depend on ended entries which are repeated: those reached later.

    Entries under a container do not depend on it, and nothing depends on an entry that was open.
    """
    ended = [key for key in repeated if entries[key].status not in OPEN]
    containers = [key for key in ended if entries[key].kind in CONTAINERS]
    first = min((entries[key].ordinal for key in {*ended}.difference(containers)), default=math.inf)
    after = {key for key, entry in entries.items() if entry.ordinal >= first}
    for container in containers:
        ordinal = entries[container].ordinal
        later = {key for key, entry in entries.items() if entry.ordinal >= ordinal}
        after |= later.difference(keys_at_or_under(entries, [container]))
    return after


def _kept(entry: Entry, sequence: int) -> Entry:
    """Return an entry for the next run, where its result precedes all new events."""
    resolved = entry.sequence != UNRESOLVED
    return msgspec.structs.replace(
        entry,
        sequence=entry.sequence - sequence + UNRESOLVED if resolved else UNRESOLVED,
        commits=dict(entry.commits),
        rollback_attempts=0,
        rollback_at_ms=0,
    )


def _open_again(entry: Entry, reopened: Reopened, at_ms: int) -> None:
    end = reopened.iteration
    entry.status = _open_status(entry.kind)
    entry.result, entry.failure = None, None
    entry.updated_at_ms, entry.completed_at_ms = at_ms, None
    entry.commits = {n: state for n, state in entry.commits.items() if end is None or n < end}
    entry.iteration = max(entry.commits, default=0)


def apply(run: CodeRun, event: LogEvent, at_ms: int) -> CodeRun:
    """Apply an event other than RunStarted."""
    if isinstance(event, PostsSent):
        runs.posts_sent(run, event)
        return run
    runs.expect_open(run, event)
    applier = _APPLIERS.get(type(event))
    if applier is not None:
        applier(run, event, at_ms)
    else:
        runs.APPLIERS[type(event)](run, event)
    runs.applied(run, event, at_ms)
    return run


#: Statuses after one that an event cannot find.
_NO_STATUS: Final[frozenset[EntryStatus]] = frozenset()


def _expect_transition(run: CodeRun, key: str, event: object, status: EntryStatus) -> None:
    entry = run.entries.get(key)
    before = entry.status if entry else None
    if status not in TRANSITIONS[type(event)].get(before, _NO_STATUS):
        raise InvariantViolation(
            f"expected {type(event).__name__} to find its entry in another status than {before}, "
            f"at {key} in {run.workflow}/{run.instance_id}"
        )


def _resolve(run: CodeRun, entry: Entry, key: str, status: EntryStatus, at_ms: int) -> None:
    """Close an entry at the current sequence, where the code has to see it."""
    entry.status = status
    entry.sequence = run.sequence
    _mark_unseen(run)
    entry.updated_at_ms = entry.completed_at_ms = at_ms
    if entry.kind is EntryKind.DO:
        entry.wake_at_ms = None
    run.open.pop(key, None)
    run.hosts_lost = run.back_at_ms = 0


def _step(run: CodeRun, event: StepStarted | StepCompleted | StepFailed, at_ms: int) -> Entry:
    entry = run.entries.get(event.key)
    if entry is None:
        entry = run.entries[event.key] = Entry(
            name=event.name,
            kind=EntryKind.DO,
            status=EntryStatus.PENDING,
            ordinal=event.ordinal,
            created_at_ms=event.reached_at_ms,
            last_attempt_at_ms=event.reached_at_ms,
            updated_at_ms=at_ms,
        )
    entry.max_attempts = event.max_attempts
    entry.timeout_ms = event.timeout_ms
    return entry


def _step_started(run: CodeRun, event: StepStarted, at_ms: int) -> None:
    _expect_transition(run, event.key, event, EntryStatus.PENDING)
    _step(run, event, at_ms)
    run.open[event.key] = None


def _step_completed(run: CodeRun, event: StepCompleted, at_ms: int) -> None:
    _expect_transition(run, event.key, event, EntryStatus.COMPLETED)
    entry = _step(run, event, at_ms)
    entry.attempts = event.attempt
    entry.result = event.result
    entry.failure = None
    entry.rollback = event.rollback
    _resolve(run, entry, event.key, EntryStatus.COMPLETED, at_ms)
    runs.move(run, event)


def _step_failed(run: CodeRun, event: StepFailed, at_ms: int) -> None:
    last = event.retry_at_ms is None
    _expect_transition(run, event.key, event, EntryStatus.ERRORED if last else EntryStatus.WAITING)
    entry = _step(run, event, at_ms)
    entry.attempts = event.attempt
    entry.failure = event.failure
    if last:
        _resolve(run, entry, event.key, EntryStatus.ERRORED, at_ms)
        runs.move(run, event)
    else:
        entry.status = EntryStatus.WAITING
        entry.wake_at_ms = event.retry_at_ms
        entry.updated_at_ms = at_ms
        run.open[event.key] = None


def _steps_retried(run: CodeRun, event: StepsRetried, at_ms: int) -> None:
    for key in event.keys:
        _expect_transition(run, key, event, EntryStatus.PENDING)
    runs.move(run, event)
    for key in event.keys:
        entry = run.entries[key]
        entry.status = EntryStatus.PENDING
        entry.wake_at_ms = None
        entry.updated_at_ms = entry.last_attempt_at_ms = at_ms
    run.retried = run.sequence


def _open_status(kind: EntryKind) -> EntryStatus:
    return EntryStatus.WAITING if kind in _WAITS else EntryStatus.PENDING


def _entry_opened(run: CodeRun, event: EntryOpened, at_ms: int) -> None:
    status = _open_status(event.kind)
    _expect_transition(run, event.key, event, status)
    run.entries[event.key] = Entry(
        name=event.name,
        kind=event.kind,
        status=status,
        ordinal=event.ordinal,
        created_at_ms=at_ms,
        updated_at_ms=at_ms,
        wake_at_ms=event.wake_at_ms,
        event_types=event.event_types,
        limit=event.limit,
        child=event.child,
        commits={} if event.state is None else {0: event.state},
    )
    run.open[event.key] = None


def _entry_completed(run: CodeRun, event: EntryCompleted, at_ms: int) -> None:
    _expect_transition(run, event.key, event, EntryStatus.COMPLETED)
    entry = run.entries[event.key]
    entry.result = event.result
    if event.consumed:
        taken = set(event.consumed)
        run.mailbox = [received for received in run.mailbox if received.event_id not in taken]
    _resolve(run, entry, event.key, EntryStatus.COMPLETED, at_ms)
    runs.move(run, event)


def _entry_errored(run: CodeRun, event: EntryErrored, at_ms: int) -> None:
    _expect_transition(run, event.key, event, EntryStatus.ERRORED)
    entry = run.entries[event.key]
    entry.failure = event.failure
    _resolve(run, entry, event.key, EntryStatus.ERRORED, at_ms)
    runs.move(run, event)


def _entries_cancelled(run: CodeRun, event: EntriesCancelled, at_ms: int) -> None:
    for key in event.keys:
        _expect_transition(run, key, event, EntryStatus.CANCELLED)
    for key in event.keys:
        entry = run.entries[key]
        entry.status = EntryStatus.CANCELLED
        if entry.kind is EntryKind.DO:
            entry.wake_at_ms = None
        entry.updated_at_ms = entry.completed_at_ms = at_ms
        run.open.pop(key, None)
        if event.ended:
            run.left[key] = None
        else:
            entry.sequence = run.sequence


def _known(run: CodeRun, event: LoopAdvanced | EntryRolledBack | RollbackFailed) -> Entry:
    entry = run.entries.get(event.key)
    if entry is None:
        raise InvariantViolation(
            f"expected {type(event).__name__} to find an entry at {event.key} in "
            f"{run.workflow}/{run.instance_id}, found none"
        )
    return entry


def _loop_advanced(run: CodeRun, event: LoopAdvanced, at_ms: int) -> None:
    entry = _known(run, event)
    entry.iteration = max(entry.iteration, event.iteration)
    entry.commits[event.iteration] = event.state
    if entry.status in OPEN:
        entry.sequence = run.sequence
    entry.updated_at_ms = at_ms
    _mark_unseen(run)
    if event.trim_before:
        for key in trim(run.entries, event.key, event.trim_before):
            run.open.pop(key, None)


def _cancel_requested(run: CodeRun, event: CancelRequested, _: int) -> None:
    runs.move(run, event)
    run.cancelling = Cancelling(run.sequence, event.reason, event.until_ms)
    _mark_unseen(run)


def _rollback_started(run: CodeRun, event: RollbackStarted, _: int) -> None:
    runs.move(run, event)
    run.rollback = event.failure


def _entry_rolled_back(run: CodeRun, event: EntryRolledBack, _: int) -> None:
    _known(run, event).rolled_back = True
    _mark_unseen(run)


def _rollback_failed(run: CodeRun, event: RollbackFailed, _: int) -> None:
    entry = _known(run, event)
    entry.rollback_attempts = event.attempt
    entry.rollback_at_ms = event.retry_at_ms


def _host_lost(run: CodeRun, event: HostLost, _: int) -> None:
    run.hosts_lost += 1
    run.back_at_ms = event.retry_at_ms


def _mark_unseen(run: CodeRun) -> None:
    """Record that the code has to see this event."""
    run.resolved = run.sequence


def _log_written(run: CodeRun, event: LogWritten, _: int) -> None:
    """Count the lines of the code, because a replay writes them again. Lines are not kept."""
    if event.once is not None:
        run.logged_once[event.once] = None
    for key in event.missed:
        if key in run.entries:
            run.entries[key].excused = True
    if event.seen is None:
        return
    if event.seen > run.logged_at:
        run.logged_at, run.lines = event.seen, 0
    # A loop starts its replay at its latest commit, ahead of entries next to it.
    run.lines += event.seen == run.logged_at


_APPLIERS: Final[dict[type, Callable[[CodeRun, Any, int], None]]] = {
    LogWritten: _log_written,
    StepStarted: _step_started,
    StepCompleted: _step_completed,
    StepFailed: _step_failed,
    StepsRetried: _steps_retried,
    EntryOpened: _entry_opened,
    EntryCompleted: _entry_completed,
    EntryErrored: _entry_errored,
    EntriesCancelled: _entries_cancelled,
    LoopAdvanced: _loop_advanced,
    CancelRequested: _cancel_requested,
    RollbackStarted: _rollback_started,
    EntryRolledBack: _entry_rolled_back,
    RollbackFailed: _rollback_failed,
    HostLost: _host_lost,
}
