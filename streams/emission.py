"""What a stage emits for a batch: a list of records to append, built up record by record."""

from typing import Final

from schemas.codec import encode
from schemas.errors import HeadwaterError
from schemas.records import DeliveryTraced, Hop, OutcomeRecorded, WebhookAdmitted
from schemas.topics import OUTCOMES, TRACES
from streams.dead_letters import dead_letter
from streams.records import Incoming, Outgoing, partition_of

_STAGE_OF: Final = {
    "processed": "normalized",
    "skipped": "normalized",
    "parked": "parked",
    "dead": "dead",
}


class Emission:
    """The records that one batch leads to, in the order they are to be appended."""

    def __init__(self, *, stage: str, partitions: int, now_ms: int) -> None:
        self.stage = stage
        self.partitions = partitions
        self.now_ms = now_ms
        self.records: list[Outgoing] = []

    def add(self, record: Outgoing) -> None:
        """Adds a record."""
        self.records.append(record)

    def keyed(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Adds a record to the partition of its key."""
        self.records.append(Outgoing(topic, partition_of(key, self.partitions), key, value))

    def hop(self, stage: str, record: Incoming, detail: str = "") -> Hop:
        """The stage of a journey that a record is at."""
        position = f"{record.topic}/{record.partition}@{record.offset}"
        return Hop(stage, self.now_ms, position, detail)

    def outcome(
        self,
        event: WebhookAdmitted,
        record: Incoming,
        status: str,
        reason: str = "",
        rows: int = 0,
    ) -> None:
        """Adds what became of a delivery, and its journey up to here."""
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
            partition=event.partition,
            offset=event.offset,
            received_at_ms=event.received_at_ms,
            at_ms=self.now_ms,
        )
        self.keyed(OUTCOMES, event.event_id.encode(), encode(outcome))
        detail = f"{status}:{reason}" if reason else f"{rows} rows"
        self.trace(event, self.hop(_STAGE_OF[status], record, detail), dead=status == "dead")

    def trace(self, event: WebhookAdmitted, last: Hop, *, dead: bool = False) -> None:
        """Adds the journey of a delivery."""
        traced = DeliveryTraced(
            request_id=event.request_id,
            event_id=event.event_id,
            user_id=event.user_id,
            level="error" if dead else "info",
            hops=(*event.hops, last),
        )
        self.keyed(TRACES, event.request_id.encode(), encode(traced))

    def dead(
        self,
        record: Incoming,
        event: WebhookAdmitted | None,
        reason: str,
        detail: str,
        error: BaseException | None = None,
    ) -> None:
        """Adds a dead letter, and the outcome when it is known which delivery it was."""
        self.records.append(
            dead_letter(
                record,
                stage=self.stage,
                reason=reason,
                detail=detail,
                now_ms=self.now_ms,
                event_id=event.event_id if event else "",
                request_id=event.request_id if event else "",
                error=error,
            )
        )
        if event is not None:
            self.outcome(event, record, "dead", reason)

    def failed(self, record: Incoming, event: WebhookAdmitted | None, error: Exception) -> None:
        """Adds a dead letter for an error that processing a record raised."""
        reason = error.code if isinstance(error, HeadwaterError) else "unexpected_error"
        self.dead(record, event, reason, f"{type(error).__name__}: {error}", error)
