"""Records of workflows: decisions in the log, commands, and their outcomes.

One record of `workflow-history` contains the result of one decision about one instance, so it is
appended completely or not at all. `processors.runs.claims` explains who may append, and which
records count.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.history.code import CodeEvent
from headwater.schemas.history.commands import Command
from headwater.schemas.history.graph import GraphEvent
from headwater.schemas.history.notes import (
    CommandRejected,
    InstanceDeleted,
    LeaderEpochNoted,
    PartitionClaimed,
)
from headwater.schemas.history.runs import LifeEvent
from headwater.schemas.history.slots import SlotEvent

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
