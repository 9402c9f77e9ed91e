"""Records that follow from a commit unit, collected record by record before they are appended.

All of them go to the partition that its batches were read from, except hops to other owners.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from headwater.processors.columns import RowDeleted, Update
from headwater.processors.providers.results import (
    DroppedField,
    Effect,
    Failed,
    Normalized,
    NormalizeResult,
    Skipped,
    details_of,
    fields_text,
)
from headwater.processors.trace_context import delivery_context
from headwater.processors.triggers.decide import RejectedEffect
from headwater.schemas.codec import encode
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.records import EffectDecided, OutcomeRecorded, WebhookAdmitted
from headwater.schemas.topics import EFFECTS, OUTCOMES
from headwater.streams.kafka.dead_letters import ProcessingFailure, dead_letter
from headwater.streams.kafka.records import Headers, Incoming, Outgoing, position_of
from headwater.streams.pipeline.delivery_headers import trace_headers

#: Reason of a dead letter that lists the rejected records of a delivery that was processed.
PARTIAL: Final = "partial"


class RecordBatch:
    """The records that follow from one unit, in the order they are to be appended."""

    def __init__(self, *, stage: str, partition: int, headers: Headers, now_ms: int) -> None:
        self.stage = stage
        self.headers = headers
        self.partition = partition
        self.now_ms = now_ms
        self.records: list[Outgoing] = []
        #: Number of outcomes by status.
        self.statuses: defaultdict[str, int] = defaultdict(int)
        #: Outcomes of deliveries with a trace, for the exporter of spans.
        self.traced: list[OutcomeRecorded] = []

    def add(self, record: Outgoing) -> None:
        """Add a record."""
        self.records.append(record)

    def normalized(self, event: WebhookAdmitted, record: Incoming, result: NormalizeResult) -> None:
        """Add dead letter and outcome of a normalized delivery, but not its rows."""
        match result:
            case Normalized(updates=updates, rejected=rejected, dropped=dropped):
                if rejected:
                    self.records.append(self._letter(record, event, PARTIAL, details_of(rejected)))
                counts = (_rows(updates), len(rejected))
                self.outcome(event, record, "processed", "", counts, dropped)
            case Skipped(reason=reason, updates=updates, dropped=dropped):
                self.outcome(event, record, "skipped", reason, (_rows(updates), 0), dropped)
            case Failed(code=code, detail=detail, rejected=rejected_all, dropped=dropped):
                self.records.append(self._letter(record, event, code, detail))
                self.outcome(event, record, "dead", code, (0, rejected_all), dropped)

    def outcome(
        self,
        event: WebhookAdmitted,
        record: Incoming,
        status: str,
        reason: str = "",
        counts: tuple[int, int] = (0, 0),
        dropped: Sequence[DroppedField] = (),
    ) -> None:
        """Add the outcome of a delivery, with its trace.

        Args:
            event: The delivery.
            record: The record that brought it.
            status: processed, skipped, parked or dead.
            reason: Why, unless it was processed.
            counts: Number of its rows, and of its rejected records.
            dropped: Its values that were dropped.
        """
        rows, rejected = counts
        self.statuses[status] += 1
        outcome = OutcomeRecorded(
            event_id=event.event_id,
            request_id=event.request_id,
            source=event.source,
            type=event.type,
            subject=event.subject,
            user_id=event.user_id,
            status=status,
            reason=reason,
            rows=rows,
            rejected=rejected,
            rejected_fields=fields_text(dropped) if dropped else None,
            rejected_fields_total=len(dropped),
            partition=event.partition,
            offset=event.offset,
            received_at_ms=event.received_at_ms,
            admitted_at_ms=event.admitted_at_ms,
            parked_at_ms=event.parked_at_ms,
            released_at_ms=event.released_at_ms,
            waited_for=event.waited_for,
            released_by=event.released_by,
            at_ms=self.now_ms,
            stage=self.stage,
            position=position_of(record),
            replay=event.replay,
            trace=event.trace,
        )
        key = event.event_id.encode()
        value = encode(outcome)
        headers = self.headers
        if event.trace:
            headers = [*headers, *trace_headers(event)]
            self.traced.append(outcome)
        self.records.append(Outgoing(OUTCOMES, self.partition, key, value, headers))

    def effect(
        self, event: WebhookAdmitted, record: Incoming, effect: Effect | RejectedEffect
    ) -> None:
        """Add what a delivery does to a workflow, or a dead letter that names the rule."""
        if isinstance(effect, RejectedEffect):
            letter = self._letter(record, event, effect.reason, effect.detail, rule=effect.name)
            self.records.append(letter)
            return
        key = msgspec.json.encode((event.event_id, effect.name))
        value = encode(effect_of(event, effect))
        self.records.append(Outgoing(EFFECTS, self.partition, key, value))

    def dead(
        self,
        record: Incoming,
        event: WebhookAdmitted | None,
        reason: str,
        detail: str,
        error: BaseException | None = None,
    ) -> None:
        """Add a dead letter, and the outcome if the delivery is known."""
        self.records.append(self._letter(record, event, reason, detail, error))
        if event is not None:
            self.outcome(event, record, "dead", reason)

    def _letter(
        self,
        record: Incoming,
        event: WebhookAdmitted | None,
        reason: str,
        detail: str,
        error: BaseException | None = None,
        rule: str | None = None,
    ) -> Outgoing:
        failure = ProcessingFailure(self.stage, reason, detail, error, rule)
        ids = {"event_id": event.event_id, "request_id": event.request_id} if event else {}
        return dead_letter(record, failure, now_ms=self.now_ms, **ids)

    def failed(self, record: Incoming, event: WebhookAdmitted | None, error: Exception) -> None:
        """Add a dead letter for an error that processing a record raised."""
        reason = error.code if isinstance(error, HeadwaterError) else "unexpected_error"
        self.dead(record, event, reason, f"{type(error).__name__}: {error}", error)


def phases(emitted: Sequence[Outgoing]) -> tuple[list[Outgoing], list[Outgoing]]:
    """Split the records of a unit into those to append first, and those to append after.

    An append to several partitions can fail halfway. A tombstone removes something that another
    record of the same unit continues, such as the wait of a released delivery: it must not become
    durable before that record. A tombstone that a later record of its key supersedes is left out.
    """
    first: list[Outgoing] = []
    tombstones: dict[tuple[object, ...], Outgoing] = {}
    for record in emitted:
        if record.value is None:
            tombstones[record[:3]] = record  # topic, partition and key
        else:
            first.append(record)
            if tombstones:
                tombstones.pop(record[:3], None)
    return first, list(tombstones.values())


def _rows(updates: Sequence[Update]) -> int:
    return len(
        {
            (update.table.name, update.key)
            for update in updates
            # Parts without values, such as a nap, set no columns.
            if type(update) is RowDeleted or update.values or any(update.parts.values())
        }
    )


def effect_of(event: WebhookAdmitted, effect: Effect) -> EffectDecided:
    """Return an effect of a delivery as a record."""
    return EffectDecided(
        event_id=event.event_id,
        request_id=event.request_id,
        name=effect.name,
        workflow=effect.workflow,
        instance_id=effect.instance_id,
        command=effect.command,
        trace=delivery_context(event.event_id, event.trace).text,
    )
