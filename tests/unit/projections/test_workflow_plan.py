"""What a batch of histories does to Postgres, without Postgres: events in, rows and changes out."""

import json
from collections.abc import Sequence

import pytest

from headwater.processors.runs.claims import Claims
from headwater.processors.runs.durations import read_retention
from headwater.processors.trace_context import run_context
from headwater.projections.postgres.writes import OF_INSTANCES
from headwater.projections.projector.projection import Plan
from headwater.projections.workflows.plan import WORKFLOWS, workflows_kept
from headwater.schemas.codec import encode
from headwater.schemas.history import (
    Artifact,
    Child,
    CommandRejected,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    Failure,
    HostLost,
    InstanceDeleted,
    LogEvent,
    LogWritten,
    LoopAdvanced,
    Parent,
    PostsSent,
    Reopened,
    RunCompleted,
    RunErrored,
    RunMoved,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
)
from headwater.schemas.statuses import EntryKind
from headwater.schemas.workflow_tables import WORKFLOW_TABLES
from tests.unit.projections.histories import START_MS, WORKFLOW, Appended, Log

Row = dict[str, object]

BITS = {table.name: table.bits for table in WORKFLOW_TABLES}

#: Of whom and when every row speaks; the claim is a second earlier.
WHOSE = {"workflow_name": WORKFLOW, "instance_id": "x", "run_number": 0}
AT_MS = START_MS + 2_000
POSITION = {"partition": 0, "offset": 1}
STARTED = RunStarted("{}", "seed")
FAILURE = Failure("Unreachable", "no answer", '{"tries":  3}')
NO_ERROR = dict.fromkeys(("error_name", "error_message", "error_detail"))
#: What a run without retention has when it ends.
ENDED = {"forced": True, "output": None, "completed_at": AT_MS, "retention_until": None}
#: What an entry has when it ends.
ENDS = {"completed_at": AT_MS, "next_retry_at": None}
SHOWN = {"error_name": "Unreachable", "error_message": "no answer", "error_detail": '{"tries":  3}'}


def completed(key: str = "a", result: str = "1", attempt: int = 1) -> StepCompleted:
    return StepCompleted(key, "A", 4, START_MS, attempt, 6, 600_000, result)


def failed(key: str = "a", retry_at_ms: int | None = None, max_attempts: int = 6) -> StepFailed:
    return StepFailed(key, "A", 4, START_MS, 2, max_attempts, 0, FAILURE, retry_at_ms)


def opened(key: str = "a", kind: EntryKind = EntryKind.LOOP, **more: object) -> EntryOpened:
    return EntryOpened(key, "A", kind, 4, **more)  # type: ignore[arg-type]


def planned(*events: LogEvent, sequence: int = 0) -> Plan:
    """The plan of one record of those events."""
    log = Log()
    log.claim()
    log.sequences["x", 0] = sequence
    return planned_of(log.write("x", *events).records(start=1), Claims(epoch=0))


def planned_of(records: Sequence[Appended], claims: Claims | None = None) -> Plan:
    return WORKFLOWS.plan(WORKFLOWS.read(records, claims or Claims()))


def rows(plan: Plan, table: str) -> list[Row]:
    """The rows of a table: a whole one without nulls, a change with those that it sets."""
    return [
        shown(table.removesuffix("_changes"), row)
        for row_statement in plan.statements
        if row_statement.table == table
        for row in json.loads(row_statement.rows)
    ]


def shown(table: str, row: Row) -> Row:
    bits = BITS.get(table, dict.fromkeys(row, 0))
    changed = row.pop("changed", 0)
    assert set(row) <= set(bits), "every column is declared"
    assert isinstance(changed, int)
    cleared = {name: None for name, bit in bits.items() if bit & changed}
    return {**cleared, **{name: value for name, value in row.items() if value is not None}}


def the_row(plan: Plan, table: str) -> Row:
    """The only row, without what says whose it is."""
    (row,) = rows(plan, table)
    assert {name: row.pop(name) for name in WHOSE} == WHOSE
    return row


def instance(*events: LogEvent) -> Row:
    """What becomes of an instance that was there, without when and where."""
    row = the_row(planned(*events), "workflow_instance_changes")
    expected = {"updated_at": AT_MS, **POSITION}
    assert {name: row.pop(name) for name in expected} == expected
    return row


