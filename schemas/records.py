"""The records of flow one, as the code sees them, and the table of all; Avro twins lie in `avro/`.

The records of flow two are in `history`.

msgspec structs rather than dataclasses: a frozen dataclass costs several microseconds to build, a
struct about 0.3, and every delivery builds half a dozen of them.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.history import CommandSent, HistoryAppended, ReplySent
from headwater.schemas.snapshots import SnapshotTaken


class Stamp(msgspec.Struct, frozen=True, gc=False):
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


class WebhookReceived(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class WebhookAdmitted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    parked_at_ms: int = 0
    released_at_ms: int = 0

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


class WebhooksClaimed(msgspec.Struct, frozen=True):
    """The first offsets of the event ids of one batch (topic `admissions`, no key)."""

    event_ids: list[str]
    offsets: list[int]
    admitted_at_ms: int


class OutcomeRecorded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of a delivery, and its journey (topic `webhook-outcomes`, key `event_id`).

    Shape:  status is processed, skipped, parked or dead; reason is empty only for processed.
            Stage is the agent that says so, position where it read the delivery.
    Units:  Unix milliseconds; 0 for what did not happen.
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
    admitted_at_ms: int
    parked_at_ms: int = 0
    released_at_ms: int = 0
    at_ms: int
    stage: str
    position: str


class DuplicateDropped(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of a copy of a delivery that was admitted before (topic `traces`, `request_id`)."""

    request_id: str
    event_id: str
    partition: int
    offset: int
    first_offset: int
    received_at_ms: int
    at_ms: int


Record: TypeAlias = (
    WebhookReceived
    | WebhookAdmitted
    | WebhooksClaimed
    | OutcomeRecorded
    | DuplicateDropped
    | HistoryAppended
    | CommandSent
    | ReplySent
    | SnapshotTaken
)

#: Record type by the stem of its Avro file.
RECORD_TYPES: Final[dict[str, type[Record]]] = {
    "webhook_received": WebhookReceived,
    "webhook_admitted": WebhookAdmitted,
    "webhooks_claimed": WebhooksClaimed,
    "outcome_recorded": OutcomeRecorded,
    "duplicate_dropped": DuplicateDropped,
    "history_appended": HistoryAppended,
    "command_sent": CommandSent,
    "reply_sent": ReplySent,
    "snapshot_taken": SnapshotTaken,
}
