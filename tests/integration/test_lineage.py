"""Goal: a value says where it comes from and what it overrode; a delivery, what it has set."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import orjson
import pytest

from headwater.processors.columns import merge
from headwater.processors.lineage import admitted, updates_of
from headwater.processors.providers.headwater import HEADWATER, delivery_of
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.codec import encode
from headwater.schemas.history import SendEvent, StartRun
from headwater.schemas.providers.headwater import LabSubmitted, LabUploaded
from headwater.schemas.records import EffectDecided, WebhookReceived
from headwater.schemas.topics import EFFECTS
from tests.fakes.delivery_log import MemoryLog
from tests.integration.test_gateway_reads import ADMIN, Write, gateway_on, write
from tests.integration.written import RECEIVED_AT_MS, Written, outcome, table_record

if TYPE_CHECKING:
    from headwater.schemas.tables import Row, Table

__all__ = ["write"]

PROVIDERS = {"terra": TERRA, "headwater": HEADWATER}
KEY = "user_amara/garmin/2026-07-01"
_SIGNED_MS = 1_782_950_400_000


def delivery(event_id: str, sent_s: int, **record: object) -> WebhookReceived:
    """A day of Amara's, with some parts of it."""
    span = {"start_time": "2026-07-01T00:00:00+01:00", "end_time": "2026-07-01T23:59:00+01:00"}
    body = {
        "type": "daily",
        "user": {"user_id": "t1", "provider": "GARMIN", "reference_id": "user_amara"},
        "data": [{"metadata": span, **record}],
    }
    return WebhookReceived(
        event_id=event_id, request_id=f"req-{event_id}", source="terra", type="daily",
        subject="t1", reference="user_amara", sent_at_ms=_SIGNED_MS + sent_s * 1_000,
        updated_at_ms=0, received_at_ms=_SIGNED_MS + sent_s * 1_000, body=orjson.dumps(body),
    )  # fmt: skip


DELIVERIES = (
    delivery("e1", 1, distance_data={"steps": 100}, scores={"sleep": 80}),
    delivery("e2", 3, distance_data={"steps": 300}),
    delivery("e3", 2, distance_data={"steps": 200}),
)


def rows_of(deliveries: Sequence[WebhookReceived], our_id: str | None = None) -> list[Written]:
    """The outcomes of deliveries, and the rows that the pipeline makes of them."""
    rows: dict[tuple[Table, tuple[str, ...]], Row] = {}
    for offset, entry in enumerate(deliveries):
        event = admitted(entry, PROVIDERS, "user_amara", 3, offset)
        event = msgspec.structs.replace(event, our_id=our_id)
        for update in updates_of(event, PROVIDERS):
            at = (update.table, update.key)
            rows[at] = merge(rows.get(at), update)
    outcomes = [
        outcome(
            item.event_id,
            user_id="user_amara",
            offset=offset,
            source=item.source,
            type=item.type,
            subject=item.subject,
        )
        for offset, item in enumerate(deliveries)
    ]
    return [*outcomes, *(table_record(table, row) for (table, _), row in rows.items())]


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.deliveries.extend(DELIVERIES)
    return log


def test_a_value_names_its_delivery_and_what_it_overrode(
    migrated: str, log: MemoryLog, write: Write
) -> None:
    write(rows_of(DELIVERIES))
    with gateway_on(migrated, log) as client:
        result = client.get(f"/admin/why/daily_summary/{KEY}", headers=ADMIN)
        assert result.status_code == 200, result.text
        why = result.json()
        assert why["table"] == "daily_summary"
        assert list(why["key"].values()) == KEY.split("/")
        assert why["complete"] is True
        steps = why["columns"]["steps"]
        sent_at = steps.pop("sent_at")
        assert sent_at.startswith("2026-07-02T00:00:03")
        assert [(o["value"], o["raw_event_id"]) for o in steps.pop("overrode")] == [
            (200, "e3"),
            (100, "e1"),
        ]
        assert steps == {
            "value": 300, "raw_event_id": "e2", "position": "webhooks/3@1",
            "normalizer": "terra.daily", "version": 1,
        }  # fmt: skip
        assert why["columns"]["sleep_score"]["raw_event_id"] == "e1"
        assert why["columns"]["sleep_score"]["overrode"] == []
        one = client.get(f"/admin/why/daily_summary/{KEY}?column=strain", headers=ADMIN).json()
        assert one["columns"] == {}


def test_a_user_says_by_which_deliveries_it_was_first_and_last_heard_of(
    migrated: str, log: MemoryLog, write: Write
) -> None:
    write(rows_of(DELIVERIES))
    with gateway_on(migrated, log) as client:
        why = client.get("/admin/why/users/user_amara", headers=ADMIN).json()
    created = why["columns"]["created_at"]
    assert (created["raw_event_id"], created["normalizer"]) == ("e1", "terra.daily")
    assert [item["raw_event_id"] for item in created["overrode"]] == ["e3", "e2"]
    assert why["columns"]["last_seen_at"]["raw_event_id"] == "e1"