# --- instances ------------------------------------------------------------------------------


def test_a_run_that_begins_is_a_row():
    parent = Parent("order", "big", 2, "child")
    assert the_row(planned(RunStarted('{"sku":  1}', "seed", parent)), "workflow_instance") == {
        "status": "active",
        "forced": True,
        "params": '{"sku":  1}',
        "traceparent": run_context("order", "x", 0, "seed", "").traceparent,
        "started_at": AT_MS,
        "run_offset": POSITION["offset"],
        "updated_at": AT_MS,
        **POSITION,
        "parent_workflow_name": "order",
        "parent_instance_id": "big",
        "parent_run_number": 2,
        "parent_step_key": "child",
    }


@pytest.mark.parametrize(
    ("events", "change"),
    [
        ([RunSuspended()], {"status": "waiting", "forced": True}),
        ([RunSuspended(), completed()], {"status": "active", "forced": True}),
        ([completed(), RunSuspended()], {"status": "waiting", "forced": True}),
        ([failed(retry_at_ms=1)], {}),
        ([failed()], {"status": "active"}),
        ([EntryCompleted("a", "1")], {"status": "active"}),
        ([EntryErrored("a", FAILURE)], {"status": "active"}),
        ([RunPaused()], {"status": "paused", "forced": True}),
        ([RunPaused(), completed(), failed()], {"status": "paused", "forced": True}),
        ([RunMoved(Artifact("dep_2", "app", ""))], {"deployment_id": "dep_2"}),
        ([RunMoved(None)], {"deployment_id": None}),
        ([RunPaused(), RunResumed()], {"status": "active", "forced": True}),
        ([RunResumed(), RunSuspended()], {"status": "waiting", "forced": True}),
        ([opened()], {}),
        ([PostsSent(3)], {}),
        ([HostLost("killed", 1)], {}),
        (
            [RunTerminated("enough")],
            {
                **ENDED,
                "status": "terminated",
                "error_detail": None,
                "error_name": "Terminated",
                "error_message": "the instance was terminated: enough",
            },
        ),
        (
            [RunPaused(), RunCompleted("null")],
            {
                **ENDED,
                **NO_ERROR,
                "status": "complete",
                "output": "null",
            },
        ),
        (
            [RunErrored(FAILURE)],
            {
                **ENDED,
                "status": "errored",
                **SHOWN,
            },
        ),
    ],
)
def test_events_move_an_instance_as_far_as_its_status_lets_them(
    events: list[LogEvent], change: Row
):
    assert instance(*events) == change


def test_what_happens_to_a_run_in_the_batch_that_begins_it_is_in_its_row():
    plan = planned(STARTED, RunSuspended(), completed(), RunErrored(FAILURE))
    assert rows(plan, "workflow_instance_changes") == []
    row = the_row(plan, "workflow_instance")
    assert (row["status"], row["completed_at"], row["error_name"]) == (
        "errored",
        AT_MS,
        "Unreachable",
    )


def test_runs_of_one_instance_are_written_one_after_the_other():
    log = Log()
    log.claim()
    log.write("x", RunPaused()).write("y", STARTED)
    log.write("x", STARTED, run_number=1).write("x", RunCompleted("1"), run_number=1)
    log.write("x", STARTED, run_number=2)
    plan = planned_of(log.records())
    reported = [
        (row_statement.table, [row["run_number"] for row in json.loads(row_statement.rows)])
        for row_statement in plan.statements
        if row_statement.table.startswith("workflow_instance")
    ]
    assert reported == [
        ("workflow_instance", [0]),
        ("workflow_instance_changes", [0]),
        ("workflow_instance", [1]),
        ("workflow_instance", [2]),
    ]


def test_a_rejection_changes_nothing():
    assert planned(CommandRejected("INSTANCE_TERMINAL", "it has ended")).statements == ()


