"""Every move of entries and runs is in a table; what is not raises and changes nothing."""

import pytest

from headwater.processors.code.appliers import TRANSITIONS, apply
from headwater.processors.code.state import CodeRun
from headwater.processors.runs.appliers import move
from headwater.processors.runs.state import TRANSITIONS as RUN_TRANSITIONS
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    CancelRequested,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    OfGraph,
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
from headwater.schemas.statuses import ENDED, EntryKind, EntryStatus, RunStatus
from tests.unit.processors.replay.states import FAILURE, NOW_MS, a_run, an_entry, copy_of

_STEP = ("k", "k", 0, NOW_MS, 1, 3, 600_000)
#: The events of each row, by where they lead.
ENTRY_MOVES: dict[type, dict[EntryStatus, RunEvent]] = {
    EntryOpened: {
        EntryStatus.PENDING: EntryOpened("k", "k", EntryKind.JOIN, 0),
        EntryStatus.WAITING: EntryOpened("k", "k", EntryKind.SLEEP, 0, NOW_MS),
    },
    StepStarted: {EntryStatus.PENDING: StepStarted(*_STEP)},
    StepCompleted: {EntryStatus.COMPLETED: StepCompleted(*_STEP, "1")},
    StepFailed: {
        EntryStatus.WAITING: StepFailed(*_STEP, FAILURE, NOW_MS + 1),
        EntryStatus.ERRORED: StepFailed(*_STEP, FAILURE),
    },
    StepsRetried: {EntryStatus.PENDING: StepsRetried(("k",))},
    EntryCompleted: {EntryStatus.COMPLETED: EntryCompleted("k", "1")},
    EntryErrored: {EntryStatus.ERRORED: EntryErrored("k", FAILURE)},
    EntriesCancelled: {EntryStatus.CANCELLED: EntriesCancelled(("k",))},
}
RUN_EVENTS: dict[type, RunEvent] = {
    RunSuspended: RunSuspended(),
    RunPaused: RunPaused(),
    RunResumed: RunResumed(),
    SlotAsked: SlotAsked("~"),
    SlotGranted: SlotGranted(),
    CancelRequested: CancelRequested("", NOW_MS),
    RollbackStarted: RollbackStarted(FAILURE),
    RunTerminated: RunTerminated(""),
    RunCompleted: RunCompleted("1"),
    RunErrored: RunErrored(FAILURE),
    RunStarted: RunStarted("1", "seed"),
    StepFailed: StepFailed(*_STEP, FAILURE),
    StepCompleted: StepCompleted(*_STEP, "1"),
    StepsRetried: StepsRetried(("k",)),
    EntryCompleted: EntryCompleted("k", "1"),
    EntryErrored: EntryErrored("k", FAILURE),
}


def _before(status: EntryStatus | None) -> CodeRun:
    return a_run(entries={} if status is None else {"k": an_entry(status=status)})


def test_the_moves_of_this_test_are_those_of_the_tables():
    assert set(ENTRY_MOVES) == set(TRANSITIONS)
    assert set(RUN_EVENTS) == {
        transition for transition in RUN_TRANSITIONS if not issubclass(transition, OfGraph)
    }


@pytest.mark.parametrize("before", [None, *EntryStatus])
@pytest.mark.parametrize("kind", ENTRY_MOVES, ids=lambda kind: kind.__name__)
def test_an_entry_moves_as_its_table_says_and_not_otherwise(kind: type, before: EntryStatus | None):
    listed = TRANSITIONS[kind].get(before, frozenset())
    for after, event in ENTRY_MOVES[kind].items():
        run, untouched = _before(before), _before(before)
        if after in listed:
            apply(run, event, NOW_MS + 1)
            assert run.entries["k"].status is after
            assert run.sequence == untouched.sequence + 1
        else:
            with pytest.raises(InvariantViolation, match="at k in order/o-1"):
                apply(run, event, NOW_MS + 1)
            assert run == untouched
    assert listed <= ENTRY_MOVES[kind].keys()


@pytest.mark.parametrize("before", RunStatus)
@pytest.mark.parametrize("kind", RUN_EVENTS, ids=lambda kind: kind.__name__)
def test_a_run_moves_as_its_table_says_and_not_otherwise(kind: type, before: RunStatus):
    run = a_run(before)
    after = RUN_TRANSITIONS[kind].get(before)
    if after is None:
        with pytest.raises(InvariantViolation, match=f"{kind.__name__} only after one of"):
            move(run, RUN_EVENTS[kind])
        assert run == a_run(before)
    else:
        move(run, RUN_EVENTS[kind])
        assert run == a_run(after)


@pytest.mark.parametrize("before", RunStatus)
@pytest.mark.parametrize(
    "kind", [kind for kind in RUN_EVENTS if kind is not RunStarted], ids=lambda kind: kind.__name__
)
def test_an_event_of_a_run_is_applied_whole_or_not_at_all(kind: type, before: RunStatus):
    step = kind in (StepCompleted, StepFailed)
    run = a_run(before, entries={} if step else {"k": an_entry(EntryKind.WAIT)})
    untouched = copy_of(run)
    after = RUN_TRANSITIONS[kind].get(before)
    if after is None or before in ENDED:
        with pytest.raises(InvariantViolation):
            apply(run, RUN_EVENTS[kind], NOW_MS + 1)
        assert run == untouched
    else:
        apply(run, RUN_EVENTS[kind], NOW_MS + 1)
        assert run.status is after
        assert (run.sequence, run.updated_at_ms) == (untouched.sequence + 1, NOW_MS + 1)


def test_nothing_follows_the_end_of_a_run():
    for status in ENDED:
        for event in RUN_EVENTS.values():
            with pytest.raises(InvariantViolation, match="nothing after the end of run 0"):
                apply(a_run(status), event, NOW_MS)