def test_an_upload_says_what_its_status_overrode(
    migrated: str, log: MemoryLog, write: Write
) -> None:
    """The report names Terra's id of the upload alone; ours is looked up."""
    named = {"at_ms": _SIGNED_MS, "user_id": "user_amara", "upload_id": "up-1"}
    kept = LabUploaded(
        **named, storage_key="k", original_name="n", content_type="application/pdf", size=1
    )
    provided = LabSubmitted(**named, terra_status="submitted", terra_upload_id="t-1")
    facts = [delivery_of(item, request_id="r", now_ms=_SIGNED_MS) for item in (kept, provided)]
    body = {"upload_id": "t-1", "data": [{"results": [{"name": "LDL", "value": 7}]}]}
    report = WebhookReceived(
        event_id="report", request_id="r", source="terra", type="lab_report", subject="t-1",
        sent_at_ms=_SIGNED_MS + 1, updated_at_ms=0, received_at_ms=_SIGNED_MS,
        body=orjson.dumps(body),
    )  # fmt: skip
    failed = msgspec.structs.replace(
        report,
        event_id="failed",
        type="lab_report.failed",
        sent_at_ms=_SIGNED_MS + 2,
        body=orjson.dumps({"upload_id": "t-1", "data": {"error": {"code": "unread"}}}),
    )
    log.deliveries[:] = [*facts, report, failed]
    write(rows_of(log.deliveries, our_id="up-1"))
    with gateway_on(migrated, log) as client:
        result = client.get("/admin/why/lab_uploads/up-1", headers=ADMIN)
    assert result.status_code == 200, result.text
    status = result.json()["columns"]["terra_status"]
    assert (status["value"], status["raw_event_id"]) == ("failed:unread", "failed")
    said = [item["value"] for item in status["overrode"]]
    assert said == ["submitted", "pending"], "a report of no dated result says nothing"


def test_a_row_that_cannot_be_meant_is_refused(migrated: str, write: Write) -> None:
    write(rows_of(DELIVERIES))
    with gateway_on(migrated) as client:
        for path, status, says in (
            ("nothing/u", 404, "expected one of terra_connections"),
            ("daily_summary/user_amara/garmin", 400, "user_id/source/datetime"),
            ("daily_summary/user_amara/garmin/once", 400, "datetime (date)"),
            ("daily_summary/user_amara/garmin/2026-07-02", 404, "no row"),
            (f"daily_summary/{KEY}?column=stepz", 400, "'stepz'"),
            (f"daily_summary/{KEY}?columns=steps", 400, "columns"),
        ):
            answer = client.get(f"/admin/why/{path}", headers=ADMIN)
            assert answer.status_code == status, f"{path}: {answer.text}"
            assert says in answer.json()["detail"], path


def test_a_delivery_names_the_columns_it_set_those_it_still_sets_and_what_it_started(
    migrated: str, log: MemoryLog, write: Write
) -> None:

    def effect(name: str, command: StartRun | SendEvent) -> Written:
        record = EffectDecided(
            event_id="e1", request_id="r", name=name, workflow="report", instance_id=f"i-{name}",
            command=command,
        )  # fmt: skip
        return Written(EFFECTS, 0, b"e1", encode(record), timestamp=RECEIVED_AT_MS)

    started = [effect("begin", StartRun("{}")), effect("tell", SendEvent("ev", "told", "{}"))]
    write([*rows_of(DELIVERIES), *started])
    with gateway_on(migrated, log) as client:
        result = client.get("/admin/impact/e1", headers=ADMIN)
        assert result.status_code == 200, result.text
        impact = result.json()
        assert client.get("/admin/impact/e9", headers=ADMIN).status_code == 404
        overridden = client.get("/admin/impact/e3", headers=ADMIN).json()
    assert impact["instances"] == [{"workflow": "report", "id": "i-begin"}]
    row, user = impact["rows"]
    assert (user["table"], user["columns_still_set"]) == ("users", ["created_at", "last_seen_at"])
    assert (row["table"], list(row["key"].values())) == ("daily_summary", KEY.split("/"))
    assert sorted(row["columns_set"]) == ["sleep_score", "steps", "utc_offset_minutes"]
    assert row["columns_still_set"] == ["sleep_score"]
    row, user = overridden["rows"]
    assert user["columns_still_set"] == []
    assert (row["columns_set"], row["columns_still_set"]) == (["steps", "utc_offset_minutes"], [])