def test_the_latest_claim_of_a_partition_names_its_owner():
    log = Log([[], []])
    log.claim(owner="first")
    log.claim(1, owner="other", workflows=())
    log.claim(owner="la\x00st", workflows=("order", "invoice"))
    plan = planned_of([*log.records(0), *log.records(1)])
    assert rows(plan, "workflow_owner") == [
        {
            "partition": 0,
            "epoch": 1,
            "owner": "la\ufffdst",
            "workflows": ["order", "invoice"],
            "known": sorted({WORKFLOW, "order", "invoice"}),
            "params_schemas": {},
            "limits": {},
            "claimed_at": START_MS + 3_000,
        },
        {
            "partition": 1,
            "epoch": 0,
            "owner": "other",
            "workflows": [],
            "known": [],
            "params_schemas": {},
            "limits": {},
            "claimed_at": START_MS + 2_000,
        },
    ]


# --- retries --------------------------------------------------------------------------------


def retried(*kept: str, reopened: tuple[str, ...] = ()) -> RunStarted:
    return RunStarted("{}", "seed", None, kept, tuple(map(Reopened, reopened)))


def test_a_retry_copies_what_was_told_before_it_and_not_what_comes_after():
    log = Log()
    log.claim()
    log.write("x", completed("early"), EventReceived("e1", "paid", "1", 5))
    log.write("x", retried("early", "la\x00te", reopened=("loop",)), run_number=1)
    log.write("x", EntryCompleted("loop", "2", ("e1",)), run_number=1).write("x", completed("late"))
    log.write("y", retried(), completed("y"), run_number=1)
    plan = planned_of(log.records())
    assert [row_statement.table for row_statement in plan.statements][:7] == [
        "workflow_owner",
        *("workflow_step", "workflow_event"),
        *("workflow_retries", "workflow_step", "workflow_step_changes", "workflow_event_changes"),
    ]
    assert rows(plan, "workflow_retries") == [
        {
            "workflow_name": WORKFLOW,
            "instance_id": instance_id,
            "run_number": 1,
            "kept": kept,
            "reopened": reopened,
            "started_at": START_MS + 1_000 * (offset + 1),
            "offset": offset,
        }
        for instance_id, kept, reopened, offset in (
            ("x", ["early", "la\ufffdte"], ["loop"], 2),
            ("y", [], [], 5),
        )
    ]
    assert [row["step_key"] for row in rows(plan, "workflow_step")] == ["early", "late", "y"]
    assert [row["retries"] for row in rows(plan, "workflow_instance")] == [True, True]


def test_many_retries_take_no_more_statements_than_one():
    log = Log()
    log.claim()
    for number in range(100):
        log.write(f"i{number}", completed("a"), RunErrored(FAILURE))
        log.write(f"i{number}", retried("a"), completed("b"), run_number=1)
    assert len(planned_of(log.records()).statements) == 6


# --- steps ----------------------------------------------------------------------------------


def test_a_completed_step_is_a_row():
    assert the_row(planned(completed(attempt=3), sequence=7), "workflow_step") == {
        "step_key": "a",
        "name": "A",
        "type": "do",
        "status": "completed",
        "attempts": 3,
        "max_attempts": 6,
        "timeout_ms": 600_000,
        "result": "1",
        "ordinal": 4,
        "sequence": 7,
        "created_at": START_MS,
        "updated_at": AT_MS,
        "completed_at": AT_MS,
        "offset": 1,
    }


def test_a_first_attempt_that_takes_a_while_is_a_row_and_its_result_leaves_when_it_began():
    begun = StepStarted("a", "A", 4, START_MS, 1, 6, 600_000)
    row = the_row(planned(begun, sequence=7), "workflow_step")
    assert (row["status"], row["attempts"], row["max_attempts"]) == ("pending", 0, 6)
    assert (row["created_at"], row["last_attempt_at"]) == (START_MS, START_MS)
    assert "completed_at" not in row
    ended = the_row(planned(begun, completed(), sequence=7), "workflow_step")
    assert (ended["status"], ended["attempts"], ended["sequence"]) == ("completed", 1, 7)
    assert (ended["last_attempt_at"], ended["completed_at"]) == (START_MS, AT_MS)


