"""Events of the log that belong to no run: who owns the partition, and what was refused."""

from typing import Final

from headwater.schemas.history.values import Artifact, Part, Tagged

#: In place of a leader epoch that is not known; Kafka's own value.
NO_LEADER_EPOCH: Final = -1


class ClaimedWorkflow(Part, frozen=True):
    """A workflow that an owner can run."""

    #: Its name.
    name: str
    #: The engine that decides for its runs.
    kind: str
    #: Its definition.
    definition: Artifact | None = None
    #: Its deployment.
    deployment: Artifact | None = None
    #: The JSON Schema of its params, as text; None where it declares no type for them.
    params: str | None = None
    #: How many of its runs may be under way at once, or for each key; None for any number.
    limit: int | None = None
    #: The expression that gives the key; None where the limit is for all runs together.
    limit_key: str | None = None


class PartitionClaimed(Tagged, frozen=True):
    """The partition has a new owner; the offset of this record is its epoch."""

    #: The owner, for people.
    owner: str
    #: The workflows that it can run.
    workflows: tuple[ClaimedWorkflow, ...] = ()


class LeaderEpochNoted(Tagged, frozen=True):
    """The owner reads commands that a later leader of their partition appended, or lost ones.

    Offsets of commands are comparable only as long as the broker loses none. Leader epochs show
    whether it did.
    """

    #: No command that was read was appended in a later leader epoch than this; -1 if not known.
    leader_epoch: int
    #: Offset from which on the broker lost commands that have their outcomes; what is there now is
    #: still to be carried out. -1 if it lost none. Without a leader epoch the log is another one,
    #: and what it has before this offset is passed over.
    lost_from: int = -1


class InstanceDeleted(Tagged, frozen=True):
    """The instance of the record is forgotten, whatever came before; it may be created anew."""


class CommandRejected(Tagged, frozen=True):
    """A command was refused and changed nothing."""

    #: Why, as a word for programs.
    code: str
    #: Why, as a sentence for people.
    message: str
