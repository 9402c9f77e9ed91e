"""What the system tells itself: facts become rows as deliveries do, and nobody can post them."""

import itertools

import msgspec
import pytest

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.providers.headwater import delivery_of
from headwater.processors.providers.provider import Placement
from headwater.processors.sources import SourcesInvalid, read_sources, webhook_providers
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.installed_tables import TABLE_BY_TOPIC
from headwater.schemas.providers.headwater import (
    ConnectionClosed,
    ConnectionListed,
    LabSubmitted,
    LabUploaded,
    SystemEvent,
)
from headwater.schemas.records import EffectDecided, OutcomeRecorded, WebhookReceived
from headwater.schemas.topics import EFFECTS, OUTCOMES, WEBHOOKS
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_state import PartitionState
from tests.commit_units import emitted_by
from tests.fakes.memory_store import MemoryStore

NOW = 1_783_000_000_000
USER = "amara"  # Users of ours need no prefix where the system itself names them.
UPLOADED = LabUploaded(
    at_ms=NOW,
    user_id=USER,
    upload_id="u1",
    storage_key="lab-uploads/amara/u1.pdf",
    original_name="blood.pdf",
    content_type="application/pdf",
    size=1234,
)
SUBMITTED = LabSubmitted(
    at_ms=NOW + 5,
    user_id=USER,
    upload_id="u1",
    terra_status="submitted",
    terra_upload_id="upl_1",
    terra_response='{"upload_id": "upl_1"}',
)
LISTED = ConnectionListed(
    at_ms=NOW, user_id=USER, terra_user_id="t1", provider="GARMIN", scopes="A,B"
)
GONE = ConnectionClosed(at_ms=NOW + 5, user_id=USER, terra_user_id="t1")
DAILY = b"""{"type": "daily", "user": {"user_id": "t1", "provider": "GARMIN"},
 "data": [{"metadata": {"start_time": "2026-07-01T00:00:00+01:00"},
           "distance_data": {"steps": 100}}]}"""


class Pipeline:
    """Intake with one partition, and the newest of what it has appended."""

    def __init__(self) -> None:
        self._intake = Intake(
            placement=Placement(installed_providers(), "user_"), partitions=1, park_for_ms=10**9
        )
        self._state = PartitionState(0, MemoryStore())
        self._offsets = itertools.count()
        self.outcomes: dict[str, OutcomeRecorded] = {}
        self.rows: dict[str, dict[str, object]] = {}
        self.effects: list[EffectDecided] = []

    def take(self, *deliveries: WebhookReceived | SystemEvent) -> "Pipeline":
        for delivery in deliveries:
            received = delivery if isinstance(delivery, WebhookReceived) else told(delivery)
            key, value = received.event_id.encode(), encode(received)
            position = (WEBHOOKS, 0, next(self._offsets), 0, 0)
            record = Incoming(*position, key, value, None, len(key), len(value), ())
            for made in emitted_by(self._intake, self._state, [record], NOW):
                self._read(made)
        return self

    def _read(self, record: Outgoing) -> None:
        table = TABLE_BY_TOPIC.get(record.topic)
        if table is not None:
            row = decode_row(table, record.value)
            named = dict(zip(table.column_names, row.values, strict=True))
            self.rows[f"{table.name} {' '.join(row.key)}"] = named
        elif record.topic == OUTCOMES:
            outcome = decode(record.value, OutcomeRecorded)
            self.outcomes[outcome.event_id] = outcome
        elif record.topic == EFFECTS:
            self.effects.append(decode(record.value, EffectDecided))


def told(fact: SystemEvent) -> WebhookReceived:
    return delivery_of(fact, request_id="r", now_ms=NOW + 9)


def daily() -> WebhookReceived:
    return WebhookReceived(
        event_id="e1", request_id="r", source="terra", type="daily", subject="t1",
        sent_at_ms=NOW, updated_at_ms=0, received_at_ms=NOW, body=DAILY,
    )  # fmt: skip


def test_an_upload_and_what_terra_said_to_it_are_one_row():
    result = Pipeline().take(UPLOADED, SUBMITTED)
    assert {outcome.status for outcome in result.outcomes.values()} == {"processed"}
    assert result.rows["lab_uploads u1"] == {
        "user_id": "amara",
        "storage_key": "lab-uploads/amara/u1.pdf",
        "original_name": "blood.pdf",
        "content_type": "application/pdf",
        "size": 1234,
        "terra_status": "submitted",
        "terra_upload_id": "upl_1",
        "terra_response": '{"upload_id": "upl_1"}',
        "created_at": "2026-07-02T13:46:40.000Z",
    }
    assert result.rows["terra_lab_uploads upl_1"] == {"user_id": "amara", "upload_id": "u1"}
    assert result.rows["users amara"]["created_at"] == "2026-07-02T13:46:40.000Z"
    assert result.rows["users amara"]["last_seen_at"] == "2026-07-02T13:46:40.000Z"


def test_a_user_is_last_seen_by_the_first_delivery_of_the_latest_hour():
    later = [msgspec.structs.replace(LISTED, at_ms=NOW + ms) for ms in (3_600_000, 3_599_000, 9)]
    for told_ in itertools.permutations([LISTED, *later]):
        seen = Pipeline().take(*told_).rows["users amara"]["last_seen_at"]
        assert seen == "2026-07-02T14:46:39.000Z"


