"""What events do to the state of a run, beyond the moves of its tables."""

import pytest

from headwater.processors.code.appliers import apply
from headwater.processors.code.state import BEGINNING, UNRESOLVED, CodeRun, trimmed
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    CommandRejected,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    HistoryAppended,
    HostLost,
    LogEvent,
    LogWritten,
    LoopAdvanced,
    Post,
    PostsQueued,
    PostsSent,
    Reopened,
    RollbackFailed,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunStarted,
    RunTerminated,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
)
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus
from tests.fakes.engines import fold
from tests.fakes.records import appended
from tests.unit.processors.replay.states import (
    CHILD,
    FAILURE,
    NOW_MS,
    PARENT,
    a_run,
    an_entry,
    copy_of,
    mail,
)

_AT_MS = NOW_MS + 1
_STEP = ("k", "k", 4, NOW_MS - 5, 2, 3, 600_000)


def _record(*events: LogEvent, run_number: int = 0, sequence: int = 0) -> HistoryAppended:
    return appended(*events, run_number=run_number, sequence=sequence, at_ms=_AT_MS)


def _applied(run: CodeRun, *events: LogEvent) -> CodeRun:
    for event in events:
        apply(run, event, _AT_MS)
    return run


def test_a_step_is_there_from_its_first_outcome_on_and_was_reached_before():
    entry = _applied(a_run(), StepFailed(*_STEP, FAILURE, NOW_MS + 9)).entries["k"]
    assert (entry.created_at_ms, entry.updated_at_ms, entry.ordinal) == (NOW_MS - 5, _AT_MS, 4)
    assert (entry.attempts, entry.max_attempts, entry.timeout_ms) == (2, 3, 600_000)
    assert (entry.failure, entry.wake_at_ms, entry.sequence) == (FAILURE, NOW_MS + 9, -1)


def test_a_first_attempt_that_takes_a_while_is_open_and_changes_nothing_that_code_sees():
    run = _applied(a_run(), StepStarted("k", "k", 4, NOW_MS - 5, 1, 3, 600_000))
    entry = run.entries["k"]
    assert (entry.status, entry.attempts, list(run.open)) == (EntryStatus.PENDING, 0, ["k"])
    assert (entry.created_at_ms, entry.last_attempt_at_ms) == (NOW_MS - 5, NOW_MS - 5)
    assert (entry.completed_at_ms, entry.max_attempts, entry.timeout_ms) == (None, 3, 600_000)
    assert (run.status, run.resolved, run.retried) == (RunStatus.ACTIVE, 0, 0)


def test_when_an_entry_was_reached_tried_and_done_is_not_told_anew():
    began = StepStarted("k", "k", 4, NOW_MS - 5, 1, 3, 600_000)
    failed = StepFailed("k", "k", 4, NOW_MS - 5, 1, 3, 600_000, FAILURE, NOW_MS + 9)
    run = _applied(a_run(), began, failed, StepsRetried(("k",)), StepCompleted(*_STEP, "5"))
    apply(run, EntryRolledBack("k"), _AT_MS + 100)
    entry = run.entries["k"]
    assert (entry.created_at_ms, entry.last_attempt_at_ms, entry.completed_at_ms) == (
        NOW_MS - 5,
        _AT_MS,
        _AT_MS,
    )


def test_a_step_that_succeeds_at_last_is_no_longer_open_and_has_no_error():
    run = _applied(a_run(hosts_lost=2, back_at_ms=5), StepFailed(*_STEP, FAILURE, 9))
    assert list(run.open) == ["k"]
    assert (run.resolved, run.hosts_lost) == (0, 2), "a retry resolves nothing"
    _applied(run, StepCompleted(*_STEP, "5", rollback=True))
    entry = run.entries["k"]
    assert (entry.result, entry.failure, entry.wake_at_ms, entry.rollback) == (
        "5",
        None,
        None,
        True,
    )
    assert (entry.sequence, run.resolved, run.sequence) == (8, 8, 9)
    assert (list(run.open), run.hosts_lost, run.back_at_ms) == ([], 0, 0)