@pytest.mark.parametrize(
    ("retry_at_ms", "status"), [(None, {"status": "errored"}), (9, {"status": "waiting"})]
)
def test_a_failed_step_waits_for_its_next_attempt_if_there_is_one(
    retry_at_ms: int | None, status: Row
):
    row = the_row(planned(failed(retry_at_ms=retry_at_ms, max_attempts=0)), "workflow_step")
    assert {name: row[name] for name in (*status, *SHOWN)} == {**status, **SHOWN}
    assert row.get("next_retry_at") == retry_at_ms
    assert row["attempts"] == 2
    assert "max_attempts" not in row
    assert "timeout_ms" not in row


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (opened(), {"type": "loop", "status": "pending"}),
        (opened(kind=EntryKind.JOIN), {"type": "join", "status": "pending"}),
        (opened(kind=EntryKind.RACE), {"type": "race", "status": "pending"}),
        (
            opened(kind=EntryKind.SLEEP, wake_at_ms=9),
            {"type": "sleep", "status": "waiting", "wake_at": 9},
        ),
        (
            opened(kind=EntryKind.WAIT, wake_at_ms=9, event_types=("paid",)),
            {
                "type": "wait_for_event",
                "status": "waiting",
                "wake_at": 9,
                "wait_event_type": "paid",
            },
        ),
        (
            opened(kind=EntryKind.WAIT, event_types=("line",), limit=3),
            {"type": "wait_for_event", "status": "waiting", "wait_event_type": '["line"]'},
        ),
        (
            opened(kind=EntryKind.WAIT, event_types=("line", "end")),
            {"type": "wait_for_event", "status": "waiting", "wait_event_type": '["line","end"]'},
        ),
        (
            opened(kind=EntryKind.CHILD, child=Child("invoice", "inv-1")),
            {
                "type": "child",
                "status": "waiting",
                "child_workflow_name": "invoice",
                "child_instance_id": "inv-1",
            },
        ),
    ],
    ids=lambda item: item["type"] if isinstance(item, dict) else None,
)
def test_an_entry_that_opens_is_a_row(event: EntryOpened, expected: Row):
    assert the_row(planned(event), "workflow_step") == {
        "step_key": "a",
        "name": "A",
        "attempts": 0,
        "ordinal": 4,
        "sequence": 0,
        "created_at": AT_MS,
        "updated_at": AT_MS,
        "offset": 1,
        **expected,
    }


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            EntryCompleted("a", "1"),
            {"status": "completed", **ENDS, **NO_ERROR, "result": "1"},
        ),
        (
            EntryErrored("a", FAILURE),
            {"status": "errored", **ENDS, **SHOWN, "result": None},
        ),
        (EntriesCancelled(("a",)), {"status": "cancelled", **ENDS}),
        (
            StepsRetried(("a",)),
            {"status": "pending", "last_attempt_at": AT_MS, "next_retry_at": None},
        ),
        (EntryRolledBack("a"), {"rolled_back_at": AT_MS}),
        (EntryRolledBack("a", FAILURE), {"rollback_failed_at": AT_MS}),
    ],
)
def test_what_happens_to_an_entry_changes_a_row_that_was_there(event: LogEvent, expected: Row):
    row = the_row(planned(event), "workflow_step_changes")
    assert row == {"step_key": "a", "updated_at": AT_MS, "offset": 1, **expected}
    assert rows(planned(event), "workflow_step") == []


def test_what_happens_to_an_entry_in_the_batch_that_opens_it_is_in_its_row():
    plan = planned(failed(retry_at_ms=9), EntriesCancelled(("a",)), EntryRolledBack("a"))
    assert rows(plan, "workflow_step_changes") == []
    row = the_row(plan, "workflow_step")
    assert (row["status"], row["error_name"], row["rolled_back_at"]) == (
        "cancelled",
        "Unreachable",
        AT_MS,
    )
    assert "next_retry_at" not in row


def test_a_step_that_is_tried_again_waits_for_no_time_and_its_instance_moves():
    plan = planned(RunSuspended(), failed(retry_at_ms=9), StepsRetried(("a",)))
    row = the_row(plan, "workflow_step")
    assert (row["status"], row["error_name"]) == ("pending", "Unreachable")
    assert row["last_attempt_at"] == AT_MS
    assert "next_retry_at" not in row
    assert the_row(plan, "workflow_instance_changes")["status"] == "active"


