"""Events that belong to no run: claims of partitions, and rejections."""

from typing import Final

from headwater.schemas.history.values import Artifact, Part, Tagged

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
