"""Instances in words: what was read, as rows to print."""

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TypeVar

import msgspec
import pytest

from headwater.gateway.cli.instance_formatting import (
    event_rows,
    listed_rows,
    log_row,
    step_rows,
    summary,
)
from headwater.gateway.client.instance_texts import position_text, waiting_for
from headwater.gateway.client.texts import from_unix_ms
from headwater.schemas.answers import (
    Answer,
    CurrentStep,
    Event,
    Failure,
    Instance,
    InstanceFound,
    InstanceMeta,
    InstanceStatus,
    LogLine,
    Parent,
    SlotAwaited,
    Step,
)
from headwater.schemas.statuses import RunStatus

NOW = from_unix_ms(1_795_269_600_000)
TOMORROW = NOW + timedelta(hours=23)
ERROR = Failure(name="CardError", message="declined")


def ago(**spans: float) -> datetime:
    return NOW - timedelta(**spans)


A = TypeVar("A", bound=Answer)
#: Of what a test does not say anything about.
NOTHING = {
    "id": "",
    "workflow_name": "order",
    "instance_id": "order-1",
    "run_number": 0,
    "attempts": 0,
    "category": "",
    "is_replay": False,
    "created_at": NOW,
    "updated_at": NOW,
    "current_tokens": [],
}


def answered(kind: type[A], **fields: object) -> A:
    """An answer as the client reads it."""
    names = dict.fromkeys(kind.__struct_fields__)
    provided = {**names, **{name: NOTHING[name] for name in names if name in NOTHING}, **fields}
    return msgspec.convert(SimpleNamespace(**provided), kind, from_attributes=True)


def current(type_: str, status: str = "waiting", **more: object) -> CurrentStep:
    return answered(CurrentStep, step_key="key", name="key", type=type_, status=status, **more)


def stands(status: str, **more: object) -> InstanceStatus:
    return InstanceStatus(status=RunStatus(status), **more)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            current("do", "pending", max_attempts=4, last_attempt_at=ago(minutes=3)),
            "running, attempt 1 of 4, since 2026-11-21 13:57:00 UTC (3 min ago)",
        ),
        (
            current("do", "pending", attempts=1, max_attempts=6, error=ERROR,
                    last_attempt_at=NOW),
            "running, attempt 2 of 6, since 2026-11-21 14:00:00 UTC (now), "
            "after CardError: declined",
        ),
        (
            current("do", attempts=2, max_attempts=6, error=ERROR,
                    next_retry_at=NOW + timedelta(seconds=8)),
            "waiting to be tried again in 8 s, attempt 2 of 6 failed: CardError: declined",
        ),
        (
            current("do", attempts=3, next_retry_at=NOW),
            "waiting to be tried again now, attempt 3 failed",
        ),
        (
            current("sleep", wake_at=NOW + timedelta(minutes=5)),
            "sleeping, until 2026-11-21 14:05:00 UTC (in 5 min)",
        ),
        (
            current("wait_for_event", wait_event_type="approval", wake_at=TOMORROW),
            "waiting for event approval, until 2026-11-22 13:00:00 UTC (in 23 h)",
        ),
        (
            current("wait_for_event", wait_event_type=["line", "end"]),
            "waiting for event line or end",
        ),
        (current("child"), "waiting for its child instance"),
        (
            answered(Step, step_key="k", name="k", type="child", status="waiting",
                 child_workflow_name="bill", child_instance_id="b-1"),
            "waiting for its child instance bill/b-1",
        ),
        (current("join", "pending"), "waiting for all of its branches"),
        (current("race", "pending"), "waiting for the first of its branches"),
        (current("loop", "pending"), "going through its iterations"),
        (current("checkpoint", "pending"), "pending in checkpoint"),
    ],
)  # fmt: skip
def test_what_a_step_waits_for(step: CurrentStep, words: str):
    assert waiting_for(step, NOW) == words