def test_a_step_keeps_the_sequence_of_its_first_attempt_and_loses_the_error():
    plan = planned(failed(retry_at_ms=9), StepsRetried(("a",)), completed(attempt=3), sequence=5)
    row = the_row(plan, "workflow_step")
    assert (row["sequence"], row["status"]) == (5, "completed")
    assert row["last_attempt_at"] == AT_MS
    assert "error_name" not in row
    assert "next_retry_at" not in row


def test_the_time_is_nothing_that_is_shown():
    plan = planned(opened("~now", EntryKind.NOW), EntryCompleted("~now", "17"))
    assert {row_statement.table for row_statement in plan.statements} == {
        "workflow_instance_changes"
    }


def test_what_a_loop_forgets_is_deleted_and_not_written():
    plan = planned(
        completed("pages/~0/a"),
        completed("pages/~9/a"),
        completed("pages/~10/a"),
        completed("pages/~x/a"),
        EntryRolledBack("pages/~1/a"),
        LoopAdvanced("pages", 11, "null", 10),
        LoopAdvanced("pages", 11, "null", 2),
        completed("pages/~0/a"),
    )
    assert [row_statement.table for row_statement in plan.statements][:2] == [
        "workflow_step_trims",
        "workflow_step",
    ]
    assert the_row(plan, "workflow_step_trims") == {
        "step_key": "pages",
        "trim_before": 10,
        "offset": 1,
    }
    assert [row["step_key"] for row in rows(plan, "workflow_step")] == [
        "pages/~10/a",
        "pages/~x/a",
        "pages/~0/a",
    ]
    assert the_row(plan, "workflow_step_changes") == {
        "step_key": "pages",
        "trimmed_before": 10,
        "updated_at": AT_MS,
        "offset": 1,
    }
    assert rows(planned(LoopAdvanced("pages", 1, "null")), "workflow_step_trims") == []


# --- events and lines -----------------------------------------------------------------------


def test_an_event_is_a_row_until_a_wait_takes_it():
    received = EventReceived("e1", "paid", '{"by": "me"}', 5)
    row = {
        "id": "e1",
        "type": "paid",
        "payload": '{"by": "me"}',
        "sequence": 3,
        "created_at": 5,
        "offset": 1,
    }
    assert the_row(planned(received, sequence=3), "workflow_event") == row
    taken = {"delivered_at": AT_MS, "consumed_by_step_key": "a", "offset": 1}
    takes = EntryCompleted("a", "null", ("e1",))
    plan = planned(received, takes, sequence=3)
    assert the_row(plan, "workflow_event") == {**row, **taken}
    assert rows(plan, "workflow_event_changes") == []
    assert the_row(planned(takes), "workflow_event_changes") == {"id": "e1", **taken}


def test_a_line_has_the_place_where_it_lies_as_its_id():
    line = LogWritten("info", "payments", "charged", '{"amount": 125}', "a", 2, True)
    assert the_row(planned(RunPaused(), line), "workflow_log") == {
        "id": "00000-000000000000001-000001",
        "step_key": "a",
        "attempt": 2,
        "level": "info",
        "category": "payments",
        "message": "charged",
        "data": '{"amount": 125}',
        "is_replay": True,
        "created_at": AT_MS,
    }


# --- what counts, and what cannot be read -----------------------------------------------------


def test_what_a_superseded_owner_writes_is_void():
    log = Log()
    old = log.claim()
    log.write("x", STARTED)
    log.claim(owner="you")
    log.write("x", completed("void"), epoch=old).write("x", completed("counts"))
    claims = Claims()
    read = WORKFLOWS.read(log.records(), claims)
    assert [row["step_key"] for row in rows(WORKFLOWS.plan(read), "workflow_step")] == ["counts"]
    assert claims.epoch == 2


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"nothing of ours", "Confluent wire format"),
    ],
)
def test_what_cannot_be_read_is_kept_and_the_rest_goes_on(bad: bytes, said: str):
    log = Log()
    log.claim()
    log.write("x", STARTED).write("x", completed())
    records = log.records()
    records[1] = Appended(0, 1, bad)
    plan = planned_of(records)
    assert plan.unreadable == 1
    (error,) = rows(plan, "projection_errors")
    assert (error["topic"], error["offset"]) == ("workflow-history", 1)
    assert said in str(error["error"])
    assert len(rows(plan, "workflow_step")) == 1


