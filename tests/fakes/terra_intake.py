"""Deliveries of Terra through the pipeline's own intake, in memory: rows and outcomes come out."""

import json
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.providers.envelope import Malformed, event_id, occurrence_of, sent_at_ms
from headwater.processors.providers.headwater import HEADWATER, delivery_of
from headwater.processors.providers.provider import Placement, Provider
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.epochs import HIDDEN
from headwater.schemas.installed_tables import TABLE_BY_TOPIC
from headwater.schemas.providers.headwater import SystemEvent
from headwater.schemas.records import OutcomeRecorded, WebhookReceived
from headwater.schemas.tables import Row, Table
from headwater.schemas.topics import DEAD_LETTERS, OUTCOMES, WEBHOOKS
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_state import PartitionCheckpoint, PartitionState
from tests.commit_units import emitted_by
from tests.fakes.memory_store import MemoryStore

Json = dict[str, Any]

USER = {"user_id": "t1", "provider": "GARMIN", "reference_id": "user_1"}
#: 2026-07-02T12:00:00Z.
NOW_MS = 1_782_993_600_000


def delivery(
    type_: str | None, data: object, at_s: float = 0, *, user: Json | None = None, **more: object
) -> WebhookReceived:
    """A delivery that was signed so many seconds after the first."""
    body: Json = {"user": USER | (user or {}), "data": data, **more}
    if type_ is not None:
        body["type"] = type_
    if type_ is None or type_.startswith("lab_report"):
        del body["user"]
    return of_body(json.dumps(body).encode(), at_s)


def of_body(body: bytes, at_s: float = 0, *, ordered_ms: int | None = None) -> WebhookReceived:
    header = {} if ordered_ms is None else {"x-terra-ordering-timestamp": str(ordered_ms)}
    routing = TERRA.route(body, header)
    assert not isinstance(routing, Malformed), routing
    signed_ms = NOW_MS + round(at_s * 1000)
    kind = TERRA.types.get(routing.type)
    may_recur = kind is not None and kind.latest is not None
    occurrence = occurrence_of(signed_ms, routing.ordered_ms) if may_recur else ""
    return WebhookReceived(
        event_id=event_id("terra", routing.type, routing.subject, body, occurrence),
        request_id="r",
        source="terra",
        type=routing.type,
        subject=routing.subject,
        reference=routing.reference,
        sent_at_ms=sent_at_ms(signed_ms, routing.ordered_ms),
        updated_at_ms=routing.updated_at_ms,
        received_at_ms=NOW_MS,
        body=body,
    )


def fact(event: SystemEvent) -> WebhookReceived:
    """A system event as a delivery."""
    return delivery_of(event, request_id="r", now_ms=NOW_MS)


class TerraIntake:
    """One partition, with everything that it has appended."""

    def __init__(self, terra: Provider = TERRA) -> None:
        providers = {**installed_providers(), "terra": terra, HEADWATER.name: HEADWATER}
        placement = Placement(providers, "user_")
        self._intake = Intake(placement=placement, partitions=1, park_for_ms=1_000, rules=())
        self.state = PartitionState(0, MemoryStore())
        self._offset = 0
        self._offset_of: dict[str, int] = {}
        self.topics: dict[str, dict[bytes, Outgoing]] = {}
        self.outcomes: dict[str, OutcomeRecorded] = {}
        self.letters: list[dict[str, str]] = []

    def take(self, *deliveries: WebhookReceived) -> "TerraIntake":
        """Processes deliveries in one commit unit, and makes it durable."""
        records = [self._record(item) for item in deliveries]
        emitted = emitted_by(self._intake, self.state, records, NOW_MS, WEBHOOKS)
        self.state.write(PartitionCheckpoint())
        for record in emitted:
            self._append(record)
        return self

    def restored(self) -> "TerraIntake":
        """What another owner makes of the topics."""
        self.state = PartitionState(0, MemoryStore())
        for topic, records in self.topics.items():
            for record in records.values():
                headers = tuple(record.headers or ())
                key, value = record.key, record.value
                self.state.restore_record(
                    Incoming(topic, 0, 0, NOW_MS, 0, key, value, None, 0, 0, headers)
                )
        self.state.write(PartitionCheckpoint())
        return self

    def _record(self, item: WebhookReceived) -> Incoming:
        key, value = item.event_id.encode(), encode(item)
        offset, self._offset = self._offset, self._offset + 1
        sizes = (len(key), len(value))
        return Incoming(WEBHOOKS, 0, offset, NOW_MS, 0, key, value, None, *sizes, ())

    def _append(self, record: Outgoing) -> None:
        if record.topic == OUTCOMES and record.value is not None:
            outcome = decode(record.value, OutcomeRecorded)
            self.outcomes[outcome.event_id] = outcome
        elif record.topic == DEAD_LETTERS:
            headers = record.headers or ()
            self.letters.append({name: (value or b"").decode() for name, value in headers})
        elif record.topic in TABLE_BY_TOPIC:
            rows = self.topics.setdefault(record.topic, {})
            rows.pop(record.key or b"", None)  # So that records stay in the order of the log.
            rows[record.key or b""] = record

    def rows(self, table: Table) -> dict[tuple[str, ...], Row]:
        """The rows that readers have."""
        return {
            row.key: msgspec.structs.replace(row, state=None)
            for record in self.topics.get(table.topic, {}).values()
            if record.value is not None and HIDDEN not in (record.headers or ())
            for row in [decode_row(table, record.value)]
        }

    def values(self, table: Table) -> dict[tuple[str, ...], Json]:
        """The rows that readers have, without nulls and the texts of records."""
        return {
            key[1:]: {
                name: value
                for name, value in zip(table.column_names, row.values, strict=True)
                if value is not None and name != "raw"
            }
            for key, row in self.rows(table).items()
        }

    def outcome(self, item: WebhookReceived) -> tuple[str, str]:
        outcome = self.outcomes[item.event_id]
        return outcome.status, outcome.reason

    def dropped(self, item: WebhookReceived) -> dict[str, str]:
        """The values of a delivery that were dropped, by path."""
        fields = json.loads(self.outcomes[item.event_id].rejected_fields or "[]")
        return {field["path"]: field["reason"] for field in fields}


def taken(deliveries: Iterable[WebhookReceived], units: Collection[int] = ()) -> TerraIntake:
    """Takes deliveries, of which a new commit unit begins at each of some numbers."""
    intake, unit = TerraIntake(), []
    for number, item in enumerate(deliveries):
        if number in units and unit:
            intake.take(*unit)
            unit = []
        unit.append(item)
    return intake.take(*unit) if unit else intake
