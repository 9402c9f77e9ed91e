"""Notifications: what records lead to."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.notifications import (
    NOTIFY,
    REACT,
    Notification,
    ToEndpoint,
    instance_id,
    jittered_ms,
    message_id,
    notification_id,
    of_dead_letter,
    of_history,
    of_row,
    sending,
)
from headwater.schemas.history import (
    Failure,
    HistoryAppended,
    LogEvent,
    RunCompleted,
    RunErrored,
    RunSuspended,
    RunTerminated,
)
from headwater.schemas.row_states import RowState
from headwater.schemas.tables import DAILY_SUMMARY, TERRA_LAB_UPLOADS, USERS, Row


def appended(*events: LogEvent, workflow: str = "order") -> HistoryAppended:
    return HistoryAppended(
        workflow=workflow, instance_id="o-1", run_number=2, sequence=7, epoch=1, cause=-1,
        at_ms=1_782_900_000_000, events=events,
    )  # fmt: skip


def derived(record: HistoryAppended) -> list[Notification]:
    return list(of_history(record, 3, 17))


def test_every_end_of_an_instance_is_a_notification():
    error = RunErrored(Failure("PaymentDeclined", "card 4"))
    terminated = RunTerminated("by hand")
    (errored,), (completed,), (ended,) = (
        derived(appended(RunSuspended(), event)) for event in (error, RunCompleted("1"), terminated)
    )
    assert errored.type == "instance_errored"
    assert errored.workflow == "order"
    assert errored.position == (3, 17)
    assert errored.data == {
        "workflow": "order", "id": "o-1", "run": 2, "status": "errored",
        "error": {"name": "PaymentDeclined", "message": "card 4"},
    }  # fmt: skip
    assert completed.type == "instance_completed"
    assert completed.data["error"] is None
    assert ended.data["status"] == "terminated"
    assert ended.data["error"]["name"] == "Terminated"
    assert not derived(appended(RunSuspended()))


def test_instances_that_send_notifications_lead_to_none():
    error = RunErrored(Failure("NotDelivered", "no"))
    for workflow in (NOTIFY, REACT, ""):
        assert not derived(appended(error, workflow=workflow))


def test_equal_records_have_equal_ids():
    (first,), (again,) = derived(appended(RunCompleted("1"))), derived(appended(RunCompleted("1")))
    assert first.id == again.id == notification_id("instance_completed", "workflow-history", 3, 17)
    assert first.id != notification_id("instance_errored", "workflow-history", 3, 17)
    assert "." not in first.id


def test_an_instance_id_names_endpoint_and_notification():
    (notification,) = derived(appended(RunCompleted("1")))
    name = instance_id(notification, "ep_0011")
    assert name.startswith("ep_0011-")
    assert len(name) <= 100
    assert message_id(name) == notification.id


def test_a_dead_letter_names_its_record():
    fields = {
        "topic": "events", "partition": "3", "offset": "4711", "stage": "intake",
        "reason": "rule_failed", "detail": "x" * 5_000, "event_id": "", "request_id": "01J",
    }  # fmt: skip
    notification = of_dead_letter(fields, 3, 17, 5)
    assert notification.reason == "rule_failed"
    assert notification.data["record"] == "events/3@4711"
    assert notification.data["position"] == "3@17"
    assert len(notification.data["detail"]) == 2_000
    assert notification.data["event_id"] is None
    assert notification.position is None


def row(
    table: object, key: tuple[str, ...], state: RowState | None = None, **values: object
) -> Row:
    columns = [values.get(name) for name in table.column_names]  # type: ignore[attr-defined]
    return Row(key, tuple(columns), (None,) * len(columns), state)  # type: ignore[arg-type]


def test_a_row_has_its_columns_and_its_user():
    changed = of_row(
        TERRA_LAB_UPLOADS, row(TERRA_LAB_UPLOADS, ("t-1",), user_id="u", upload_id="x"), 2, 99, 5
    )
    assert changed.type == "row_changed"
    assert changed.user_id == "u"
    assert changed.data == {
        "table": "terra_lab_uploads", "key": {"terra_upload_id": "t-1"}, "version": "2@99",
        "row": {"user_id": "u", "upload_id": "x"},
    }  # fmt: skip
    assert of_row(USERS, row(USERS, ("u",)), 0, 1, 5).user_id == "u"
    daily = row(DAILY_SUMMARY, ("u", "garmin", "2026-07-01"), steps=3)
    assert of_row(DAILY_SUMMARY, daily, 0, 1, 5).data["row"]["steps"] == 3


def test_a_hidden_row_is_deleted():
    hidden = row(TERRA_LAB_UPLOADS, ("t-1",), RowState())
    deleted = of_row(TERRA_LAB_UPLOADS, hidden, 2, 100, 5)
    assert deleted.type == "row_deleted"
    assert "row" not in deleted.data


def test_a_large_row_is_sent_without_its_columns():
    large = row(TERRA_LAB_UPLOADS, ("t-1",), user_id="u", upload_id="x" * 200_000)
    assert of_row(TERRA_LAB_UPLOADS, large, 2, 99, 5).data["row"] is None


def test_params_name_the_user_for_wipes():
    notification = of_row(USERS, row(USERS, ("u",)), 0, 1, 5)
    params = msgspec.json.decode(sending(notification, "ep_1", (5,)).params)
    assert params["user_id"] == "u"
    assert msgspec.json.decode(sending(notification, "ep_1", (5,)).params, type=ToEndpoint)


@given(st.integers(0, 10**10), st.text(max_size=20))
def test_a_delay_is_up_to_a_tenth_shorter_or_longer(delay_ms: int, seed: str):
    jittered = jittered_ms(delay_ms, seed)
    assert delay_ms * 9 // 10 <= jittered <= delay_ms * 11 // 10
    assert jittered == jittered_ms(delay_ms, seed)
