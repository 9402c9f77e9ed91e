"""The history of an instance as people read it."""

from headwater.processors.rows.history import HistoryRows
from headwater.schemas.history import (
    CommandRejected,
    EntryCompleted,
    EntryOpened,
    EventReceived,
    Failure,
    HistoryAppended,
    LogEvent,
    LogWritten,
    Reopened,
    RunCompleted,
    RunErrored,
    RunStarted,
    StepCompleted,
)
from headwater.schemas.statuses import EntryKind, RunStatus
from tests.fakes.engines import runs
from tests.fakes.records import appended


def _record(
    at_ms: int, *events: LogEvent, run_number: int = 0, sequence: int = 0
) -> HistoryAppended:
    return appended(*events, run_number=run_number, sequence=sequence, at_ms=at_ms)


_LINE = LogWritten("info", "workflow", "hi")
HISTORY = [
    _record(1, RunStarted("1", "seed")),
    _record(
        2, EntryOpened("@now#1", "now", EntryKind.NOW, 0), EntryCompleted("@now#1", "2"), sequence=1
    ),
    _record(3, EntryOpened("w", "w", EntryKind.WAIT, 2, 99, ("line",)), _LINE, sequence=3),
    _record(4, StepCompleted("quote", "quote", 1, 3, 1, 6, 5, "1"), sequence=5),
    _record(
        5, EventReceived("evt-1", "line", "1", 5), EntryCompleted("w", "1", ("evt-1",)), sequence=6
    ),
    _record(6, EventReceived("evt-2", "line", "2", 6), RunCompleted("1"), sequence=8),
    _record(7, RunStarted("1", "other"), run_number=1),
]


def test_steps_are_shown_in_the_order_in_which_they_were_reached_and_times_are_not():
    assert [row["step_key"] for row in HistoryRows(HISTORY).steps(0)] == ["quote", "w"]


def test_events_say_when_and_by_what_they_were_taken():
    taken, left = HistoryRows(HISTORY).events(0)
    assert (taken["delivered_at"], taken["consumed_by_step_key"]) == (5, "w")
    assert left.keys().isdisjoint({"delivered_at", "consumed_by_step_key"})


def test_log_lines_have_the_time_of_their_record():
    (line,) = HistoryRows(HISTORY).lines(0)
    assert (line["created_at"], line["message"]) == (3, _LINE.message)


def test_each_run_has_rows_of_its_own():
    states = [run.status for run in runs(HISTORY).values()]
    assert states == [RunStatus.COMPLETE, RunStatus.ACTIVE]
    rows = HistoryRows(HISTORY)
    assert (rows.steps(1), rows.events(1), rows.lines(1)) == ([], [], [])


def test_a_run_that_is_retried_is_shown_with_what_it_keeps():
    failed = RunErrored(Failure("Unreachable", "no answer"))
    started = RunStarted("1", "seed", kept=("quote",), reopened=(Reopened("both"),))
    rows = HistoryRows(
        [
            *HISTORY[:4],
            _record(5, EntryOpened("both", "both", EntryKind.JOIN, 3), sequence=6),
            _record(5, EventReceived("evt-1", "line", "1", 5), failed, sequence=7),
            _record(7, started, run_number=1),
            _record(8, EntryOpened("w", "w", EntryKind.WAIT, 4), run_number=1, sequence=1),
            _record(8, EntryCompleted("w", "1", ("evt-1",)), run_number=1, sequence=2),
        ]
    )
    assert [(row["step_key"], row["status"]) for row in rows.steps(1)] == [
        ("quote", "completed"), ("both", "pending"), ("w", "completed"),
    ]  # fmt: skip
    (before,), (now,) = rows.events(0), rows.events(1)
    assert "consumed_by_step_key" not in before
    assert now["consumed_by_step_key"] == "w"


def test_a_refusal_alone_makes_no_instance():
    assert runs([_record(1, CommandRejected("NO", "no"))]) == {}