@pytest.mark.parametrize(
    ("status", "step", "words"),
    [
        ("complete", None, None),
        ("errored", current("do", "errored"), None),
        ("active", None, "its code is running"),
        ("waiting", None, None),
        ("terminated", current("sleep"), None),
        ("waiting", current("wait_for_event", wait_event_type="go"), "waiting for event go"),
        ("paused", None, "paused until it is resumed"),
        (
            "paused",
            current("wait_for_event", wait_event_type="go"),
            "paused until it is resumed; it is at key: waiting for event go",
        ),
    ],
)
def test_where_an_instance_stands(status: str, step: CurrentStep | None, words: str | None):
    assert position_text(stands(status), step, NOW) == words


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (("eu", 3, 12), "order/eu (limit 3, 12 before it)"),
        ((7, 3, 0), "order/7 (limit 3, 0 before it)"),
        ((None, None, 1), "order (1 before it)"),
    ],
)
def test_a_run_that_has_not_begun_waits_for_its_slot(
    slot: tuple[object, int | None, int], words: str
):
    key, limit, before = slot
    awaited = SlotAwaited(key=key, limit=limit, before=before, since=ago(minutes=2))
    result = answered(
        InstanceFound, id="o-1", details=stands("waiting"), labels={}, awaited_slot=awaited
    )
    (row,) = listed_rows([result], NOW, None)
    since = "since 2026-11-21 13:58:00 UTC (2 min ago)"
    assert row["what"] == f"waiting for a slot of {words}, {since}"


def described(status: InstanceStatus, **meta: object) -> Instance:
    meta = {"workflow_name": "order", "run_number": 1, "created_at": ago(hours=3), **meta}
    return Instance(id="order-1", details=status, meta=answered(InstanceMeta, **meta))


def test_a_summary_is_short_unless_it_is_to_be_full():
    step = current("do", attempts=1, max_attempts=6, timeout_ms=600_000, error=ERROR,
                   next_retry_at=NOW + timedelta(seconds=8))  # fmt: skip
    result = described(
        stands("waiting"),
        started_at=ago(minutes=3),
        updated_at=ago(seconds=2),
        current_step=step,
        params={"sku": "ü"},
        parent=Parent(workflow_name="cart", instance_id="c-1", run_number=0, step_key="bill"),
        deployment_id="dep_1",
    )
    short = [
        ("instance", "order/order-1"),
        ("status", "waiting"),
        ("step", "key (do)"),
        ("state", "waiting to be tried again in 8 s, attempt 1 of 6 failed: CardError: declined"),
        ("run", 1),
        ("deployment", "dep_1"),
        ("started", "2026-11-21 13:57:00 UTC (3 min ago)"),
        ("updated", "2026-11-21 13:59:58 UTC (2 s ago)"),
    ]
    full = [
        *short,
        ("created", "2026-11-21 11:00:00 UTC (3 h ago)"),
        ("step name", "key"),
        ("step status", "waiting"),
        ("step attempts", "1 of 6"),
        ("step timeout", "10 min"),
        ("step error", "CardError: declined"),
        ("parent", "cart/c-1 at bill, run 0"),
        ("params", '{"sku": "ü"}'),
    ]
    for expected, rows in ((False, short), (True, full)):
        assert list(summary(result, NOW, full=expected).items()) == rows


def test_a_summary_of_what_has_ended():
    ended = {"started_at": ago(seconds=90), "completed_at": ago(seconds=5)}
    complete = described(stands("complete", output=None), **ended)
    rows = summary(complete, NOW, full=True)
    assert rows["ended"] == "2026-11-21 13:59:55 UTC (5 s ago)"
    assert (rows["took"], rows["output"], rows["params"]) == ("1 min 25 s", "null", "null")
    errored = described(stands("errored", error=ERROR), **ended)
    rows = summary(errored, NOW, full=False)
    assert rows["error"] == "CardError: declined"
    assert "output" not in rows
    assert "state" not in rows
    frames = 'File "shop.py", line 7, in charge\nCardError: declined'
    framed = Failure(name="CardError", message="declined", traceback=f"{frames}\n")
    errored = described(stands("errored", error=framed), **ended)
    for full, shown in ((False, None), (True, frames)):
        rows = summary(errored, NOW, full=full)
        assert (rows["error"], rows.get("traceback")) == ("CardError: declined", shown)


