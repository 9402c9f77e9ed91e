"""Commands: what an instance may be told to do, and refuse.

They travel on `workflow-commands`, and wait in the outboxes of instances that send some.
"""

from typing import TypeAlias

from headwater.schemas.history.values import (
    Artifact,
    Attempt,
    Failure,
    Json,
    Label,
    Once,
    Parent,
    Sender,
    Tagged,
)


class StartRun(Tagged, frozen=True):
    """Create an instance; for a parent also: restart its own child."""

    #: What the author's function is given, JSON text.
    params: Json
    #: Whose entry waits for the end of it.
    parent: Parent | None = None
    #: The instance whose step has asked for it, and does not wait for its end.
    sender: Sender | None = None
    #: The engine that is to decide for it; empty when that is for the owner to know.
    kind: str = ""
    #: The definition that it is to be made from.
    definition: Artifact | None = None
    #: The deployment that it is to belong to.
    deployment: Artifact | None = None
    #: The key under which it is created once.
    once: Once | None = None
    #: By what it is found, by name.
    labels: tuple[Label, ...] = ()


class SendEvent(Tagged, frozen=True):
    """Put an event into an instance's mailbox."""

    #: The event.
    event_id: str
    #: The author's event type.
    type: str
    #: What it carries, JSON text.
    payload: Json
    #: Who sent it and as which of its posts, if a program did.
    sender: Sender | None = None
    #: Params of the instance that is created if there is none, JSON text; null to create none.
    start: Json | None = None
    #: The key under which it is received once.
    once: Once | None = None
    #: Labels of the instance that is created if there is none.
    labels: tuple[Label, ...] = ()


class PauseRun(Tagged, frozen=True):
    """Stop at the next step boundary."""


class ResumeRun(Tagged, frozen=True):
    """Go on after a pause."""


class TerminateRun(Tagged, frozen=True):
    """End a run for good; with a parent, only if the instance is that parent's child."""

    #: Why, for people.
    reason: str = ""
    #: The entry that asks for it, if one does.
    parent: Parent | None = None


class CancelRun(Tagged, frozen=True):
    """End a run once its code has cleaned up; with a parent, only if it is that parent's child."""

    #: Why, for people.
    reason: str = ""
    #: The entry that asks for it, if one does.
    parent: Parent | None = None


class DeleteInstance(Tagged, frozen=True):
    """Forget an instance that has ended, with all of its runs; one that is not there is none."""

    #: Only if nothing has happened to it after this time, Unix milliseconds; null whatever has.
    unchanged_since_ms: int | None = None


class RestartRun(Tagged, frozen=True):
    """Begin a new run of the same instance."""


class RetryRun(Tagged, frozen=True):
    """Begin a new run of an errored instance that keeps what was done."""

    #: The first entry that is done again; null for the one that failed.
    from_key: str | None = None


class FinishChild(Tagged, frozen=True):
    """Tell a parent how its child ended: with an output or a failure."""

    #: The parent's run.
    run_number: int
    #: The parent's entry.
    key: str
    #: What the child returned, JSON text.
    output: Json | None = None
    #: What it failed with.
    failure: Failure | None = None


class NoteRefusal(Tagged, frozen=True):
    """Tell an instance that a command which it had sent was refused."""

    #: The run that had sent it.
    run_number: int
    #: Why, as a sentence for people.
    message: str


class ActivateJob(Tagged, frozen=True):
    """Give a job to a worker, which holds it for the length of a lease."""

    #: The attempt that is to begin.
    attempt: Attempt
    #: Who takes it, for people.
    worker: str
    #: How long it is the worker's, counted from when this was sent.
    lease_ms: int


class CompleteJob(Tagged, frozen=True):
    """Take the result of a job."""

    #: The attempt that gave it.
    attempt: Attempt
    #: The result, JSON text.
    output: Json


class FailJob(Tagged, frozen=True):
    """Take note that an attempt of a job failed."""

    #: The attempt.
    attempt: Attempt
    #: What it failed with.
    failure: Failure
    #: Whether it may be tried again, as often as its node says.
    retryable: bool = True
    #: When it is tried again, counted from now; null for when its node says.
    retry_after_ms: int | None = None


class ExtendJob(Tagged, frozen=True):
    """Leave a job to its worker for longer."""

    #: The attempt that is under way.
    attempt: Attempt
    #: How long it is the worker's, counted from when this was sent.
    lease_ms: int


class AskSlot(Tagged, frozen=True):
    """Wait for one of the slots of a limit, and take it when it is free."""

    #: Who asks.
    ticket: str
    #: The key of the limit, JSON text; null for a limit without one.
    key: Json | None = None


class ReturnSlot(Tagged, frozen=True):
    """Give a slot back, or wait for it no longer; one that is not there is given back already."""

    #: Who had asked.
    ticket: str


class GrantSlot(Tagged, frozen=True):
    """Tell a run that it has its slot, or that it gets none."""

    #: Who had asked.
    ticket: str
    #: The instance that counts the slots, of the same workflow.
    slots: str
    #: Why it gets none.
    failure: Failure | None = None


#: How runs come by the slots of a limit of concurrency.
SlotCommand: TypeAlias = AskSlot | ReturnSlot | GrantSlot
#: What workers outside do with the jobs of an instance.
JobCommand: TypeAlias = ActivateJob | CompleteJob | FailJob | ExtendJob
#: What the engine of a run decides.
RunCommand: TypeAlias = (
    StartRun
    | SendEvent
    | PauseRun
    | ResumeRun
    | TerminateRun
    | CancelRun
    | RestartRun
    | FinishChild
    | NoteRefusal
    | RetryRun
    | JobCommand
    | SlotCommand
)
Command: TypeAlias = RunCommand | DeleteInstance


def creates(command: Command) -> bool:
    """Whether a command creates the instance that it is for, if there is none."""
    return isinstance(command, StartRun) or (
        isinstance(command, SendEvent) and command.start is not None
    )