def test_a_step_whose_next_attempt_has_begun_is_open_and_waits_for_no_time():
    run = _applied(a_run(RunStatus.WAITING), StepFailed(*_STEP, FAILURE, NOW_MS + 9))
    assert run.status is RunStatus.WAITING
    _applied(run, StepsRetried(("k",)))
    entry = run.entries["k"]
    assert (entry.status, entry.wake_at_ms, entry.attempts) == (EntryStatus.PENDING, None, 2)
    assert (entry.failure, list(run.open)) == (FAILURE, ["k"]), "its latest error is known"
    assert (run.status, run.retried, run.resolved) == (RunStatus.ACTIVE, 8, 0)


def test_an_entry_that_waits_keeps_its_time_when_it_ends():
    run = _applied(a_run(), EntryOpened("nap", "nap", EntryKind.SLEEP, 0, 50))
    _applied(run, EntryCompleted("nap", "null"))
    assert run.entries["nap"].wake_at_ms == 50
    assert run.open == {}


def test_an_entry_that_is_opened_holds_what_it_was_opened_with():
    run = _applied(
        a_run(),
        EntryOpened("w", "w", EntryKind.WAIT, 1, 50, ("line",), 5),
        EntryOpened("c", "c", EntryKind.CHILD, 2, child=CHILD),
        EntryOpened("pages", "pages", EntryKind.LOOP, 3, state="0"),
    )
    wait, child, loop = (run.entries[key] for key in ("w", "c", "pages"))
    assert (wait.event_types, wait.limit, wait.wake_at_ms) == (("line",), 5, 50)
    assert (child.child, child.status) == (CHILD, EntryStatus.WAITING)
    assert (loop.commits, loop.status) == ({0: "0"}, EntryStatus.PENDING)
    assert list(run.open) == ["w", "c", "pages"], "in the order of opening"


def test_what_a_wait_takes_leaves_the_mailbox():
    run = a_run(entries={"w": an_entry(EntryKind.WAIT)}, mailbox=[mail(1), mail(2), mail(3)])
    _applied(run, EntryCompleted("w", "[]", ("evt-1", "evt-3")))
    assert run.mailbox == [mail(2)]


def test_an_entry_that_fails_has_its_error_and_wakes_the_run():
    run = a_run(RunStatus.WAITING, entries={"w": an_entry(EntryKind.WAIT)})
    _applied(run, EntryErrored("w", FAILURE))
    assert (run.entries["w"].failure, run.status) == (FAILURE, RunStatus.ACTIVE)


def test_losers_are_no_longer_open_and_the_code_need_not_see_it():
    run = a_run(entries={key: an_entry() for key in ("a", "b", "c")}, resolved=3)
    _applied(run, EntriesCancelled(("a", "c")))
    assert list(run.open) == ["b"]
    assert (run.entries["a"].sequence, run.resolved) == (7, 3)


def test_a_loop_forgets_the_iterations_before_a_place_and_what_lies_within():
    done = EntryStatus.COMPLETED
    scope = {f"pages/~{n}/fetch": an_entry(status=done, rollback=True) for n in range(12)}
    scope |= {f"pages/~{number}/nap": an_entry(EntryKind.SLEEP) for number in (5, 6)}
    others = {"pages/~x": an_entry(), "page": an_entry(), "pages": an_entry(EntryKind.LOOP)}
    del others["pages/~x"]
    run = a_run(entries=scope | others)
    run.entries["pages"].commits = {0: "0", 5: "5"}
    _applied(run, LoopAdvanced("pages", 10, "10", 7))
    kept = {f"pages/~{number}/fetch" for number in range(7, 12)}
    hidden = {f"pages/~{number}/fetch" for number in (5, 6)}
    assert run.entries.keys() == kept | hidden | others.keys()
    assert trimmed(run.entries) == hidden
    assert run.open.keys() == others.keys()
    assert {key for key, entry in run.entries.items() if entry.rollback} == kept
    assert run.entries["pages"].commits == {5: "5", 10: "10"}, "the latest before the place stays"
    assert (run.entries["pages"].iteration, run.resolved) == (10, 7)


def test_a_loop_never_goes_back():
    run = a_run(entries={"pages": an_entry(EntryKind.LOOP, iteration=9)})
    _applied(run, LoopAdvanced("pages", 5, "5"))
    assert run.entries["pages"].iteration == 9


