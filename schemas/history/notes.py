"""Events of the log that belong to no run: who owns the partition, and what was refused."""

from headwater.schemas.history.values import Tagged


class PartitionClaimed(Tagged, frozen=True):
    """The partition has a new owner; the offset of this record is its epoch."""

    #: The owner, for people.
    owner: str
    #: Names of the workflows whose code it has.
    workflows: tuple[str, ...] = ()


class CommandRejected(Tagged, frozen=True):
    """A command was refused and changed nothing."""

    #: Why, as a word for programs.
    code: str
    #: Why, as a sentence for people.
    message: str
