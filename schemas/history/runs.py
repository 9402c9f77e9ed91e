"""Events of all runs, whatever their engine is: start and end, mailbox, log and outbox."""

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
    """A message of an instance: a command, or a record for a topic.

    It stays in the instance's outbox until `PostsSent`. A command may be sent twice, always with
    the same number, by which its receiver recognizes it.
    """

    #: Number within the instance; the same if it is sent twice.
    number: int
    #: For a command: the receiver's workflow.
    workflow: str | None = None
    #: For a command: the receiver.
    instance_id: str | None = None
    #: For a command: the command.
    command: Command | None = None
    #: For a record: its topic.
    topic: str | None = None
    #: For a record: its key.
    key: str | None = None
    #: For a record: its value, JSON text.
    value: Json | None = None
    #: For a record: its position among all that the partition's owners ever publish; -1 for a
    #: command.
    order: int = -1
    #: W3C trace context of the sending run, for what begins or publishes; otherwise empty.
    trace: str = ""


class Reopened(Part, frozen=True):
    """A join, race or loop that a retry has kept and that continues."""

    #: The entry.
    key: str
    #: Iteration of a loop from which on its commits are dropped.
    iteration: int | None = None


class RunStarted(Tagged, frozen=True):
    """A run starts; number 0 is the creation of its instance."""

    #: Params of the author's function, JSON text.
    params: Json
    #: Seed of the run's random numbers.
    seed: str
    #: The parent's entry that waits for its end.
    parent: Parent | None = None
    #: Keys of the entries that a retry keeps from the previous run, with its mailbox; null for a
    #: run from the beginning. Reopened ones are not among them.
    kept: tuple[str, ...] | None = None
    #: Entries that a retry keeps and that continue.
    reopened: tuple[Reopened, ...] = ()
    #: The engine of the run.
    kind: str = ""
    #: The definition that it was created from.
    definition: Artifact | None = None
    #: The deployment that it belongs to.
    deployment: Artifact | None = None
    #: Idempotency key of the instance's creation.
    once: Once | None = None
    #: Labels of its instance.
    labels: tuple[Label, ...] = ()
    #: Limits of its code; null for the defaults.
    limits: Limits | None = None
    #: Instances around it: 0 unless another one waits for its end.
    depth: int = 0
    #: W3C trace context that it continues; empty if it begins a trace of its own.
    trace: str = ""


class RunSuspended(Tagged, frozen=True):
    """The run can continue only after a timer or an event."""


class RunPaused(Tagged, frozen=True):
    """An operator paused the run."""


class RunResumed(Tagged, frozen=True):
    """An operator resumed the run."""


class RunMoved(Tagged, frozen=True):
    """An operator moved the run to other code, from its next activation on."""

    #: Its deployment from then on; null if it follows the newest code.
    deployment: Artifact | None


class RunTerminated(Tagged, frozen=True):
    """The run was ended from outside."""

    #: Reason, for people.
    reason: str
    #: Whether it was canceled, so that its code could clean up.
    cancelled: bool = False

    @property
    def failure(self) -> Failure | None:
        """Error of the run: that it was canceled, or why it was terminated."""
        reason = f": {self.reason}" if self.reason else ""
        if self.cancelled:
            return Failure("Cancelled", f"the instance was cancelled{reason}")
        return Failure("Terminated", f"the instance was terminated{reason}") if reason else None


class RunCompleted(Tagged, frozen=True):
    """The author's function returned."""

    #: The output, JSON text.
    output: Json


class RunErrored(Tagged, frozen=True):
    """The author's function raised, after all rollbacks."""

    #: The error.
    failure: Failure


class EventReceived(Tagged, frozen=True):
    """An event was added to the mailbox."""

    #: The event.
    event_id: str
    #: The author's event type.
    type: str
    #: The payload, JSON text.
    payload: Json
    #: When it was sent, Unix milliseconds, by the sender's clock.
    sent_at_ms: int
    #: Idempotency key of the event.
    once: Once | None = None


class LogWritten(Tagged, frozen=True):
    """A line of `step.log`, or of the engine (category `system`)."""

    #: debug, info, warn or error.
    level: str
    #: The writer; `system` is the engine.
    category: str
    #: The line.
    message: str
    #: Structured data, JSON text.
    data: Json | None = None
    #: The step that wrote it; null for the run's own code.
    step_key: str | None = None
    #: The attempt of that step.
    attempt: int | None = None
    #: Whether it was written during a replay.
    is_replay: bool = False
    #: Name of a warning that the engine logs only once in a run; null for other lines.
    once: str | None = None
    #: Recorded entries that, according to this line, the run's code no longer reaches.
    missed: tuple[str, ...] = ()
    #: The latest event that the run's own code had seen when it wrote the line; else null.
    seen: int | None = None


class PostsQueued(Tagged, frozen=True):
    """Messages were added to the outbox."""

    #: The messages, in order.
    posts: tuple[Post, ...]


class PostsSent(Tagged, frozen=True):
    """The posts up to and including this number are acknowledged by Kafka."""

    #: Number of the last one.
    through: int


class SlotAsked(Tagged, frozen=True):
    """The run starts once it has a slot of its workflow's concurrency limit."""

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
    | RunMoved
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