def test_rolling_back_is_noted_at_the_run_and_its_entries():
    run = a_run(entries={"pay": an_entry(status=EntryStatus.COMPLETED, rollback=True)})
    _applied(run, RollbackStarted(FAILURE), RollbackFailed("pay", 1, FAILURE, 50))
    entry = run.entries["pay"]
    assert (run.rollback, entry.rollback_attempts, entry.rollback_at_ms) == (FAILURE, 1, 50)
    assert (entry.rolled_back, run.resolved) == (False, 0)
    _applied(run, EntryRolledBack("pay"))
    assert (entry.rolled_back, run.resolved) == (True, 9)


def test_lost_hosts_are_counted_until_something_is_resolved():
    run = _applied(a_run(), HostLost("gone", 50), HostLost("gone", 60))
    assert (run.hosts_lost, run.back_at_ms) == (2, 60)


def test_events_that_workflows_send_are_remembered_by_sender():
    run = _applied(
        a_run(),
        EventReceived("evt-1", "line", "1", 5),
        EventReceived("order/a#b#7", "line", "2", 6),
    )
    assert run.received == {"order/a#b": 7}
    assert [item.event_id for item in run.mailbox] == ["evt-1", "order/a#b#7"]


def test_posts_stay_until_they_are_sent_and_their_numbers_are_never_used_again():
    posts = tuple(Post(number, topic="t") for number in range(3, 6))
    run = _applied(a_run(posted=3), PostsQueued(posts), PostsSent(4))
    assert (run.unsent, run.posted) == ([posts[2]], 6)
    assert run.sequence == 8, "that posts are sent takes no number"


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (LogWritten("info", "workflow", "hi", seen=3), 1),
        (LogWritten("info", "workflow", "hi", is_replay=True), 0),
        (LogWritten("info", "workflow", "hi", step_key="charge", attempt=1), 0),
        (LogWritten("info", "system", "hi"), 0),
    ],
)
def test_of_logs_the_lines_of_the_code_are_counted(line: LogWritten, lines: int):
    run, before = _applied(a_run(), line), a_run()
    before.sequence, before.updated_at_ms, before.lines = 8, _AT_MS, lines
    before.logged_at = 3 if lines else BEGINNING
    assert run == before


def test_lines_are_counted_from_what_the_code_has_seen():
    def line(seen: int) -> LogWritten:
        return LogWritten("info", "workflow", "hi", seen=seen)

    run = _applied(a_run(), line(BEGINNING), line(BEGINNING))
    assert (run.logged_at, run.lines) == (BEGINNING, 2)
    run = _applied(run, line(4), line(3), line(4))
    assert (run.logged_at, run.lines) == (4, 2)


def test_ends_keep_the_output_or_the_error():
    assert _applied(a_run(), RunCompleted("5")).output == "5"
    assert _applied(a_run(), RunErrored(FAILURE)).failure == FAILURE


# -- folding


def test_a_run_begins_with_its_start():
    run = fold(None, _record(RunStarted("1", "seed", PARENT), LogWritten("info", "w", "hi")))
    assert run is not None
    assert (run.status, run.params, run.seed, run.parent) == (RunStatus.ACTIVE, "1", "seed", PARENT)
    assert (run.sequence, run.run_number, run.created_at_ms) == (2, 0, _AT_MS)


def test_a_restart_keeps_the_outbox_what_was_heard_and_the_time_of_creation():
    before = a_run(
        entries={"a": an_entry()}, mailbox=[mail(1)], posted=3, received={"x/y": 1},
        unsent=[Post(2)], output="5", failure=FAILURE, resolved=6,
    )  # fmt: skip
    run = fold(before, _record(RunStarted("1", "other"), run_number=1))
    assert run is not None
    assert (run.unsent, run.posted, run.received) == ([Post(2)], 3, {"x/y": 1})
    assert (run.created_at_ms, run.started_at_ms) == (NOW_MS, _AT_MS)
    assert (run.entries, run.open, run.mailbox, run.output, run.failure) == ({}, {}, [], None, None)