def test_an_upload_is_on_its_way_to_terra_as_soon_as_it_is_told_of():
    again = msgspec.structs.replace(UPLOADED, at_ms=NOW + 60_000)
    result = Pipeline().take(UPLOADED, again)
    provided = [(effect.workflow, effect.instance_id) for effect in result.effects]
    assert provided == [("terra-lab", "u1")] * 2, "the second finds the instance of the first"
    first = Pipeline().take(UPLOADED).rows["lab_uploads u1"]["created_at"]
    assert result.rows["lab_uploads u1"]["created_at"] == first


def test_the_order_of_facts_does_not_matter():
    retold = msgspec.structs.replace(SUBMITTED, at_ms=NOW + 2, terra_status="failed:network")
    facts = [UPLOADED, SUBMITTED, retold, LISTED, GONE]
    for order in itertools.permutations(facts):
        assert Pipeline().take(*order, *order).rows == Pipeline().take(*facts).rows


def test_an_upload_that_terra_did_not_take_names_nobody():
    failed = msgspec.structs.replace(
        SUBMITTED, terra_status="failed:500", terra_upload_id=None, terra_response="boom"
    )
    result = Pipeline().take(UPLOADED, failed)
    assert result.rows["lab_uploads u1"]["terra_status"] == "failed:500"
    assert not any(row.startswith("terra_lab_uploads") for row in result.rows)


def test_a_connection_that_terra_lists_releases_who_waits_for_it():
    result = Pipeline().take(daily())
    assert result.outcomes["e1"].status == "parked"
    result.take(LISTED)
    assert result.outcomes["e1"].status == "processed"
    assert result.rows["daily_summary amara garmin 2026-07-01"]["steps"] == 100
    assert result.rows["terra_connections t1"]["active"] is True
    result.take(GONE)
    assert result.rows["terra_connections t1"]["active"] is False


def report(event_id: str, **changes: object) -> WebhookReceived:
    results = [{"biomarker": "ldl_cholesterol", "value": 131, "unit": "mg/dL"}]
    body = {"upload_id": "upl_1", "data": [{"report_date": "2026-06-30", "results": results}]}
    fields: dict[str, object] = {
        "event_id": event_id, "request_id": "r", "source": "terra", "type": "lab_report",
        "subject": "upl_1", "sent_at_ms": NOW + 3, "updated_at_ms": 0, "received_at_ms": NOW,
        "body": msgspec.json.encode(body),
    }  # fmt: skip
    return WebhookReceived(**(fields | changes))


def test_a_report_waits_until_it_is_known_whose_upload_it_is_of():
    result = Pipeline().take(UPLOADED, report("lab"))
    waiting = result.outcomes["lab"]
    assert (waiting.status, waiting.reason) == ("parked", "no_lab_upload_for_upload_id")
    result.take(SUBMITTED)
    assert (result.outcomes["lab"].status, result.outcomes["lab"].user_id) == ("processed", "amara")
    row = result.rows["biomarkers_raw amara terra_lab 2026-06-30 ldl"]
    assert (row["value"], row["unit"], row["upload_id"]) == (131.0, "mg/dL", "u1")
    # It was signed before it was recorded that the upload was sent.
    assert result.rows["lab_uploads u1"]["terra_status"] == "parsed"


def test_a_correction_replaces_a_result_with_all_that_was_said_of_it():
    data = {"report_date": "2026-06-30", "results": [{"biomarker": "ldl", "value": "<5"}]}
    body = msgspec.json.encode({"upload_id": "upl_1", "data": [data]})
    corrected = report("lab2", sent_at_ms=NOW + 9, body=body)
    for order in itertools.permutations([SUBMITTED, report("lab1"), corrected]):
        row = Pipeline().take(*order).rows["biomarkers_raw amara terra_lab 2026-06-30 ldl"]
        assert (row["value"], row["value_text"], row["unit"]) == (None, "<5", None)


def test_what_became_of_an_upload_is_the_same_in_any_order():
    error = {"error": {"code": "file_unreadable"}}
    body = msgspec.json.encode({"type": "lab_report.failed", "upload_id": "upl_1", "data": error})
    failed = report("failed", type="lab_report.failed", body=body, sent_at_ms=NOW + 1)
    for order in itertools.permutations([UPLOADED, SUBMITTED, failed]):
        result = Pipeline().take(*order)
        assert result.rows["lab_uploads u1"]["terra_status"] == "failed:file_unreadable"
    for order in itertools.permutations([UPLOADED, SUBMITTED, failed, report("lab")]):
        assert Pipeline().take(*order).rows["lab_uploads u1"]["terra_status"] == "parsed"


def test_what_is_told_twice_is_one_delivery_and_another_time_is_another():
    later = msgspec.structs.replace(LISTED, at_ms=NOW + 7)
    assert told(LISTED).event_id == told(LISTED).event_id != told(later).event_id


def test_nobody_can_post_what_the_system_tells():
    providers = installed_providers()
    assert "headwater" not in [provider.name for provider in webhook_providers(providers)]
    assert providers["headwater"].paths == ()
    for written in (
        '[[source]]\nname = "headwater"\nscheme = "svix"\nsecrets = ["whsec_YWJj"]',
        '[[source]]\nname = "mine"\nprovider = "headwater"\nscheme = "svix"',
    ):
        with pytest.raises(SourcesInvalid, match="headwater"):
            read_sources(written, providers)
