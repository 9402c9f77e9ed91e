"""Every delivery that Terra documents, as it is posted: how each is answered, and how it ends."""

import itertools
from typing import Any, Final

import msgspec
import pytest

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.providers.headwater import delivery_of
from headwater.processors.providers.provider import Placement
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.installed_tables import TABLE_BY_TOPIC
from headwater.schemas.providers.headwater import LabSubmitted
from headwater.schemas.records import OutcomeRecorded, WebhookReceived
from headwater.schemas.topics import OUTCOMES, WEBHOOKS
from headwater.streams.kafka.records import Incoming
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_state import PartitionState
from tests.commit_units import emitted_by
from tests.fakes.delivery_log import MemoryLog
from tests.fakes.memory_store import MemoryStore
from tests.unit.gateway.conftest import NOW_MS, Clock, Post

USER: Final = {
    "user_id": "5c1e-77",
    "provider": "POLAR",
    "last_webhook_update": "2026-06-20T06:30:01.500000+00:00",
    "scopes": "DAILY,SLEEP",
    "reference_id": "user_nia",
    "active": True,
}
SPAN: Final = {
    "start_time": "2026-06-19T00:00:00.000000-05:00",
    "end_time": "2026-06-20T00:00:00.000000-05:00",
}
VERSION: Final = "2022-03-16"


def about(type_: str, **more: object) -> dict[str, Any]:
    return {"type": type_, "version": VERSION, "user": USER, **more}


RUN: Final = {
    "metadata": {
        "name": "Lunch Walk",
        "summary_id": "9a9a",
        "start_time": "2026-06-19T12:00:00.000000-05:00",
        "end_time": "2026-06-19T12:30:00.000000-05:00",
        "type": 7,
        "upload_type": 1,
    },
    "distance_data": {"summary": {"distance_meters": 2100.5, "steps": 2900}},
    "calories_data": {"total_burned_calories": 160.5, "net_activity_calories": 120},
    "heart_rate_data": {"summary": {"avg_hr_bpm": 101.5, "max_hr_bpm": 122}},
}
BODY: Final = {
    "metadata": SPAN,
    "measurements_data": {
        "measurements": [
            {
                "measurement_time": "2026-06-19T08:00:00.000000-05:00",
                "weight_kg": 61.5,
                "bodyfat_percentage": 24.1,
                "BMI": 21.9,
            }
        ]
    },
    "heart_data": {"heart_rate_data": {"summary": {"resting_hr_bpm": 57}}},
}
DAILY: Final = {
    "metadata": SPAN | {"upload_type": 0},
    "distance_data": {"steps": 7001, "distance_meters": 5100.5},
    "calories_data": {"total_burned_calories": 1900.5},
    "active_durations_data": {"activity_seconds": 2400},
}
SLEEP: Final = {
    "metadata": {
        "start_time": "2026-06-18T22:30:00.000000-05:00",
        "end_time": "2026-06-19T06:15:00.000000-05:00",
        "is_nap": False,
        "upload_type": 1,
    },
    "sleep_durations_data": {
        "asleep": {
            "duration_asleep_state_seconds": 24_000,
            "duration_deep_sleep_state_seconds": 4_200,
            "duration_REM_sleep_state_seconds": 4_800,
        },
        "awake": {"duration_awake_state_seconds": 1_200},
        "sleep_efficiency": 94.5,
    },
}
RESULT: Final = {
    "source": {
        "name": "Ferritin, serum",
        "value": "48",
        "units": "ug/L",
        "collection_date": "2026-06-11",
    },
    "biomarker": {"key": "ferritin", "display_name": "Ferritin", "loinc_code": "2276-4"},
    "measurement": {"type": "numeric", "numeric": 48, "units": "ug/L", "ucum_code": "ug/L"},
    "interpretation": {"flag": "low", "source": "report"},
}
REPORT: Final = {
    "session_id": "77",
    "reference_id": "a-patient",
    "report_date": "2026-06-12",
    "report_locale": "de-DE",
    "results_count": 1,
    "results": [RESULT],
    "panels": [],
}
ERROR: Final = {"code": "file_unreadable", "message": "It is upside down.", "retriable": False}

