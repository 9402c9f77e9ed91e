"""The records of deliveries, and the table of all records; those of workflows are in `history`.

The Avro files are made from the structs (`write`): a record's doc is the first paragraph of its
docstring, a field's the `#:` comment above it.

msgspec structs rather than dataclasses: a frozen dataclass costs several microseconds to build, a
struct about 0.3, and every delivery builds half a dozen of them.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.audit import OperationAudited
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.deployments import DeploymentActivated, DeploymentCreated
from headwater.schemas.history import (
    CommandSent,
    HistoryAppended,
    ReplySent,
    SendEvent,
    StartRun,
)
from headwater.schemas.snapshots import SnapshotTaken


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """Which delivery set a column, and how it compares with others that would set it.

    Stamps are ordered by (rank, sent_at_ms, updated_at_ms, event_id): all of it is part of the
    delivery itself, nothing comes from the order of arrival, so every reader of the same deliveries
    agrees on the winner. Partition and offset only say where to find the delivery.
    """

    #: Preference of the origin for this column, such as 1 where sleep outranks daily; else 0.
    rank: int
    #: When the delivery was sent first, Unix milliseconds; the signed time, if nothing says more.
    sent_at_ms: int
    #: The producer's own last_webhook_update, Unix milliseconds; 0 when it gives none.
    updated_at_ms: int
    #: The delivery that set the column; breaks ties the same way for every reader.
    event_id: str
    #: Partition of the delivery in the topic webhooks.
    partition: int
    #: Offset of the delivery in the topic webhooks.
    offset: int
    #: Version of the normalizer that made the value of the delivery; it does not decide on winners.
    version: int = 1

    @property
    def position(self) -> str:
        """The delivery's place in the log, as topic/partition@offset."""
        return f"webhooks/{self.partition}@{self.offset}"


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of a delivery as soon as it is verified."""

    #: Digest of source, type, subject and body: the deduplication key.
    event_id: str
    #: Id of the HTTP request that brought the delivery.
    request_id: str
    #: Producer, for example terra.
    source: str
    #: The producer's event type, for example daily.
    type: str
    #: The producer's own id of whom it is about; empty when it names nobody.
    subject: str
    #: The id of ours that the producer echoes, if it does.
    reference: str | None = None
    #: When it was sent first, Unix milliseconds: what the producer's header says of it, if that can
    #: be true; else the signed time.
    sent_at_ms: int
    #: The producer's own last_webhook_update, Unix milliseconds; 0 when it gives none.
    updated_at_ms: int
    #: When the gateway verified it, Unix milliseconds.
    received_at_ms: int
    #: The body, byte for byte as it was signed.
    body: bytes


class WebhookReceived(Delivery, frozen=True, kw_only=True, gc=False):
    """A verified delivery, as it arrived (topic `webhooks`, key `event_id`)."""


class WebhookAdmitted(Delivery, frozen=True, kw_only=True, gc=False):
    """A delivery that is no duplicate (topics `events`, `unresolved` and `waiting`)."""

    #: Whose it is, once that is known.
    user_id: str | None = None
    #: Our own id of its subject, where the subject was looked up and we have one.
    our_id: str | None = None
    #: Partition of the delivery in the topic webhooks.
    partition: int
    #: Offset of the delivery in the topic webhooks.
    offset: int
    #: When it was admitted, Unix milliseconds; the wait for a connection counts from here.
    admitted_at_ms: int
    #: When it began to wait for its connection, Unix milliseconds; 0 if it never did.
    parked_at_ms: int = 0
    #: When its connection came, Unix milliseconds; 0 if it did not wait.
    released_at_ms: int = 0
    #: What it waited for; empty if it never did.
    waited_for: str = ""
    #: What ended its wait: topic/partition@offset; empty if nothing did.
    released_by: str = ""
    #: What it was replayed by or as: a replay's id, or a position; empty for what its sender sent.
    replay: str = ""
    #: False for a replay of what has had its effects on workflows.
    effects: bool = True

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

    #: Event ids that were seen for the first time.
    event_ids: list[str]
    #: Where: offsets in the same partition of the topic webhooks; a later offset with the same id
    #: is a duplicate.
    offsets: list[int]
    #: Unix milliseconds.
    admitted_at_ms: int


class OutcomeRecorded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of a delivery, and its journey (topic `webhook-outcomes`, key `event_id`)."""

    #: The delivery.
    event_id: str
    #: Id of the HTTP request that brought it.
    request_id: str
    #: Producer.
    source: str
    #: The producer's event type.
    type: str
    #: Whom it is about.
    subject: str
    #: Whose it is, when known.
    user_id: str | None = None
    #: processed, skipped, parked or dead.
    status: str
    #: Why, for skipped, parked and dead; else empty.
    reason: str
    #: How many rows the delivery touched.
    rows: int
    #: How many records of the delivery were not taken; a dead letter says which, and why.
    rejected: int = 0
    #: Partition of the delivery in the topic webhooks.
    partition: int
    #: Offset of the delivery in the topic webhooks.
    offset: int
    #: When the gateway verified it, Unix milliseconds.
    received_at_ms: int
    #: When it was found to be no duplicate, Unix milliseconds.
    admitted_at_ms: int
    #: When it began to wait for its connection, Unix milliseconds; 0 if it never did.
    parked_at_ms: int = 0
    #: When its connection came, Unix milliseconds; 0 if it did not wait, or waits.
    released_at_ms: int = 0
    #: What it waited for; empty if it never did.
    waited_for: str = ""
    #: What ended its wait: topic/partition@offset; empty if nothing did.
    released_by: str = ""
    #: When this became true, Unix milliseconds.
    at_ms: int
    #: The stage that says so.
    stage: str
    #: Where it read the delivery: topic/partition@offset.
    position: str
    #: What it was replayed by or as: a replay's id, or a position; empty for what its sender sent.
    replay: str = ""