def test_a_retry_keeps_entries_whose_results_come_before_all_that_is_new():
    before = a_run(
        RunStatus.ERRORED,
        run_number=2,
        started_at_ms=5,
        mailbox=[mail(1)],
        hosts_lost=1,
        rollback=FAILURE,
        entries={
            "a": an_entry(
                status=EntryStatus.COMPLETED, sequence=1, result="1", rollback_attempts=1,
                rollback_at_ms=9,
            ),
            "b": an_entry(status=EntryStatus.COMPLETED, sequence=6),
            "c": an_entry(status=EntryStatus.COMPLETED, sequence=-9),
            "nap": an_entry(EntryKind.SLEEP, wake_at_ms=9),
            "gone": an_entry(status=EntryStatus.ERRORED, sequence=3),
        },
    )  # fmt: skip
    whole = copy_of(before)
    started = RunStarted("1", "seed", kept=("a", "b", "c", "nap"))
    run = fold(before, _record(started, run_number=3))
    assert run is not None
    result = {key: entry.sequence for key, entry in run.entries.items()}
    assert result == {"a": -7, "b": -2, "c": -17, "nap": UNRESOLVED}
    kept = run.entries["a"]
    assert (kept.result, kept.rollback_attempts, kept.rollback_at_ms) == ("1", 0, 0)
    assert (run.open, run.mailbox) == ({"nap": None}, [mail(1)])
    assert (run.run_number, run.sequence, run.resolved, run.hosts_lost) == (3, 1, 0, 0)
    assert (run.started_at_ms, run.updated_at_ms, run.rollback) == (5, _AT_MS, None)
    run.mailbox.clear()
    assert before == whole, "whoever looks at the run before sees what it was"


def test_a_retry_reopens_containers_without_their_results():
    loop = an_entry(
        EntryKind.LOOP, EntryStatus.ERRORED, sequence=5, failure=FAILURE, iteration=4,
        commits={0: "0", 2: "2", 4: "4"},
    )  # fmt: skip
    join = an_entry(EntryKind.JOIN, EntryStatus.COMPLETED, sequence=6, result="1")
    before = a_run(RunStatus.ERRORED, entries={"loop": loop, "join": join})
    again = (Reopened("loop", 3), Reopened("join"))
    run = fold(before, _record(RunStarted("1", "seed", kept=(), reopened=again), run_number=1))
    assert run is not None
    loop, join = run.entries["loop"], run.entries["join"]
    assert (loop.iteration, loop.commits) == (2, {0: "0", 2: "2"})
    for entry in (loop, join):
        assert (entry.status, entry.sequence) == (EntryStatus.PENDING, UNRESOLVED)
        assert (entry.result, entry.failure, entry.updated_at_ms) == (None, None, _AT_MS)
    assert list(run.open) == ["loop", "join"]


def test_a_retry_that_keeps_what_is_not_there_is_refused():
    started = RunStarted("1", "seed", kept=("a",), reopened=(Reopened("b"),))
    with pytest.raises(InvariantViolation, match="found a, b"):
        fold(a_run(RunStatus.ERRORED), _record(started, run_number=1))


def test_an_event_that_creates_its_instance_is_remembered():
    event = EventReceived("~hooks/webhooks-3#7", "line", "1", NOW_MS)
    run = fold(None, _record(RunStarted("1", "seed"), event))
    assert run is not None
    assert (run.received, run.sequence) == ({"~hooks/webhooks-3": 7}, 2)


def test_posts_of_a_run_that_has_ended_are_still_sent():
    run = a_run(RunStatus.COMPLETE, unsent=[Post(2)])
    assert fold(run, _record(PostsSent(2))) is run
    assert run.unsent == []


def test_notes_that_belong_to_no_run_change_nothing():
    assert fold(None, _record(CommandRejected("NO", "no"))) is None
    run = a_run(RunStatus.COMPLETE)
    assert fold(run, _record(CommandRejected("NO", "no"))) == a_run(RunStatus.COMPLETE)


@pytest.mark.parametrize(
    ("run", "record", "told"),
    [
        (None, _record(LogWritten("info", "w", "hi")), "expected RunStarted first"),
        (
            None,
            _record(RunStarted("1", "seed"), run_number=1),
            "expected run 0 next",
        ),
        (a_run(), _record(RunStarted("1", "seed")), "expected run 1 next"),
        (
            a_run(RunStatus.COMPLETE),
            _record(RunTerminated(""), sequence=a_run().sequence),
            "nothing after the end of run 0",
        ),
        (a_run(), _record(RunTerminated(""), sequence=a_run().sequence + 1), "expected sequence"),
    ],
)
def test_a_history_that_cannot_be_is_refused(
    run: CodeRun | None, record: HistoryAppended, told: str
):
    with pytest.raises(InvariantViolation, match=told):
        fold(run, record)