#: The examples, and what becomes of each: status, reason, and the rows that it leaves.
EXAMPLES: Final[dict[str, tuple[dict[str, Any], str, str, tuple[str, ...]]]] = {
    "auth": (about("auth", status="success", widget_session_id="w"), "processed", "",
             ("terra_connections 5c1e-77",)),
    "auth cancelled": (
        {"type": "auth_cancelled", "status": "error", "flow_id": "f", "reason": "access_denied",
         "reference_id": "user_nia"},
        "skipped", "auth_cancelled", ()),
    "deauth": (about("deauth", status="success"), "processed", "", ("terra_connections 5c1e-77",)),
    "access revoked": (about("access_revoked", status="warning"), "processed", "",
                       ("terra_connections 5c1e-77",)),
    "user reauth": (
        {"type": "user_reauth", "status": "warning", "version": VERSION,
         "new_user": USER | {"user_id": "5c1e-78"}, "old_user": USER | {"active": False}},
        "processed", "", ("terra_connections 5c1e-77", "terra_connections 5c1e-78")),
    "permission change": (
        about("permission_change", scopes_added="BODY", scopes_removed=""),
        "skipped", "permission_change", ("terra_connections 5c1e-77",)),
    "connection error": (about("connection_error", status="warning"),
                         "skipped", "connection_error", ()),
    "activity": (about("activity", data=[RUN]), "processed", "",
                 ("activities user_nia polar 2026-06-19T17:00:00.000Z 9a9a",)),
    "body": (about("body", data=[BODY]), "processed", "",
             ("biomarkers_raw user_nia polar_body 2026-06-19 weight_kg",
              "biomarkers_raw user_nia polar_body 2026-06-19 body_fat_percent")),
    "daily": (about("daily", data=[DAILY]), "processed", "",
              ("daily_summary user_nia polar 2026-06-19",)),
    "sleep": (about("sleep", data=[SLEEP]), "processed", "",
              ("daily_summary user_nia polar 2026-06-19",
               "sleep_sessions user_nia polar 2026-06-19T03:30:00.000Z")),
    "athlete": (about("athlete", athlete={"sex": "female"}), "skipped", "athlete", ()),
    "menstruation": (about("menstruation", data=[{"metadata": SPAN}]),
                     "skipped", "menstruation", ()),
    "nutrition": (about("nutrition", data=[{"metadata": SPAN}]), "skipped", "nutrition", ()),
    "large request processing": (about("large_request_processing", reference="r"),
                                 "skipped", "large_request_processing", ()),
    "large request sending": (about("large_request_sending", expected_payloads=12),
                              "skipped", "large_request_sending", ()),
    "s3 payload": ({"type": "s3_payload", "status": "success", "url": "https://b.example/x"},
                   "skipped", "s3_payload", ()),
    "lab report": (
        {"type": "lab_report.completed", "event_id": "evt_1", "upload_id": "upl_nia",
         "occurred_at": "2026-06-20T06:30:00Z", "data": REPORT},
        "processed", "",
        ("biomarkers_raw user_nia terra_lab 2026-06-11 ferritin", "lab_uploads our-upload")),
    "lab report without a type": (
        {"upload_id": "upl_nia",
         "data": [{"session_id": "7", "report_date": "2026-06-12",
                   "results": [{"biomarker": "hba1c_percent", "name": "HbA1c", "value": 5.4,
                                "unit": "%", "reference_range": {"lower": 4, "upper": 5.6},
                                "classification": "optimal"}]}]},
        "processed", "",
        ("biomarkers_raw user_nia terra_lab 2026-06-12 hba1c", "lab_uploads our-upload")),
    "lab report of an upload that nobody knows": (
        {"type": "lab_report.completed", "upload_id": "upl_else", "data": REPORT},
        "parked", "no_lab_upload_for_upload_id", ()),
    "lab report without an upload, of a user of ours": (
        {"type": "lab_report.completed", "data": REPORT | {"reference_id": "user_nia"}},
        "processed", "", ("biomarkers_raw user_nia terra_lab 2026-06-11 ferritin",)),
    "failed lab report": (
        {"type": "lab_report.failed", "event_id": "evt_2",
         "data": {"session_id": "77", "reference_id": "a-patient", "error": ERROR}},
        "skipped", "no_upload_named", ()),
    "failed lab report of an upload": (
        {"type": "lab_report.failed", "upload_id": "upl_nia",
         "data": {"session_id": "77", "reference_id": "a-patient", "error": ERROR}},
        "processed", "", ("lab_uploads our-upload",)),
    "a type that is not documented": (about("planned_workout"),
                                      "skipped", "unknown_type:planned_workout", ()),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_documented_delivery_ends_as_it_should(post: Post, log: MemoryLog, name: str):
    body, status, reason, left = EXAMPLES[name]
    answer = post(msgspec.json.encode(body))
    assert answer.status_code == 200, answer.text
    assert answer.json()["type"] == body.get("type", "lab_report")
    (delivery,) = log.deliveries
    outcome, rows = processed(delivery)
    assert (outcome.status, outcome.reason, outcome.rejected) == (status, reason, 0)
    assert tuple(sorted(rows)) == tuple(sorted(left))
    assert outcome.rows == len(left)


def processed(delivery: WebhookReceived) -> tuple[OutcomeRecorded, list[str]]:
    """What becomes of a delivery, and its rows but those of users; an upload is known before."""
    intake = Intake(
        placement=Placement(installed_providers(), "user_"), partitions=1, park_for_ms=10**9
    )
    state = PartitionState(0, MemoryStore())
    upload = LabSubmitted(
        at_ms=NOW_MS, user_id="user_nia", upload_id="our-upload", terra_status="submitted",
        terra_upload_id="upl_nia",
    )  # fmt: skip
    offsets, emitted = itertools.count(), []
    for item in (delivery_of(upload, request_id="r", now_ms=NOW_MS), delivery):
        key, value = item.event_id.encode(), encode(item)
        position = (WEBHOOKS, 0, next(offsets), 0, 0)
        record = Incoming(*position, key, value, None, len(key), len(value), ())
        emitted = emitted_by(intake, state, [record], NOW_MS)
    (outcome,) = [decode(r.value, OutcomeRecorded) for r in emitted if r.topic == OUTCOMES]
    rows = []
    for record in emitted:
        table = TABLE_BY_TOPIC.get(record.topic)
        if table is not None and table.name != "users":
            rows.append(" ".join((table.name, *decode_row(table, record.value).key)))
    return outcome, rows


@pytest.mark.parametrize(
    ("before_ms", "kept"), [(3_600_000, True), (25 * 3_600_000, False), (-5_000, False)]
)
def test_a_retried_delivery_is_as_old_as_terra_says_it_is(
    post: Post, log: MemoryLog, clock: Clock, before_ms: int, kept: bool
):
    ordered_ms = clock.now_ms - before_ms
    body = msgspec.json.encode(about("daily", data=[DAILY]))
    post(body, **{"X-Terra-Ordering-Timestamp": str(ordered_ms)})
    assert log.deliveries[0].sent_at_ms == (ordered_ms if kept else clock.now_ms)
