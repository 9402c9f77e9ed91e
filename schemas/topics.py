"""The topic catalogue: every topic of the house, with what Kafka needs to know about it."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.tables import Table

_HOUR_MS: Final = 60 * 60 * 1000
_DAY_MS: Final = 24 * _HOUR_MS

#: How long the event ids of deliveries are remembered: longer than any sender retries, 75 h for
#: Standard Webhooks, about 3 days for Stripe.
_CLAIMS_KEPT_MS: Final = 7 * _DAY_MS

#: The largest record. A body may have 10 MiB; the rest is for keys, headers and the envelope.
MAX_RECORD_BYTES: Final = 11 * 1024 * 1024
#: What the value of a record may have, leaving room for its key and the envelope of its batch.
MAX_VALUE_BYTES: Final = MAX_RECORD_BYTES - 64 * 1024


#: How producers compress, and how the topics say that records lie there (ADR 0024).
COMPRESSION: Final = "zstd"
#: A copy may be lost, and a record still be in two.
_COPIES_TO_LOSE_ONE: Final = 2
#: Configuration that is never other than ours: see `Topic.loses_data_by`.
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
    #: By age, and by key: what has a key of its own can be forgotten before.
    BOTH = "compact,delete"


#: A reader that was away for longer may keep what was deleted meanwhile. As long as a part may be
#: down without losing what is deleted by age.
_TOMBSTONES_KEPT_MS: Final = 7 * _DAY_MS
#: What a tombstone removes is gone by then, however little of a topic changed since: Kafka would
#: else wait until half of it did.
_FORGOTTEN_WITHIN_MS: Final = 14 * _DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; `retention_ms` None keeps for ever what compaction does not remove."""

    name: str
    key: str
    #: Name of the Avro schema of its values; None where they are somebody else's bytes.
    value: str | None
    #: Names of the schemas of further values.
    others: tuple[str, ...] = ()
    cleanup: Cleanup
    retention_ms: int | None = None
    purpose: str
    #: What the keys of our records look like, where programs of others may write, too.
    key_form: re.Pattern[bytes] | None = None
    #: How long a record stays at least, whatever comes after it with its key.
    compaction_lag_ms: int = _HOUR_MS

    def config(self, replication: int) -> dict[str, str]:
        """The topic's configuration in Kafka's own names."""
        config = {
            "cleanup.policy": self.cleanup.value,
            "retention.ms": str(-1 if self.retention_ms is None else self.retention_ms),
            "max.message.bytes": str(MAX_RECORD_BYTES),
            "compression.type": COMPRESSION,
            # With fewer copies a second one could be waited for only while all of them are there.
            "min.insync.replicas": "2" if replication > _COPIES_TO_LOSE_ONE else "1",
        }
        if self.cleanup is not Cleanup.DELETE:
            config["min.compaction.lag.ms"] = str(self.compaction_lag_ms)
            config["max.compaction.lag.ms"] = str(_FORGOTTEN_WITHIN_MS)
            config["delete.retention.ms"] = str(_TOMBSTONES_KEPT_MS)
        if self.cleanup is not Cleanup.DELETE or self.retention_ms is not None:
            # How old a record is says the broker's clock: that of its writer may be wrong.
            config["message.timestamp.type"] = "LogAppendTime"
        return config

    def loses_data_by(self, name: str) -> bool:
        """Whether a value other than ours may lose what was acknowledged, or never take it."""
        return name in _KEEPS_DATA or (name == "retention.ms" and self.retention_ms is None)


def topic_of(table: Table) -> Topic:
    """The topic that holds the rows of a projection table."""
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
AUDIT: Final = "audit"

