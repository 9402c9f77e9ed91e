"""The fold: one outcome for every delivery."""

from typing import Any

import msgspec
import pytest

from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY, TABLES
from tests.oracle import Folded, fold

#: 2026-07-02T12:00:00Z.
NOW_MS = 1782993600000
DAY = {"metadata": {"start_time": "2026-07-01T00:00:00Z"}, "distance_data": {"steps": 5}}


def delivery(
    event_id: str,
    type_: str,
    subject: str = "s-1",
    reference: str | None = None,
    body: dict[str, Any] | bytes = b"",
    sent: int = 0,
) -> WebhookReceived:
    if not body:
        user = {"user_id": subject, "provider": "OURA", "reference_id": reference}
        body = {"user": user, "data": [DAY]} if type_ == "daily" else {"user": user}
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body | {"type": type_})
    return WebhookReceived(
        event_id=event_id, request_id="r", source="terra", type=type_, subject=subject,
        reference=reference, sent_at_ms=NOW_MS + sent, updated_at_ms=0, received_at_ms=NOW_MS,
        body=raw,
    )  # fmt: skip


def reauth(event_id: str, new: str, old: str, reference: str | None = None, sent: int = 0):
    body = {
        "new_user": {"user_id": new, "reference_id": reference},
        "old_user": {"user_id": old, "reference_id": reference},
    }
    return delivery(event_id, "user_reauth", new, reference, body, sent)


def folded(*deliveries: WebhookReceived):
    return fold(
        ((0, offset, received) for offset, received in enumerate(deliveries)), user_prefix="user_"
    )


def days(found: Folded):
    at = DAILY_SUMMARY.index["steps"]
    return {key: row.values[at] for key, row in found.rows["daily_summary"].items()}


def test_nothing_folds_to_empty_tables():
    result = folded()
    assert result.outcomes == {}
    assert result.rows == {table.name: {} for table in TABLES}


@pytest.mark.parametrize(
    ("received", "outcome"),
    [
        (delivery("e", "daily", reference="user_1"), ("processed", "")),
        (delivery("e", "daily", "", "user_1"), ("processed", "")),
        (delivery("e", "daily"), ("parked", "no_connection_for_terra_user")),
        (delivery("e", "daily", "", None), ("dead", "no_user")),
        (delivery("e", "daily", "", "widget-1"), ("dead", "no_user")),
        (delivery("e", "auth"), ("parked", "no_connection_for_terra_user")),
        (delivery("e", "daily", "s-1", "user_1", b"not json"), ("dead", "malformed_payload")),
        (delivery("e", "daily", "s-1", None, b"not json"),
         ("parked", "no_connection_for_terra_user")),
        (delivery("e", "user_reauth", "s-1", None, b"not json"), ("dead", "malformed_payload")),
        (delivery("e", "daily", "s-1", "user_1", {"user": {}, "data": [DAY]}),
         ("dead", "missing_provider")),
        (delivery("e", "daily", "s-1", "user_1", {"user": {}, "data": []}),
         ("skipped", "empty_data")),
        (delivery("e", "athlete", "s-1", "user_1"), ("skipped", "athlete")),
        (delivery("e", "athlete"), ("skipped", "athlete")),
        (delivery("e", "athlete", ""), ("skipped", "athlete")),
        (delivery("e", "auth", ""), ("dead", "no_user")),
        (delivery("e", "auth", body={"status": "error"}), ("skipped", "auth_failed")),
        (delivery("e", "permission_change", body={"user": {"scopes": "A"}}),
         ("skipped", "permission_change")),
        (delivery("e", "lab_report", "upl_1"), ("parked", "no_lab_upload_for_upload_id")),
        (delivery("e", "lab_report.failed", "", body={"data": {}}), ("skipped", "no_upload_named")),
        (delivery("e", "lab_report.completed", "", None, {"data": {}}), ("dead", "no_user")),
        (delivery("e", "what", "s-1", "user_1"), ("skipped", "unknown_type:what")),
        (delivery("e", "unreadable", "", None, b"\xff"), ("dead", "undecodable")),
        (delivery("e", "unreadable", "", None, b"{}"), ("dead", "missing_type")),
        (delivery("e", "unreadable", "", None, {"type": "unreadable"}),
         ("skipped", "unknown_type:unreadable")),
        (delivery("e", "unreadable", "", None, b'{"type":"athlete"}'), ("skipped", "athlete")),
    ],
)  # fmt: skip
def test_a_delivery_alone_comes_to_one_outcome(received: WebhookReceived, outcome: tuple[str, str]):
    result = folded(received)
    assert result.outcomes == {"e": outcome}
    assert bool(days(result)) is (outcome == ("processed", ""))


def test_the_first_offset_of_an_event_id_counts_in_whatever_order_they_are_met():
    first = delivery("e", "daily", reference="user_1")
    second = msgspec.structs.replace(first, sent_at_ms=NOW_MS + 9)
    result = fold([(0, 7, second), (0, 3, first), (0, 9, second)], user_prefix="user_")
    (row,) = result.rows["daily_summary"].values()
    stamp = row.stamps[DAILY_SUMMARY.index["steps"]]
    assert stamp is not None
    assert stamp.sent_at_ms == NOW_MS
    assert stamp.position == "webhooks/0@3"


def test_a_user_is_learned_from_an_authentication_that_comes_later():
    result = folded(delivery("e-1", "daily"), delivery("e-2", "auth", reference="user_1"))
    assert result.outcomes["e-1"] == ("processed", "")
    assert days(result) == {("user_1", "oura", "2026-07-01"): 5}


def test_the_latest_authentication_of_a_subject_counts():
    result = folded(
        delivery("e-1", "auth_success", reference="user_2", sent=2),
        delivery("e-2", "auth", reference="user_1", sent=1),
        delivery("e-3", "daily"),
    )
    assert days(result) == {("user_2", "oura", "2026-07-01"): 5}


def test_a_closed_connection_tells_its_user_too():
    result = folded(delivery("e-1", "deauth", reference="user_1"), delivery("e-2", "daily"))
    assert days(result) == {("user_1", "oura", "2026-07-01"): 5}


def test_a_reauthentication_takes_its_user_from_the_subject_it_replaces():
    result = folded(
        delivery("e-4", "daily", "s-3"),
        reauth("e-3", "s-3", "s-2", "widget-2"),
        reauth("e-2", "s-2", "s-1"),
        delivery("e-1", "auth", "s-1", "user_1"),
    )
    assert set(result.outcomes.values()) == {("processed", "")}
    assert days(result) == {("user_1", "oura", "2026-07-01"): 5}
    active = CONNECTIONS.index["active"]
    connections = result.rows["terra_connections"].items()
    assert {key[0]: row.values[active] for key, row in connections} == {
        "s-1": False,
        "s-2": False,
        "s-3": True,
    }


def test_subjects_that_replace_each_other_in_a_ring_end():
    result = folded(
        reauth("e-1", "s-1", "s-2", sent=1),
        reauth("e-2", "s-2", "s-1", sent=2),
        delivery("e-3", "auth", "s-1", "user_1"),
        delivery("e-4", "auth", "s-2", "user_2"),
        delivery("e-5", "daily", "s-1"),
    )
    assert result.outcomes["e-5"] == ("processed", "")


def test_an_authentication_of_nobody_teaches_nothing():
    result = folded(delivery("e-1", "auth", "", "user_1"), delivery("e-2", "daily", ""))
    assert result.outcomes == {"e-1": ("dead", "missing_user_id"), "e-2": ("dead", "no_user")}
