"""The records of flow one, as the code sees them; their Avro twins lie in `avro/`.

msgspec structs rather than dataclasses: a frozen dataclass costs several microseconds to build, a
struct about 0.3, and every delivery builds half a dozen of them.
"""

from typing import Final, TypeAlias

import msgspec


class Hop(msgspec.Struct, frozen=True):
    """One stage of a delivery's journey.

    Shape:  stage is one of received, admitted, duplicate, parked, released, normalized, dead.
    Units:  at_ms in Unix milliseconds; position as topic/partition@offset, empty at the gateway.
    """

    stage: str
    at_ms: int
    position: str
    detail: str


class Stamp(msgspec.Struct, frozen=True):
    """Which delivery set a column, and how it compares with others that would set it.

    Stamps are ordered by (rank, sent_at_ms, updated_at_ms, event_id): all of it is part of the
    delivery itself, nothing comes from the order of arrival, so every reader of the same deliveries
    agrees on the winner. Partition and offset only say where to find the delivery.
    """

    rank: int
    sent_at_ms: int
    updated_at_ms: int
    event_id: str
    partition: int
    offset: int

    @property
    def position(self) -> str:
        """The delivery's place in the log, as topic/partition@offset."""
        return f"webhooks/{self.partition}@{self.offset}"


class WebhookReceived(msgspec.Struct, frozen=True, kw_only=True):
    """A verified delivery, as it arrived (topic `webhooks`, key `event_id`)."""

    event_id: str
    request_id: str
    source: str
    type: str
    subject: str
    reference: str | None = None
    sent_at_ms: int
    updated_at_ms: int
    received_at_ms: int
    body: bytes


class WebhookAdmitted(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that is no duplicate (topics `events`, `unresolved` and `waiting`)."""

    event_id: str
    request_id: str
    source: str
    type: str
    subject: str
    reference: str | None = None
    sent_at_ms: int
    updated_at_ms: int
    received_at_ms: int
    body: bytes
    user_id: str | None = None
    partition: int
    offset: int
    admitted_at_ms: int
    hops: tuple[Hop, ...]

    def stamp(self, rank: int = 0) -> Stamp:
        """The stamp of the columns that this delivery sets."""
        return Stamp(
            rank,
            self.sent_at_ms,
            self.updated_at_ms,
            self.event_id,
            self.partition,
            self.offset,
        )


class WebhookClaimed(msgspec.Struct, frozen=True):
    """The first offset at which an event id was seen (topic `admissions`, key the event id)."""

    offset: int
    admitted_at_ms: int


class OutcomeRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a delivery (topic `webhook-outcomes`, key `event_id`).

    Shape:  status is processed, skipped, parked or dead; reason is empty only for processed.
    """

    event_id: str
    request_id: str
    source: str
    type: str
    subject: str
    user_id: str | None = None
    status: str
    reason: str
    rows: int
    partition: int
    offset: int
    received_at_ms: int
    at_ms: int


class DeliveryTraced(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery's journey (topic `traces`, key `request_id`)."""

    request_id: str
    event_id: str
    user_id: str | None = None
    level: str
    hops: tuple[Hop, ...]


Record: TypeAlias = (
    WebhookReceived | WebhookAdmitted | WebhookClaimed | OutcomeRecorded | DeliveryTraced
)

#: Record type by the stem of its Avro file.
RECORD_TYPES: Final[dict[str, type[Record]]] = {
    "webhook_received": WebhookReceived,
    "webhook_admitted": WebhookAdmitted,
    "webhook_claimed": WebhookClaimed,
    "outcome_recorded": OutcomeRecorded,
    "delivery_traced": DeliveryTraced,
}