TOPICS: Final = (
    Topic(
        name=WEBHOOKS,
        key="event id, partitioned by the owner of what the delivery changes",
        value="webhook_received",
        cleanup=Cleanup.COMPACT,
        # As long as claims are remembered: until then a first delivery may be unread, and a copy
        # of it, which is dropped, must not have it removed.
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
        purpose="The first offsets of event ids: the memory of deduplication.",
    ),
    Topic(
        name=EVENTS,
        key="event id or row key, partitioned by user",
        value="webhook_admitted",
        others=("row_rebuilt",),
        cleanup=Cleanup.BOTH,
        retention_ms=7 * _DAY_MS,
        purpose="Deliveries on their way to their user, who was looked up elsewhere, and rows "
        "that were rebuilt, on theirs to their owners.",
    ),
    Topic(
        name=UNRESOLVED,
        key="subject and event id, partitioned by subject",
        value="webhook_admitted",
        cleanup=Cleanup.BOTH,
        retention_ms=7 * _DAY_MS,
        purpose="Deliveries on their way to a subject that they concern, too.",
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
        purpose="Whom each partition has to forget, and up to where.",
    ),
    Topic(
        name=EFFECTS,
        key="event id and name, partitioned by the owner of the delivery",
        value="effect_decided",
        cleanup=Cleanup.BOTH,
        retention_ms=7 * _DAY_MS,
        purpose="What deliveries do to workflows: start them, and send them events.",
    ),
    *map(topic_of, ALL_TABLES),
    Topic(
        name=OUTCOMES,
        key="event id, partitioned by owner",
        value="outcome_recorded",
        cleanup=Cleanup.COMPACT,
        purpose="What became of every delivery, and its journey.",
    ),
    Topic(
        name=TRACES,
        key="request id, partitioned by owner",
        value="duplicate_dropped",
        others=("request_answered",),
        cleanup=Cleanup.DELETE,
        retention_ms=14 * _DAY_MS,
        purpose="Requests that brought nothing new: copies, refusals. The journeys of others "
        "are in their outcomes.",
    ),
    Topic(
        name=DEAD_LETTERS,
        key="the original topic/partition@offset, reason and rule",
        value=None,
        cleanup=Cleanup.BOTH,
        retention_ms=30 * _DAY_MS,
        purpose="What could not be processed, bytes untouched, with the reason in headers.",
    ),
    Topic(
        name=SKIPPED,
        key="topic/partition@offset",
        value=None,
        cleanup=Cleanup.COMPACT,
        purpose="Records that an operator has said to pass over.",
    ),
    Topic(
        name=WORKFLOW_COMMANDS,
        key="instance key",
        value="command_sent",
        cleanup=Cleanup.DELETE,
        # Longer than the workers may all be down: a command that is gone before it is read is lost.
        retention_ms=7 * _DAY_MS,
        purpose="What instances of workflows are told to do.",
        key_form=re.compile(rb"\w[\w-]*/\w[\w-]*"),
    ),
    Topic(
        name=WORKFLOW_HISTORY,
        key="instance key and a number: each record has its own",
        value="history_appended",
        # The log is the truth, and nothing in it is superseded: compaction removes what has a
        # tombstone, which instances get that were deleted.
        cleanup=Cleanup.COMPACT,
        purpose="Every fact of every workflow, until its instance is deleted.",
    ),
    Topic(
        name=WORKFLOW_SNAPSHOTS,
        key="instance key",
        value="snapshot_taken",
        cleanup=Cleanup.COMPACT,
        purpose="The newest state of every instance, so that nobody starts from all of history.",
    ),
    Topic(
        name=WORKFLOW_REPLIES,
        key="none",
        value="reply_sent",
        cleanup=Cleanup.DELETE,
        # Longer than any sender waits for its answer.
        retention_ms=_HOUR_MS,
        purpose="What became of commands, for senders that wait to hear.",
    ),
    Topic(
        name=GRAPH_DEFINITIONS,
        key="name of the graph and an id: each record has its own; all in partition 0",
        value="graph_deployed",
        # No version is superseded: runs stay on the one that they began with.
        cleanup=Cleanup.COMPACT,
        purpose="Every version of every graph that was deployed.",
        key_form=re.compile(rb"\w[\w-]*#[0-9a-f]+"),
    ),
    Topic(
        name=DEPLOYMENTS,
        key="id of the deployment and an id: each record has its own; all in partition 0",
        value="deployment_created",
        others=("deployment_activated",),
        # Runs stay on the deployment that they began on, and a rollback goes back through all.
        cleanup=Cleanup.COMPACT,
        purpose="Every deployment of code, and which was active from when on.",
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
        name=AUDIT,
        key="the project; all in partition 0",
        value="operation_audited",
        # Without a retention: nothing is removed, or superseded. Users are not named in it.
        cleanup=Cleanup.DELETE,
        purpose="Who has done what, in the order in which it was done.",
    ),
)


_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OURS: Final = frozenset(topic.name for topic in TOPICS)


def authors_topic_fault(name: str) -> str | None:
    """Says what is wrong with a topic that authors publish to, if anything.

    A record for a name that Kafka does not take would wait for ever, and one in a topic of ours
    would be a record that no part of the house can read.
    """
    if _NAME.fullmatch(name) is None or set(name) == {"."}:
        return (
            "expected the name of a topic, of 1 to 249 characters out of a-z, A-Z, 0-9, ., _ "
            f"and -, found {name[:120]!r}"
        )
    if name in _OURS:
        return f"expected a topic of your own, found {name!r}, which is Headwater's"
    return None


def retention_of(name: str) -> int:
    """For how many milliseconds a topic keeps its records.

    Errors: ValueError for one that keeps them for ever.
    """
    found = next((topic.retention_ms for topic in TOPICS if topic.name == name), None)
    if found is None:
        raise ValueError(f"expected a topic with a retention, found {name}")
    return found
