"""Records of workflows: decisions, commands, outcomes, and the events of slots and of no run.

One record of `workflow-history` contains the result of one decision about one instance, so it is
appended completely or not at all. `processors.runs.claims` explains who may append, and which
records count.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.history.code import CodeEvent
from headwater.schemas.history.commands import Command
from headwater.schemas.history.graph import GraphEvent
from headwater.schemas.history.runs import LifeEvent
from headwater.schemas.history.values import Artifact, Json, Part, Tagged


class OfSlots(Tagged, frozen=True):
    """Base of the events of an instance that counts slots.

    A ticket identifies the requesting run: the instance, the number and the seed of the run, so
    that a run of an instance that was deleted and created again has another ticket.
    """


class SlotsLimited(OfSlots, frozen=True):
    """The number of slots from now on."""

    #: Number of slots; null for any number.
    limit: int | None = None


class SlotQueued(OfSlots, frozen=True):
    """A run waits for a slot."""

    #: Ticket of the run.
    ticket: str
    #: Its number in the queue, in the order of arrival.
    number: int
    #: The key of the limit, JSON text; null for a limit without one.
    key: Json | None = None


class SlotsGiven(OfSlots, frozen=True):
    """Slots were granted to the runs that have waited longest."""

    #: Granted to all that have waited up to this number.
    through: int


class SlotReturned(OfSlots, frozen=True):
    """A run no longer needs its slot, or has left the queue."""

    #: The run's number in the queue.
    number: int


#: The events of an instance that counts slots.
SlotEvent: TypeAlias = SlotsLimited | SlotQueued | SlotsGiven | SlotReturned


# -- events of no run

#: Stands for an unknown leader epoch; Kafka's own value.
NO_LEADER_EPOCH: Final = -1


class ClaimedWorkflow(Part, frozen=True):
    """A workflow that an owner can run."""

    #: Its name.
    name: str
    #: The engine of its runs.
    kind: str
    #: Its definition.
    definition: Artifact | None = None
    #: Its deployment.
    deployment: Artifact | None = None
    #: The JSON Schema of its params, as text; None if it declares no type for them.
    params: str | None = None
    #: Maximum number of active runs, in total or per key; None for any number.
    limit: int | None = None
    #: The expression that returns the key; None if the limit is for all runs together.
    limit_key: str | None = None


class PartitionClaimed(Tagged, frozen=True):
    """The partition has a new owner; the offset of this record is its epoch."""

    #: The owner, for people.
    owner: str
    #: The workflows that it can run.
    workflows: tuple[ClaimedWorkflow, ...] = ()


class LeaderEpochNoted(Tagged, frozen=True):
    """The owner reads commands of a later leader epoch of their partition, or after a data loss.

    Offsets of commands are comparable only as long as the broker loses none. Leader epochs show
    whether it did.
    """

    #: No command that was read was appended in a later leader epoch than this; -1 if not known.
    leader_epoch: int
    #: Offset from which on the broker lost commands that have their outcomes; commands that are
    #: there now are executed. -1 if it lost none. Without a leader epoch it is another log, and
    #: records before this offset are skipped.
    lost_from: int = -1


class InstanceDeleted(Tagged, frozen=True):
    """The instance of the record is deleted, with its history; it may be created again."""


class CommandRejected(Tagged, frozen=True):
    """A command was rejected and changed nothing."""

    #: Code of the reason.
    code: str
    #: Reason, as a sentence for people.
    message: str


# -- records

RunEvent: TypeAlias = LifeEvent | CodeEvent | GraphEvent | SlotEvent
LogEvent: TypeAlias = (
    RunEvent | PartitionClaimed | CommandRejected | InstanceDeleted | LeaderEpochNoted
)

#: Cause of a record that no command caused.
NO_CAUSE: Final = -1


class HistoryAppended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of one decision (topic `workflow-history`; `record_key` returns its key)."""

    #: The workflow's name; it has no slash. Empty if the record is not about an instance.
    workflow: str
    #: The instance. Empty if the record is not about one.
    instance_id: str
    #: The run of the instance that the events belong to; the first is 0.
    run_number: int
    #: Number of the first event within the run, gapless; claims, rejections, deletions and
    #: PostsSent have no numbers.
    sequence: int
    #: Offset of the writer's claim in the same partition; a record with another epoch than that of
    #: the latest claim does not count.
    epoch: int
    #: Offset of the command in the same partition of workflow-commands that caused it; -1 if none
    #: did.
    cause: int
    #: When it was decided, Unix milliseconds, by the owner's clock.
    at_ms: int
    #: The events, in order.
    events: tuple[LogEvent, ...]


class CommandSent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A command to an instance (topic `workflow-commands`, key: the instance's key)."""

    #: Id that the sender chose; the reply contains it.
    command_id: str
    #: The workflow's name; it has no slash.
    workflow: str
    #: The instance.
    instance_id: str
    #: When it was sent, Unix milliseconds, by the sender's clock; events count from this time.
    sent_at_ms: int
    #: Partition of workflow-replies that the sender consumes; -1 if it expects no reply.
    reply_to: int
    #: The command.
    command: Command
    #: W3C trace context of its sender: traceparent and, after a space, tracestate; or empty.
    trace: str = ""


class ReplySent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a command (topic `workflow-replies`, no key)."""

    #: The command.
    command_id: str
    #: Code of the rejection; empty if it was accepted.
    code: str
    #: Reason of the rejection, as a sentence for people; empty if it was accepted.
    message: str
    #: Status of the instance afterwards.
    status: str
    #: The run that the command was for, or that it started.
    run_number: int
    #: Partition of workflow-history that the instance belongs to.
    partition: int
    #: Offset of the outcome in that partition.
    position: int
    #: End of the lease that a worker acquired or extended, Unix milliseconds; None for other
    #: commands.
    lease_until_ms: int | None = None
    #: Deployment of that run; None if it follows the newest code.
    deployment: str | None = None


def record_key(of: bytes, epoch: int, number: int) -> bytes:
    """Return the key of a record of `workflow-history`, which begins with its instance's key.

    Args:
        of: The key of the instance.
        epoch: The epoch of the owner.
        number: Unique among the records of the epoch.
    """
    return b"%b#%d.%d" % (of, epoch, number)


def key_of_record(key: bytes) -> bytes:
    """Return the key of the instance of a record of `workflow-history`."""
    return key.rpartition(b"#")[0]


def instance_key(workflow: str, instance_id: str) -> str:
    """Return the key of an instance in all topics; a workflow's name has no slash."""
    return f"{workflow}/{instance_id}"