def test_a_listing_says_why_an_instance_has_ended():
    listed = [
        listed_as("a", stands("active")),
        listed_as("b", stands("errored", error=ERROR)),
        listed_as("c", stands("complete", output=["x" * 99])),
        listed_as("d", stands("terminated")),
    ]
    rows = listed_rows(listed, NOW, 60)
    assert [row["what"] for row in rows[:2]] == ["its code is running", "CardError: declined"]
    assert rows[2]["what"] == '["' + "x" * 57 + "…"
    assert rows[3] == {
        "instance": "order/d",
        "status": "terminated",
        "age": "2 h",
        "updated": "5 s ago",
        "deployment": None,
        "what": None,
    }


def listed_as(name: str, details: InstanceStatus) -> InstanceFound:
    return InstanceFound(
        id=name,
        details=details,
        workflow_name="order",
        created_at=ago(hours=2),
        updated_at=ago(seconds=5),
    )


def step(key: str, type_: str, status: str, since_s: float, until_s: float, **more: object) -> Step:
    moments = {"created_at": ago(seconds=since_s), "completed_at": ago(seconds=until_s)}
    return answered(Step, step_key=key, name=key, type=type_, status=status, **moments, **more)


def test_a_history_is_a_timeline():
    steps = [
        step("fetch", "do", "completed", 100, 98.8, attempts=2, max_attempts=6, result=[1],
             error=ERROR),
        step("cool off", "sleep", "completed", 98, 97.8),
        step("undo me", "do", "completed", 97, 97, attempts=1, rolled_back_at=NOW),
        step("undo this", "do", "completed", 97, 97, attempts=1, rollback_failed_at=NOW),
        step("charge", "do", "errored", 90, 30, attempts=6, max_attempts=6, error=ERROR),
        step("slow", "join", "cancelled", 30, 30),
        step("approval", "wait_for_event", "waiting", 20, 20, wait_event_type="approval"),
    ]  # fmt: skip
    columns = ("began", "state", "step", "type", "attempts", "took", "what")
    rows = step_rows(steps, NOW, 60, frames=False)
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("+0 ms", "✓ completed", "fetch", "do", "2 of 6", "1.2 s", "[1]"),
        ("+2 s", "✓ completed", "cool off", "sleep", "", "200 ms", None),
        ("+3 s", "✓ completed", "undo me", "do", "1", "0 ms",
         "rolled back at 2026-11-21 14:00:00 UTC"),
        ("+3 s", "✓ completed", "undo this", "do", "1", "0 ms",
         "rollback given up at 2026-11-21 14:00:00 UTC"),
        ("+10 s", "✗ errored", "charge", "do", "6 of 6", "1 min", "CardError: declined"),
        ("+1 min 10 s", "⊘ cancelled", "slow", "join", "", "0 ms", None),
        ("+1 min 20 s", "… waiting", "approval", "wait_for_event", "", "20 s",
         "waiting for event approval"),
    ]  # fmt: skip


def test_results_and_payloads_are_cut_unless_all_is_wanted():
    long = step("long", "do", "completed", 1, 0, result="x" * 99)
    assert len(step_rows([long], NOW, 60, frames=False)[0]["what"]) == 60
    assert len(step_rows([long], NOW, None, frames=False)[0]["what"]) == 101
    event = answered(Event, type="go", payload="x" * 99, created_at=NOW)
    assert len(event_rows([event], 60)[0]["payload"]) == 60
    taken = answered(Event, type="go", payload=7, created_at=NOW, consumed_by_step_key="wait")
    at_two = {"at": "2026-11-21 14:00:00.000 UTC", "type": "go"}
    assert event_rows([event, taken], None) == [
        {**at_two, "consumed by": "no step yet", "payload": f'"{"x" * 99}"'},
        {**at_two, "consumed by": "wait", "payload": "7"},
    ]


def test_a_log_line_says_where_it_is_from_and_whether_a_replay_wrote_it():
    line = answered(LogLine, level="info", category="x", message="hi", step_key="charge", attempt=2,
                   data={"a": 1}, is_replay=True, created_at=ago(milliseconds=1))  # fmt: skip
    assert log_row(line) == {
        "at": "2026-11-21 13:59:59.999 UTC", "level": "info", "category": "x", "step": "charge#2",
        "message": "(replay) hi", "data": '{"a": 1}',
    }  # fmt: skip
    bare = log_row(answered(LogLine, level="warn", message="hi"))
    assert (bare["step"], bare["data"]) == ("-", None)