@pytest.mark.parametrize("end", [RunCompleted("1"), RunErrored(FAILURE), RunTerminated("why")])
@pytest.mark.parametrize(
    ("retention", "kept_ms"),
    [("", None), ("3 s", 3_000), (f"{WORKFLOW}=1 day, 3 s", 86_400_000), ("another=1 s", None)],
)
def test_a_run_that_has_ended_says_until_when_its_instance_is_kept(
    end: LogEvent, retention: str, kept_ms: int | None
):
    projection = workflows_kept(read_retention(retention))
    log = Log()
    log.claim()
    log.write("x", STARTED, end).write("y", STARTED).write("y", end)
    plan = projection.plan(projection.read(log.records(), Claims()))
    result = [row for row in rows(plan, "workflow_instance") if row["instance_id"] == "x"]
    assert [row.get("retention_until") for row in result] == [kept_ms and AT_MS + kept_ms]


def test_an_instance_that_is_deleted_leaves_no_patch_of_before():
    log = Log()
    log.claim()
    log.write("x", STARTED, completed(), EventReceived("e", "t", "{}", START_MS))
    log.write("x", LogWritten("info", "a", "hi")).write("y", STARTED)
    plan = planned_of(log.write("x", InstanceDeleted()).write("x", STARTED).records())
    assert [row["instance_id"] for row in rows(plan, "workflow_instance") if "params" in row] == [
        "y",
        "x",
    ]
    for table in OF_INSTANCES:
        deleted = [w for w in plan.statements if w.delete and w.table == table]
        assert [json.loads(str(w.rows)) for w in deleted] == [
            [{"workflow_name": WORKFLOW, "instance_id": "x"}]
        ]
    assert not [w for w in plan.statements if w.table == "workflow_step" and not w.delete]
    assert plan.statements[-1].table == "workflow_instance"


def test_a_tombstone_of_the_history_is_no_record():
    log = Log()
    log.claim()
    records = log.write("x", STARTED).records()
    assert not planned_of([*records, Appended(0, 2, None)]).unreadable


def test_a_record_without_events_is_refused():
    log = Log()
    log.claim()
    (error,) = rows(planned_of(log.write("x").records()), "projection_errors")
    assert "at least one event" in str(error["error"])


def test_an_epoch_that_nobody_has_claimed_is_said():
    log = Log()
    log.claim()
    log.write("x", STARTED, epoch=9)
    (error,) = rows(planned_of(log.records()), "projection_errors")
    assert "expected an epoch up to 0" in str(error["error"])


def test_a_nul_is_replaced_in_texts_and_left_for_postgres_to_refuse_in_json():
    written_out = '"\\u0000"'
    plan = planned(
        RunErrored(Failure("E", "bad \x00 byte")),
        LogWritten("info", "c", "\x00", written_out),
        StepCompleted("k\x00", "A", 4, START_MS, 1, 1, 1, '"\x00"'),
    )
    assert rows(plan, "workflow_instance_changes")[0]["error_message"] == "bad \ufffd byte"
    assert rows(plan, "workflow_log")[0]["message"] == "\ufffd"
    assert rows(plan, "workflow_log")[0]["data"] == written_out
    assert rows(plan, "workflow_step")[0]["step_key"] == "k\ufffd"
    assert rows(plan, "workflow_step")[0]["result"] == '"\x00"'


def test_many_rows_are_written_in_several_statements():
    plan = planned(*[completed(f"s{n}") for n in range(2_500)])
    sizes = [
        len(json.loads(row_statement.rows))
        for row_statement in plan.statements
        if row_statement.table == "workflow_step"
    ]
    assert sizes == [1_000, 1_000, 500]


def test_the_log_is_encoded_as_the_log_of_a_partition_is():
    log = Log()
    log.claim()
    log.write("x", STARTED, run_number=1)
    (claim, started) = log.records()
    assert (claim.offset, started.offset, started.key) == (0, 1, b"order/x")
    record = log.partitions[0][1]
    assert not isinstance(record, bytes)
    assert started.value == encode(record)
