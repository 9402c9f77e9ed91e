"""The topic catalog: every topic of Headwater, with its Kafka configuration."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.tables import Table

_HOUR_MS: Final = 60 * 60 * 1000
_DAY_MS: Final = 24 * _HOUR_MS

#: How long event ids of deliveries are kept: longer than any sender retries, 75 h for Standard
#: Webhooks, about 3 days for Stripe.
_CLAIMS_KEPT_MS: Final = 7 * _DAY_MS

#: The largest record. A body may have 10 MiB; the rest is for keys, headers and the envelope.
MAX_RECORD_BYTES: Final = 11 * 1024 * 1024
#: The largest value of a record, which leaves space for its key and the envelope of its batch.
MAX_VALUE_BYTES: Final = MAX_RECORD_BYTES - 64 * 1024


#: Compression by producers and of the topics (ADR 0024).
COMPRESSION: Final = "zstd"
#: With more replicas than this, one may be lost while two in-sync replicas remain.
_COPIES_TO_LOSE_ONE: Final = 2
#: Configuration that must not differ from the catalog: see `Topic.loses_data_by`.
_KEEPS_DATA: Final = frozenset(
    {
        "cleanup.policy",
        "max.message.bytes",
        "min.insync.replicas",
        "min.compaction.lag.ms",
        "unclean.leader.election.enable",
    }
)


class Cleanup(StrEnum):
    """How Kafka discards old records."""

    COMPACT = "compact"
    DELETE = "delete"
    #: By age and by key: records with a key of their own can be removed earlier.
    BOTH = "compact,delete"


#: How long tombstones are kept: a reader that was down for longer may miss deletions. As long as a
#: process may be down without losing records that are deleted by age.
_TOMBSTONES_KEPT_MS: Final = 7 * _DAY_MS
#: Upper bound until compaction, however little of a topic changed: Kafka would otherwise wait until
#: half of it did.
_FORGOTTEN_WITHIN_MS: Final = 14 * _DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; without `retention_ms`, records are kept until compaction removes them."""

    name: str
    key: str
    #: Name of the Avro schema of its values; None if they are opaque bytes.
    value: str | None
    #: Names of the schemas of further values.
    others: tuple[str, ...] = ()
    cleanup: Cleanup
    retention_ms: int | None = None
    purpose: str
    #: Format of Headwater's keys, in topics to which other programs may write.
    key_form: re.Pattern[bytes] | None = None
    #: Minimum age before compaction may remove a record.
    compaction_lag_ms: int = _HOUR_MS

    def config(self, replication: int) -> dict[str, str]:
        """Return the topic's configuration with Kafka's names."""
        config = {
            "cleanup.policy": self.cleanup.value,
            "retention.ms": str(-1 if self.retention_ms is None else self.retention_ms),
            "max.message.bytes": str(MAX_RECORD_BYTES),
            "compression.type": COMPRESSION,
            # With fewer replicas, a second one would make every replica a requirement.
            "min.insync.replicas": "2" if replication > _COPIES_TO_LOSE_ONE else "1",
        }
        if self.cleanup is not Cleanup.DELETE:
            config["min.compaction.lag.ms"] = str(self.compaction_lag_ms)
            config["max.compaction.lag.ms"] = str(_FORGOTTEN_WITHIN_MS)
            config["delete.retention.ms"] = str(_TOMBSTONES_KEPT_MS)
        if self.cleanup is not Cleanup.DELETE or self.retention_ms is not None:
            # The broker's clock determines the age of a record: the producer's may be wrong.
            config["message.timestamp.type"] = "LogAppendTime"
        return config

    def loses_data_by(self, name: str) -> bool:
        """Return whether another value of a setting may lose acknowledged data or block writes."""
        return name in _KEEPS_DATA or (name == "retention.ms" and self.retention_ms is None)


def topic_of(table: Table) -> Topic:
    """Return the topic of a projection table's rows."""
    return Topic(
        name=table.topic,
        key=f"row key, partitioned by {table.owner}",
        value=table.schema,
        cleanup=Cleanup.COMPACT,
        purpose=f"Projection table {table.name}.",
    )


WEBHOOKS: Final = "webhooks"
ADMISSIONS: Final = "admissions"
EVENTS: Final = "events"
UNRESOLVED: Final = "unresolved"
WAITING: Final = "waiting"
WIPES: Final = "wipes"
EFFECTS: Final = "effects"
OUTCOMES: Final = "webhook-outcomes"
TRACES: Final = "traces"
DEAD_LETTERS: Final = "dead-letters"
SKIPPED: Final = "skipped"
WORKFLOW_COMMANDS: Final = "workflow-commands"
WORKFLOW_HISTORY: Final = "workflow-history"
WORKFLOW_SNAPSHOTS: Final = "workflow-snapshots"
WORKFLOW_REPLIES: Final = "workflow-replies"
GRAPH_DEFINITIONS: Final = "graph-definitions"
DEPLOYMENTS: Final = "deployments"
ARTIFACTS: Final = "artifacts"
API_KEYS: Final = "api-keys"
ENDPOINTS: Final = "endpoints"
AUDIT: Final = "audit"
AUDITOR: Final = "auditor"

