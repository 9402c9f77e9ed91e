"""Events of the log that belong to no run: who owns the partition, and what was refused."""

from headwater.schemas.history.values import Artifact, Part, Tagged


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


class InstanceDeleted(Tagged, frozen=True):
    """The instance of the record is forgotten, whatever came before; it may be created anew."""


class CommandRejected(Tagged, frozen=True):
    """A command was refused and changed nothing."""

    #: Why, as a word for programs.
    code: str
    #: Why, as a sentence for people.
    message: str