class DuplicateDropped(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of a copy of a delivery admitted before (topic `traces`, key `request_id`)."""

    #: Id of the HTTP request that brought the copy.
    request_id: str
    #: The delivery.
    event_id: str
    #: Partition of both in the topic webhooks.
    partition: int
    #: Offset of the copy.
    offset: int
    #: Offset of the delivery that was admitted.
    first_offset: int
    #: When the gateway verified the copy, Unix milliseconds.
    received_at_ms: int
    #: When it was dropped, Unix milliseconds.
    at_ms: int


class RequestAnswered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that brought nothing new: refused, or a copy (topic `traces`, key `request_id`)."""

    #: Id of the HTTP request.
    request_id: str
    #: Whose path it came to; empty if it was nobody's.
    source: str
    #: duplicate, handshake, or the stable code of why it was refused.
    code: str
    #: Why a signature was refused; empty for everything else.
    reason: str
    #: Why, for people.
    detail: str
    #: The delivery that a copy is of; empty for everything else.
    event_id: str
    #: Bytes of its body, as far as they are known.
    size: int
    #: The address that sent it.
    peer: str
    #: Refusals of the same source, code, reason and address before it that were not recorded.
    left_out: int
    #: When it was answered, Unix milliseconds.
    at_ms: int
    #: The id that its sender chose, where nothing proved who that is; empty for all others.
    claimed_request_id: str = ""


class RowRebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """A row that was made again, on its way to its owner (topic `events`, key of the row)."""

    #: The rebuild.
    rebuild: str
    #: The table.
    table: str
    #: The row as a record of its topic has it; null if it is not to be there.
    row: bytes | None = None
    #: Up to which offsets of the topic webhooks it was made, by partition: what came later stays.
    ends: list[int]


class EffectDecided(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a delivery does to a workflow (topic `effects`, key `event_id`)."""

    #: The delivery.
    event_id: str
    #: Id of the HTTP request that brought it.
    request_id: str
    #: The rule, or what the normalizer calls it: with the delivery, the name of the effect.
    name: str
    #: The workflow.
    workflow: str
    #: Which instance of it.
    instance_id: str
    #: What is done. Who carries it out says who sends it, and as which of its posts.
    command: StartRun | SendEvent


class UserForgotten(msgspec.Struct, frozen=True, kw_only=True):
    """A user's wipe, as a partition carries it out (topic `wipes`, key: the user's digest)."""

    #: The wipe; all partitions carry out the same.
    wipe_id: str
    #: SHA-256 of the user and of the subjects that were theirs here, the user's first.
    digests: list[str]
    #: The same in clear, while records are looked for; empty when that is done.
    names: list[str]
    #: Offsets of the topic webhooks, by partition: what lies before them is wiped.
    fence: list[int]
    #: What was found here, so far: names of tables, and raw_events, waiting, effects, dead_letters.
    found: list[str]
    #: How much of each, in the same order.
    counts: list[int]
    #: When it was ordered, Unix milliseconds.
    ordered_at_ms: int
    #: When all of it was found and forgotten, Unix milliseconds; 0 before.
    done_at_ms: int = 0


Record: TypeAlias = (
    WebhookReceived
    | WebhookAdmitted
    | WebhooksClaimed
    | OutcomeRecorded
    | DuplicateDropped
    | RequestAnswered
    | EffectDecided
    | RowRebuilt
    | UserForgotten
    | HistoryAppended
    | CommandSent
    | ReplySent
    | SnapshotTaken
    | GraphDeployed
    | DeploymentCreated
    | DeploymentActivated
    | OperationAudited
)

#: Record type by the stem of its Avro file.
RECORD_TYPES: Final[dict[str, type[Record]]] = {
    "webhook_received": WebhookReceived,
    "webhook_admitted": WebhookAdmitted,
    "webhooks_claimed": WebhooksClaimed,
    "outcome_recorded": OutcomeRecorded,
    "duplicate_dropped": DuplicateDropped,
    "request_answered": RequestAnswered,
    "history_appended": HistoryAppended,
    "command_sent": CommandSent,
    "reply_sent": ReplySent,
    "snapshot_taken": SnapshotTaken,
    "effect_decided": EffectDecided,
    "row_rebuilt": RowRebuilt,
    "user_forgotten": UserForgotten,
    "graph_deployed": GraphDeployed,
    "deployment_created": DeploymentCreated,
    "deployment_activated": DeploymentActivated,
    "operation_audited": OperationAudited,
}