TOPICS: Final = (
    Topic(
        name=WEBHOOKS,
        key="event id, partitioned by the owner of what the delivery changes",
        value="webhook_received",
        cleanup=Cleanup.COMPACT,
        # As long as claims are kept: until then the first copy of a delivery may be unread, and a
        # later copy, which is dropped, must not remove it.
        compaction_lag_ms=_CLAIMS_KEPT_MS,
        purpose="Every verified delivery, its bytes untouched.",
        key_form=re.compile(rb"[0-9a-f]{32}"),
    ),
    Topic(
        name=ADMISSIONS,
        key="none, partitioned like webhooks",
        value="webhooks_claimed",
        cleanup=Cleanup.DELETE,
        retention_ms=_CLAIMS_KEPT_MS,
        purpose="The first offsets of event ids, for deduplication.",
    ),
    Topic(
        name=EVENTS,
        key="event id or row key, partitioned by user",
        value="webhook_admitted",
        others=("row_rebuilt",),
        cleanup=Cleanup.BOTH,
        retention_ms=7 * _DAY_MS,
        purpose="Deliveries on their way to their user's partition, after a lookup elsewhere, and "
        "rebuilt rows on their way to their owners.",
    ),
    Topic(
        name=UNRESOLVED,
        key="subject and event id, partitioned by subject",
        value="webhook_admitted",
        cleanup=Cleanup.BOTH,
        retention_ms=7 * _DAY_MS,
        purpose="Deliveries on their way to the partition of another subject that they change.",
    ),
    Topic(
        name=WAITING,
        key="event id, partitioned by subject",
        value="webhook_admitted",
        cleanup=Cleanup.COMPACT,
        purpose="Deliveries that wait for their connection.",
    ),
    Topic(
        name=WIPES,
        key="SHA-256 of the user id, in each partition",
        value="user_forgotten",
        cleanup=Cleanup.COMPACT,
        purpose="The data that every partition has to wipe, and the fences.",
    ),
    Topic(
        name=EFFECTS,
        key="event id and name, partitioned by the owner of the delivery",
        value="effect_decided",
        cleanup=Cleanup.BOTH,
        retention_ms=7 * _DAY_MS,
        purpose="Effects of deliveries on workflows: starts and events.",
    ),
    *map(topic_of, ALL_TABLES),
    Topic(
        name=OUTCOMES,
        key="event id, partitioned by owner",
        value="outcome_recorded",
        cleanup=Cleanup.COMPACT,
        purpose="The outcome of every delivery, and its trace.",
    ),
    Topic(
        name=TRACES,
        key="request id, partitioned by owner",
        value="duplicate_dropped",
        others=("request_answered",),
        cleanup=Cleanup.DELETE,
        retention_ms=14 * _DAY_MS,
        purpose="Requests without a new delivery: copies, rejections. The traces of others are in "
        "their outcomes.",
    ),
    Topic(
        name=DEAD_LETTERS,
        key="the original topic/partition@offset, reason and rule",
        value=None,
        cleanup=Cleanup.BOTH,
        retention_ms=30 * _DAY_MS,
        purpose="Records that could not be processed, bytes unchanged, with the reason in headers.",
    ),
    Topic(
        name=SKIPPED,
        key="topic/partition@offset, or growth/prefix",
        value=None,
        cleanup=Cleanup.COMPACT,
        purpose="Records that readers skip by order of an operator; growths of the topics.",
    ),
    Topic(
        name=WORKFLOW_COMMANDS,
        key="instance key",
        value="command_sent",
        cleanup=Cleanup.DELETE,
        # Longer than all workers may be down: a command that is deleted before it is read is lost.
        retention_ms=7 * _DAY_MS,
        purpose="Commands to instances of workflows.",
        key_form=re.compile(rb"\w[\w-]*/\w[\w-]*"),
    ),
    Topic(
        name=WORKFLOW_HISTORY,
        key="instance key and a number: each record has its own",
        value="history_appended",
        # The log is the source of truth, and no record supersedes another: compaction only removes
        # records with a tombstone, which deleted instances get.
        cleanup=Cleanup.COMPACT,
        purpose="Every event of every workflow, until its instance is deleted.",
    ),
    Topic(
        name=WORKFLOW_SNAPSHOTS,
        key="instance key",
        value="snapshot_taken",
        cleanup=Cleanup.COMPACT,
        purpose="The newest state of every instance, so that the whole history need not be read.",
    ),
    Topic(
        name=WORKFLOW_REPLIES,
        key="none",
        value="reply_sent",
        cleanup=Cleanup.DELETE,
        # Longer than any sender waits for its reply.
        retention_ms=_HOUR_MS,
        purpose="Outcomes of commands, for senders that wait for them.",
    ),
    Topic(
        name=GRAPH_DEFINITIONS,
        key="name of the graph and an id: each record has its own; all in partition 0",
        value="graph_deployed",
        # No version is superseded: runs stay on the one that they started with.
        cleanup=Cleanup.COMPACT,
        purpose="Every version of every graph that was deployed.",
        key_form=re.compile(rb"\w[\w-]*#[0-9a-f]+"),
    ),
    Topic(
        name=DEPLOYMENTS,
        key="id of the deployment and an id: each record has its own; all in partition 0",
        value="deployment_created",
        others=(
            "deployment_activated",
            "deployment_loaded",
            "deployment_retired",
            "environment_reported",
            "load_requested",
        ),
        # Runs stay on the deployment that they started on, and a rollback may return to any: only
        # a removal has tombstones.
        cleanup=Cleanup.COMPACT,
        purpose="Every deployment of code, and which one was active when.",
        key_form=re.compile(rb"dep_[0-9a-f]+#[0-9a-f]+"),
    ),
    Topic(
        name=ARTIFACTS,
        key="id of the deployment and an id: each record has its own; all in partition 0",
        value=None,
        cleanup=Cleanup.COMPACT,
        purpose="The code of deployments, as it was uploaded.",
        key_form=re.compile(rb"dep_[0-9a-f]+#[0-9a-f]+"),
    ),
    Topic(
        name=API_KEYS,
        key="id of the key, and for changes an id: each has its own; all in partition 0",
        value="api_key_created",
        others=("api_key_rotated", "api_key_revoked", "api_key_used"),
        # Changes are never superseded, times of last uses are.
        cleanup=Cleanup.COMPACT,
        purpose="API keys, with the SHA-256 of their secrets.",
        key_form=re.compile(rb"key_[0-9a-f]+(#[0-9a-f]+)?"),
    ),
    Topic(
        name=ENDPOINTS,
        key="id of the endpoint, with .secret or .state for these; all in partition 0",
        value="endpoint_created",
        others=("endpoint_secret_set", "endpoint_state_set", "endpoint_deleted"),
        # A record replaces the one with its key, so that secrets leave the log.
        cleanup=Cleanup.COMPACT,
        purpose="Endpoints of notifications, with their signing secrets.",
        key_form=re.compile(rb"ep_[0-9a-f]+(\.secret|\.state)?"),
    ),
    Topic(
        name=AUDIT,
        key="the project; all in partition 0",
        value="operation_audited",
        # Without retention: nothing is removed or superseded. It does not name users.
        cleanup=Cleanup.DELETE,
        purpose="Operations and who requested them, in order.",
    ),
    Topic(
        name=AUDITOR,
        key="finding/ and what it is about, or report; all in partition 0",
        value="auditor_report",
        others=("auditor_finding",),
        # The report, from which an auditor continues, is the last record.
        cleanup=Cleanup.COMPACT,
        purpose="What the auditor has verified, and its findings.",
    ),
)


