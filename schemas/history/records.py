"""The records of workflows: decisions in the log, commands on their way, and their outcomes.

One record of `workflow-history` holds what one decision led to for one instance: it is in the log
whole or not at all. Who may write one, and which records count, says `processors.runs.claims`.
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

#: A record that no command caused.
NO_CAUSE: Final = -1


class HistoryAppended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one decision led to (topic `workflow-history`; `record_key` makes its key)."""

    #: The workflow's name; it has no slash. Empty where nothing is said of an instance.
    workflow: str
    #: The instance. Empty where nothing is said of one.
    instance_id: str
    #: The run of the instance that the events belong to; the first is 0.
    run_number: int
    #: Number of the first event within the run, gapless; claims, rejections, deletions and
    #: PostsSent take none.
    sequence: int
    #: Offset of the writer's claim in the same partition; a record of another epoch than the latest
    #: claim's does not count.
    epoch: int
    #: Offset of the command in the same partition of workflow-commands that led to this; -1 if none
    #: did.
    cause: int
    #: When it was decided, Unix milliseconds, by the owner's clock.
    at_ms: int
    #: What became true, in this order.
    events: tuple[LogEvent, ...]


class CommandSent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A command on its way (topic `workflow-commands`, key: the instance's key)."""

    #: Id that the sender chose; the reply names it.
    command_id: str
    #: The workflow's name; it has no slash.
    workflow: str
    #: The instance.
    instance_id: str
    #: When it was sent, Unix milliseconds, by the sender's clock; an event counts from here.
    sent_at_ms: int
    #: Partition of workflow-replies where the sender listens; -1 if it does not.
    reply_to: int
    #: What is to be done.
    command: Command


class ReplySent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a command (topic `workflow-replies`, no key)."""

    #: The command.
    command_id: str
    #: Why it was refused, as a word for programs; empty if it was accepted.
    code: str
    #: Why it was refused, as a sentence for people; empty if it was accepted.
    message: str
    #: Status of the instance afterwards.
    status: str
    #: The run that the command met or began.
    run_number: int
    #: Partition of workflow-history that the instance belongs to.
    partition: int
    #: Offset of the outcome in that partition.
    position: int
    #: Until when a worker has the job that it took or extended, Unix milliseconds; None of all
    #: other commands.
    lease_until_ms: int | None = None


def record_key(of: bytes, epoch: int, number: int) -> bytes:
    """Return the key of a record of `workflow-history`, which begins with that of its instance.

    Args:
        of: The key of the instance.
        epoch: The epoch of the owner.
        number: Unique among the records of the epoch.
    """
    return b"%b#%d.%d" % (of, epoch, number)


def key_of_record(key: bytes) -> bytes:
    """The key of the instance that a record of `workflow-history` is about."""
    return key.rpartition(b"#")[0]


def instance_key(workflow: str, instance_id: str) -> str:
    """The key of an instance in all topics; a workflow's name has no slash."""
    return f"{workflow}/{instance_id}"
