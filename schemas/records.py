"""Records of deliveries, audited operations and snapshots, and the table of all record types.

The Avro files are generated from the structs (`write`): a record's doc is the first paragraph of
its docstring, a field's doc the `#:` comment above it.

msgspec structs rather than dataclasses: a frozen dataclass takes several microseconds to create, a
struct about 0.3, and every delivery creates half a dozen of them.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.api_keys import ApiKeyCreated, ApiKeyRevoked, ApiKeyRotated, ApiKeyUsed
from headwater.schemas.auditor import AuditorFinding, AuditorReport
from headwater.schemas.deployments import (
    DeploymentActivated,
    DeploymentCreated,
    DeploymentLoaded,
    DeploymentRetired,
    EnvironmentReported,
    GraphDeployed,
    LoadRequested,
)
from headwater.schemas.endpoints import (
    EndpointCreated,
    EndpointDeleted,
    EndpointSecretSet,
    EndpointStateSet,
)
from headwater.schemas.history import (
    CommandSent,
    HistoryAppended,
    Json,
    ReplySent,
    SendEvent,
    StartRun,
)


class SnapshotTaken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of an instance (topic `workflow-snapshots`, key: the instance's key).

    A snapshot is never a fact: without any, histories alone result in the same states.

    Without a key and a state it is a checkpoint: all instances of the partition have snapshots that
    contain everything before its position. With a key and without a state, it records that the
    instance was deleted; then it is the header `removed` of a tombstone.
    """

    #: The engine of the instance's runs; empty in a checkpoint.
    kind: str
    #: Version of that engine's state encoding; a reader that does not know it folds the history
    #: instead.
    format: int
    #: Whether the state is compressed, by zlib.
    compressed: bool
    #: Epoch of the partition at that position.
    epoch: int
    #: Offset in the history from which on events are not in the state yet.
    position: int
    #: Offset of the last command that is in the state; -1 if none is.
    cause: int
    #: When a timer next changes the instance, Unix milliseconds; 0 immediately, -1 never.
    wake_at_ms: int
    #: The state, in that encoding; or its first part.
    state: bytes
    #: Number of records that hold the state. The others were written before, with the same epoch
    #: and position; their keys are this one's, # and a number from 1 on.
    parts: int = 1
    #: Leader epoch of the partition of workflow-commands until which the commands up to `cause`
    #: were appended; -1 if not known.
    leader_epoch: int = -1


# -- audit