#: Characters of a name in Kafka.
TOPIC_NAME_MAX: Final = 249
_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_MAX}}}")
_NAMES: Final = frozenset(topic.name for topic in TOPICS)


def is_own_topic(prefix: str, name: str) -> bool:
    """Return whether a topic in Kafka belongs to the project whose topics have this prefix."""
    return name.startswith(prefix) and name.removeprefix(prefix) in _NAMES


def author_topic_problem(name: str) -> str | None:
    """Return what is wrong with a topic that authors publish to, or None.

    A record for a name that Kafka rejects would wait indefinitely, and Headwater could not read a
    record in one of its own topics. Their names are rejected in every project, whatever its prefix,
    so that an app runs in all of them.
    """
    if _NAME.fullmatch(name) is None or set(name) == {"."}:
        return (
            "expected the name of a topic, of 1 to 249 characters out of a-z, A-Z, 0-9, ., _ "
            f"and -, found {name[:120]!r}"
        )
    if name in _NAMES:
        return f"expected a topic of your own, found {name!r}, which is Headwater's"
    return None


def retention_of(name: str) -> int:
    """Return the retention of a topic in ms.

    Raises:
        ValueError: It keeps records indefinitely.
    """
    retention_ms = next((topic.retention_ms for topic in TOPICS if topic.name == name), None)
    if retention_ms is None:
        raise ValueError(f"expected a topic with a retention, found {name}")
    return retention_ms
