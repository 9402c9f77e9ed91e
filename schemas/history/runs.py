"""The events of a run, whatever decides it: how it begins and ends, its mailbox, log and outbox."""

from typing import TypeAlias

from headwater.schemas.history.commands import Command
from headwater.schemas.history.values import (
    Artifact,
    Failure,
    Json,
    Label,
    Limits,
    Once,
    Parent,
    Part,
    Tagged,
)


class Post(Part, frozen=True):
    """What an instance has decided to send: a command, or a record for a topic.

    It stays in the instance's outbox until `PostsSent`. A command may be sent twice, always under
    the same number, by which its receiver knows it.
    """

    #: Number within the instance; one that is sent twice keeps it.
    number: int
    #: For a command: the addressee's workflow.
    workflow: str | None = None
    #: For a command: the addressee.
    instance_id: str | None = None
    #: For a command: what is to be done.
    command: Command | None = None
    #: For a record: its topic.
    topic: str | None = None
    #: For a record: its key.
    key: str | None = None
    #: For a record: its value, JSON text.
    value: Json | None = None
    #: For a record: its place among all that the partition's owners ever publish; -1 for a command.
    order: int = -1


class Reopened(Part, frozen=True):
    """A join, race or loop that a retry has kept, and that goes on."""

    #: The entry.
    key: str
    #: Iteration of a loop from which on its commits are forgotten.
    iteration: int | None = None


class RunStarted(Tagged, frozen=True):
    """A run begins; number 0 is the creation of its instance."""

    #: What the author's function is given, JSON text.
    params: Json
    #: What the run's random numbers come from.
    seed: str
    #: Whose entry waits for the end of it.
    parent: Parent | None = None
    #: Keys of the entries that a retry takes over from the run before, with its mailbox; null for a
    #: run from the beginning. Reopened ones are not among them.
    kept: tuple[str, ...] | None = None
    #: Entries that a retry takes over and that go on.
    reopened: tuple[Reopened, ...] = ()
    #: The engine that decides for the run.
    kind: str = ""
    #: The definition that it was made from.
    definition: Artifact | None = None
    #: The deployment that it belongs to.
    deployment: Artifact | None = None
    #: The key under which its instance was created.
    once: Once | None = None
    #: By what its instance is found, by name.
    labels: tuple[Label, ...] = ()
    #: What its code is held to; null for the usual limits.
    limits: Limits | None = None


class RunSuspended(Tagged, frozen=True):
    """Nothing can move without time or an event."""


class RunPaused(Tagged, frozen=True):
    """An operator stopped the run."""


class RunResumed(Tagged, frozen=True):
    """An operator let the run go on."""


class RunTerminated(Tagged, frozen=True):
    """The run was ended from outside."""

    #: Why, for people.
    reason: str
    #: Whether it was cancelled, so that its code could clean up.
    cancelled: bool = False

    @property
    def failure(self) -> Failure | None:
        """What is told of it as an error: that it was cancelled, or why it was terminated."""
        reason = f": {self.reason}" if self.reason else ""
        if self.cancelled:
            return Failure("Cancelled", f"the instance was cancelled{reason}")
        return Failure("Terminated", f"the instance was terminated{reason}") if reason else None


class RunCompleted(Tagged, frozen=True):
    """The author's function returned."""

    #: What it returned, JSON text.
    output: Json


class RunErrored(Tagged, frozen=True):
    """The author's function raised, after all rollbacks."""

    #: What it raised.
    failure: Failure


class EventReceived(Tagged, frozen=True):
    """An event lies in the mailbox."""

    #: The event.
    event_id: str
    #: The author's event type.
    type: str
    #: What it carries, JSON text.
    payload: Json
    #: When it was sent, Unix milliseconds, by the sender's clock.
    sent_at_ms: int
    #: The key under which it is received once.
    once: Once | None = None


class LogWritten(Tagged, frozen=True):
    """A line of `step.log`, or of the engine (category `system`)."""

    #: debug, info, warn or error.
    level: str
    #: Who wrote it; system is the engine.
    category: str
    #: The line.
    message: str
    #: What goes with it, JSON text.
    data: Json | None = None
    #: The step that wrote it; null for the run's own code.
    step_key: str | None = None
    #: The attempt of that step.
    attempt: int | None = None
    #: Whether it was written while the run was being replayed.
    is_replay: bool = False
    #: What the engine says only once in a run; null for lines that may come again.
    once: str | None = None
    #: Recorded entries of which it says that the run's code comes to them no more.
    missed: tuple[str, ...] = ()
    #: The latest event that the run's own code had seen when it wrote it; null for other lines.
    seen: int | None = None


class PostsQueued(Tagged, frozen=True):
    """The outbox has grown."""

    #: What is to be sent, in this order.
    posts: tuple[Post, ...]


class PostsSent(Tagged, frozen=True):
    """The posts up to and including this number are acknowledged by Kafka."""

    #: Number of the last of them.
    through: int


class SlotAsked(Tagged, frozen=True):
    """The run begins once it has a slot of its workflow's limit of concurrency."""

    #: The instance that counts the slots, of the same workflow.
    slots: str
    #: The key of the limit, JSON text; null for a limit without one.
    key: Json | None = None


class SlotGranted(Tagged, frozen=True):
    """The run has its slot, until it ends."""


LifeEvent: TypeAlias = (
    RunStarted
    | RunSuspended
    | RunPaused
    | RunResumed
    | RunTerminated
    | RunCompleted
    | RunErrored
    | EventReceived
    | LogWritten
    | PostsQueued
    | PostsSent
    | SlotAsked
    | SlotGranted
)