class OperationAudited(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An authenticated client requested an operation, and received a response."""

    #: The entry.
    id: str
    #: Id of the API key; of one of the settings its kind, and the beginning of its SHA-256.
    key_id: str
    #: The project.
    project_id: str
    #: The requested operation, such as world.queue.publish.
    action: str
    #: The path, without the names of users.
    resource: str
    #: `attempted` before it acts; then `success`, or `failure` if it was rejected or failed.
    result: str
    #: Address of the client.
    ip: str
    #: User agent of the client.
    user_agent: str
    #: Further details: a JSON object.
    metadata: Json
    #: When it was done, Unix milliseconds, by the clock of the process that did it.
    at_ms: int


# -- deliveries


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """Which delivery set a column, and how it compares with other deliveries.

    Stamps are ordered by (rank, sent_at_ms, updated_at_ms, event_id). All of these are parts of the
    delivery itself and none depends on the order of arrival, so all readers of the same deliveries
    agree on the winner. Partition and offset only locate the delivery.
    """

    #: Preference of the value's origin for this column, such as 1 for sleep over daily; else 0.
    rank: int
    #: When the delivery was first sent, Unix milliseconds; the signed time, unless more is known.
    sent_at_ms: int
    #: The producer's own last_webhook_update, Unix milliseconds; 0 if it sends none.
    updated_at_ms: int
    #: The delivery that set the column; breaks ties the same way for every reader.
    event_id: str
    #: Partition of the delivery in the topic webhooks.
    partition: int
    #: Offset of the delivery in the topic webhooks.
    offset: int
    #: Version of the normalizer that computed the value; it does not affect the order.
    version: int = 1

    @property
    def order(self) -> tuple[int, int, int, str]:
        """What orders stamps."""
        return self.rank, self.sent_at_ms, self.updated_at_ms, self.event_id

    @property
    def position(self) -> str:
        """Position of the delivery in the log, as topic/partition@offset."""
        return f"webhooks/{self.partition}@{self.offset}"


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of a delivery once its signature is verified."""

    #: Digest of source, type, subject and body: the deduplication key.
    event_id: str
    #: Id of the HTTP request that brought the delivery.
    request_id: str
    #: Producer, for example terra.
    source: str
    #: The producer's event type, for example daily.
    type: str
    #: The producer's own id of the person it is about; empty if it names no one.
    subject: str
    #: The user id that the producer echoes, if any.
    reference: str | None = None
    #: When it was first sent, Unix milliseconds: as the producer's header states, if that is
    #: plausible; else the signed time.
    sent_at_ms: int
    #: The producer's own last_webhook_update, Unix milliseconds; 0 if it sends none.
    updated_at_ms: int
    #: When the gateway verified it, Unix milliseconds.
    received_at_ms: int
    #: The body, byte for byte as it was signed.
    body: bytes
    #: Names and values, in turn, of the headers that its provider reads. Only a delivery that could
    #: not be routed has them, so that it can be routed later.
    headers: tuple[str, ...] = ()
    #: Position of its record in its source's topic: topic/partition@offset; empty for a webhook.
    origin: str = ""
    #: W3C trace context that it continues: traceparent and, after a space, tracestate. Empty if it
    #: came without one; its trace id is then its event id.
    trace: str = ""


class WebhookReceived(Delivery, frozen=True, kw_only=True, gc=False):
    """A verified delivery, as it arrived (topic `webhooks`, key `event_id`)."""


class WebhookAdmitted(Delivery, frozen=True, kw_only=True, gc=False):
    """A delivery that is not a duplicate (topics `events`, `unresolved` and `waiting`)."""

    #: The user, once known.
    user_id: str | None = None
    #: Headwater's id of its subject, if a lookup has one.
    our_id: str | None = None
    #: Partition of the delivery in the topic webhooks.
    partition: int
    #: Offset of the delivery in the topic webhooks.
    offset: int
    #: When it was admitted, Unix milliseconds; the wait for a connection is measured from here.
    admitted_at_ms: int
    #: When it began to wait for its connection, Unix milliseconds; 0 if it never did.
    parked_at_ms: int = 0
    #: When its connection arrived, Unix milliseconds; 0 if it did not wait.
    released_at_ms: int = 0
    #: What it waited for; empty if it never did.
    waited_for: str = ""
    #: What ended its wait: topic/partition@offset; empty if nothing did.
    released_by: str = ""
    #: How it was reprocessed: id of a replay, or a position; empty as its sender sent it.
    replay: str = ""
    #: False for a reprocessed delivery that has had its effects on workflows before.
    effects: bool = True
    #: Whether its user comes back by it after a wipe.
    comes_back: bool = False

    def stamp(self, rank: int = 0) -> Stamp:
        """Return the stamp of the columns that this delivery sets."""
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
    #: Their offsets in the same partition of the topic webhooks; a later offset with the same id
    #: is a duplicate.
    offsets: list[int]
    #: When these deliveries were sent, Unix milliseconds, in the same order.
    sent_at_ms: list[int]
    #: When they were admitted, Unix milliseconds.
    admitted_at_ms: int


class OutcomeRecorded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a delivery, and its trace (topic `webhook-outcomes`, key `event_id`)."""

    #: The delivery.
    event_id: str
    #: Id of the HTTP request that brought it.
    request_id: str
    #: Producer.
    source: str
    #: The producer's event type.
    type: str
    #: The producer's own id of the person it is about.
    subject: str
    #: The user, if known.
    user_id: str | None = None
    #: processed, skipped, parked or dead.
    status: str
    #: Reason, for skipped, parked and dead; else empty.
    reason: str
    #: How many rows the delivery changed.
    rows: int
    #: How many records of the delivery were rejected; a dead letter has the details.
    rejected: int = 0
    #: Values of the delivery that were dropped, while the rest of their records was stored, as a
    #: JSON array: path, reason (not_measured, out_of_range or wrong_type) and count; at most 50.
    rejected_fields: Json | None = None
    #: How many values were dropped.
    rejected_fields_total: int = 0
    #: Partition of the delivery in the topic webhooks.
    partition: int
    #: Offset of the delivery in the topic webhooks.
    offset: int
    #: When the gateway verified it, Unix milliseconds.
    received_at_ms: int
    #: When it was admitted as no duplicate, Unix milliseconds.
    admitted_at_ms: int
    #: When it began to wait for its connection, Unix milliseconds; 0 if it never did.
    parked_at_ms: int = 0
    #: When its connection arrived, Unix milliseconds; 0 if it did not wait, or still waits.
    released_at_ms: int = 0
    #: What it waited for; empty if it never did.
    waited_for: str = ""
    #: What ended its wait: topic/partition@offset; empty if nothing did.
    released_by: str = ""
    #: When this outcome was recorded, Unix milliseconds.
    at_ms: int
    #: The stage that recorded it.
    stage: str
    #: Where that stage read the delivery: topic/partition@offset.
    position: str
    #: How it was reprocessed: id of a replay, or a position; empty as its sender sent it.
    replay: str = ""
    #: W3C trace context of the delivery; empty if its trace id is its event id.
    trace: str = ""


class DuplicateDropped(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A dropped copy of a delivery admitted before (topic `traces`, key `request_id`)."""

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
    """A request without a new delivery: rejected, or a copy (topic `traces`, key `request_id`)."""

    #: Id of the HTTP request.
    request_id: str
    #: The source of its path; empty if no source has that path.
    source: str
    #: duplicate, handshake, or the stable code of the rejection.
    code: str
    #: Why a signature was rejected; else empty.
    reason: str
    #: Details for people.
    detail: str
    #: The delivery that it is a copy of; else empty.
    event_id: str
    #: Bytes of its body, if known.
    size: int
    #: The address that sent it.
    peer: str
    #: Earlier rejections of the same source, code, reason and address that were not recorded.
    left_out: int
    #: When it was answered, Unix milliseconds.
    at_ms: int
    #: The id that an unauthenticated sender chose; else empty.
    claimed_request_id: str = ""


class RowRebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuilt row that is sent to its owner (topic `events`, key of the row)."""

    #: The rebuild.
    rebuild: str
    #: The table.
    table: str
    #: The row as a record of its topic; null if it is to be removed.
    row: bytes | None = None
    #: It was computed from deliveries before these offsets of webhooks, by partition.
    ends: list[int]


class EffectDecided(msgspec.Struct, frozen=True, kw_only=True):
    """An effect of a delivery on a workflow (topic `effects`, key `event_id`)."""

    #: The delivery.
    event_id: str
    #: Id of the HTTP request that brought it.
    request_id: str
    #: The rule, or the normalizer's name of the effect; unique within the delivery.
    name: str
    #: The workflow.
    workflow: str
    #: The instance.
    instance_id: str
    #: The command. Its consumer sets the sender and the number of the post.
    command: StartRun | SendEvent
    #: W3C trace context in which it is carried out.
    trace: str = ""


class NameAccepted(msgspec.Struct, frozen=True):
    """A name whose deliveries are accepted again after a wipe."""

    #: SHA-256 of the name.
    sha256: str
    #: When the delivery by which the user came back was received, Unix milliseconds.
    at_ms: int
    #: Partition of that delivery in the topic webhooks.
    partition: int
    #: Its offset there: a fence that covers it ends this.
    offset: int


class TopicEnds(msgspec.Struct, frozen=True):
    """End offsets of the topic of a source."""

    #: The topic.
    topic: str
    #: Its end offsets, by partition.
    ends: list[int]


class UserForgotten(msgspec.Struct, frozen=True, kw_only=True):
    """A user's wipe in one partition (topic `wipes`, key: the user's digest)."""

    #: The wipe; it is the same in all partitions. Empty if the user has come back by a delivery of
    #: another partition, and the order of the wipe was not read yet.
    wipe_id: str
    #: SHA-256 of the user and of the user's former subjects here, the user's first.
    digests: list[str]
    #: The same ids in clear text while records are searched; empty when that is done.
    names: list[str]
    #: Offsets of the topic webhooks, by partition: what is before them is wiped.
    fence: list[int]
    #: Kinds of data deleted here so far: table names, raw_events, waiting, effects, dead_letters.
    found: list[str]
    #: Number of deletions of each kind, in the same order.
    counts: list[int]
    #: When it was ordered, Unix milliseconds.
    ordered_at_ms: int
    #: When the deletion was complete, Unix milliseconds; 0 before.
    done_at_ms: int = 0
    #: Names whose deliveries are accepted again; those of the others are skipped for some time.
    accepted: tuple[NameAccepted, ...] = ()
    #: Ends of the topics of sources when it was ordered: what is before them stays skipped.
    topics: tuple[TopicEnds, ...] = ()


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
    | EnvironmentReported
    | DeploymentLoaded
    | LoadRequested
    | ApiKeyCreated
    | ApiKeyRotated
    | ApiKeyRevoked
    | ApiKeyUsed
    | EndpointCreated
    | EndpointSecretSet
    | EndpointStateSet
    | EndpointDeleted
    | DeploymentRetired
    | OperationAudited
    | AuditorFinding
    | AuditorReport
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
    "environment_reported": EnvironmentReported,
    "deployment_loaded": DeploymentLoaded,
    "load_requested": LoadRequested,
    "api_key_created": ApiKeyCreated,
    "api_key_rotated": ApiKeyRotated,
    "api_key_revoked": ApiKeyRevoked,
    "api_key_used": ApiKeyUsed,
    "endpoint_created": EndpointCreated,
    "endpoint_secret_set": EndpointSecretSet,
    "endpoint_state_set": EndpointStateSet,
    "endpoint_deleted": EndpointDeleted,
    "deployment_retired": DeploymentRetired,
    "operation_audited": OperationAudited,
    "auditor_finding": AuditorFinding,
    "auditor_report": AuditorReport,
}
