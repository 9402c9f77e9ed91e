"""Commands to an instance, which it may reject.

They are sent through `workflow-commands`, and queued in the outboxes of instances that send them.
"""

from typing import Final, TypeAlias

from headwater.schemas.history.values import (
    Artifact,
    Attempt,
    Failure,
    Json,
    Label,
    Once,
    Parent,
    Part,
    Sender,
    Tagged,
)


class StartRun(Tagged, frozen=True):
    """Create an instance; for a parent also: restart its own child."""

    #: Params of the author's function, JSON text.
    params: Json
    #: The parent's entry that waits for its end.
    parent: Parent | None = None
    #: The instance whose step requested it and does not wait for its end.
    sender: Sender | None = None
    #: The engine of the instance; empty if the owner chooses it.
    kind: str = ""
    #: The definition that it is created from.
    definition: Artifact | None = None
    #: The deployment that it belongs to.
    deployment: Artifact | None = None
    #: Idempotency key of the creation.
    once: Once | None = None
    #: Its labels.
    labels: tuple[Label, ...] = ()
    #: Instances around it: 0 unless a parent waits for its end.
    depth: int = 0


class SendEvent(Tagged, frozen=True):
    """Put an event into an instance's mailbox."""

    #: The event.
    event_id: str
    #: The author's event type.
    type: str
    #: The payload, JSON text.
    payload: Json
    #: The sender and its post, if a program sent it.
    sender: Sender | None = None
    #: Params of the instance that is created if none exists, JSON text; null to create none.
    start: Json | None = None
    #: Idempotency key of the event.
    once: Once | None = None
    #: Labels of the instance that is created if none exists.
    labels: tuple[Label, ...] = ()


class PauseRun(Tagged, frozen=True):
    """Pause at the next step boundary."""


class ResumeRun(Tagged, frozen=True):
    """Continue after a pause."""


class TerminateRun(Tagged, frozen=True):
    """End a run immediately; with a parent, only if the instance is that parent's child."""

    #: Reason, for people.
    reason: str = ""
    #: The entry that requests it, if any.
    parent: Parent | None = None


class CancelRun(Tagged, frozen=True):
    """End a run once its code has cleaned up; with a parent, only if it is that parent's child."""

    #: Reason, for people.
    reason: str = ""
    #: The entry that requests it, if any.
    parent: Parent | None = None


class DeleteInstance(Tagged, frozen=True):
    """Delete an instance that has ended, with all of its runs; it need not exist."""

    #: Only if it has not changed after this time, Unix milliseconds; null for any.
    unchanged_since_ms: int | None = None


#: Deployment of a command: the one that the run is on.
SAME_DEPLOYMENT: Final = "same"
#: Deployment of a command: the active one.
ACTIVE_DEPLOYMENT: Final = "active"


class RestartRun(Tagged, frozen=True):
    """Start a new run of the same instance."""

    #: Where it starts: "same", "active", "app" or the id of a deployment.
    deployment: str = ACTIVE_DEPLOYMENT


class RetryRun(Tagged, frozen=True):
    """Start a new run of an errored instance that keeps completed entries."""

    #: The first entry that is executed again; null for the one that failed.
    from_key: str | None = None
    #: Where it continues: "same", "active", "app" or the id of a deployment.
    deployment: str = SAME_DEPLOYMENT


class MoveRun(Tagged, frozen=True):
    """Continue a run on other code."""

    #: Where it continues: "active", "app" or the id of a deployment.
    deployment: str


class SetBranchOutput(Tagged, frozen=True):
    """Replace the output of a branch of an errored run, before a retry merges it again."""

    #: Group of the fork.
    group: str
    #: The branch; the first is 0.
    branch: int
    #: The output, an object as JSON text.
    output: Json
    #: The fork, if several forks of the group wait for their branches; null for the only one.
    fork: str | None = None


class NodeRename(Part, frozen=True):
    """Where the tokens of a node move in another definition."""

    #: The node.
    node: str
    #: The node of the other definition.
    to: str


class MigrateRun(Tagged, frozen=True):
    """Continue the run of a graph on another definition."""

    #: The definition, JSON text.
    document: Json
    #: Its digest.
    digest: str
    #: Its version; null if it has none.
    version: int | None = None
    #: Nodes that have another name there.
    nodes: tuple[NodeRename, ...] = ()


class FinishChild(Tagged, frozen=True):
    """Notify a parent of its child's end, with an output or a failure."""

    #: The parent's run.
    run_number: int
    #: The parent's entry.
    key: str
    #: The child's output, JSON text.
    output: Json | None = None
    #: The child's error.
    failure: Failure | None = None


class NoteRefusal(Tagged, frozen=True):
    """Notify an instance that a command which it had sent was rejected."""

    #: The run that had sent it.
    run_number: int
    #: Reason, as a sentence for people.
    message: str


class ActivateJob(Tagged, frozen=True):
    """Lease a job to a worker."""

    #: The attempt to start.
    attempt: Attempt
    #: The worker, for people.
    worker: str
    #: Length of the lease, from the time at which this was sent, milliseconds.
    lease_ms: int


class CompleteJob(Tagged, frozen=True):
    """Accept the result of a job."""

    #: The attempt with the result.
    attempt: Attempt
    #: The result, JSON text.
    output: Json


class FailJob(Tagged, frozen=True):
    """Record that an attempt of a job failed."""

    #: The attempt.
    attempt: Attempt
    #: The error.
    failure: Failure
    #: Whether it may be retried, as often as its node allows.
    retryable: bool = True
    #: When it is retried, milliseconds from now; null for the delay of its node.
    retry_after_ms: int | None = None


class ExtendJob(Tagged, frozen=True):
    """Extend the lease of a job."""

    #: The running attempt.
    attempt: Attempt
    #: Length of the lease, from the time at which this was sent, milliseconds.
    lease_ms: int


class AskSlot(Tagged, frozen=True):
    """Queue for a slot of a limit, and take it when it is free."""

    #: Ticket of the requesting run.
    ticket: str
    #: The key of the limit, JSON text; null for a limit without one.
    key: Json | None = None


class ReturnSlot(Tagged, frozen=True):
    """Return a slot, or leave the queue; an unknown ticket has been returned already."""

    #: Ticket of the requesting run.
    ticket: str


class GrantSlot(Tagged, frozen=True):
    """Notify a run that it has its slot, or that it gets none."""

    #: Ticket of the requesting run.
    ticket: str
    #: The instance that counts the slots, of the same workflow.
    slots: str
    #: Why it gets none.
    failure: Failure | None = None


#: Commands that grant and return the slots of a concurrency limit.
SlotCommand: TypeAlias = AskSlot | ReturnSlot | GrantSlot
#: Commands of external workers about the jobs of an instance.
JobCommand: TypeAlias = ActivateJob | CompleteJob | FailJob | ExtendJob
#: Commands that the engine of a run decides.
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
    | SetBranchOutput
    | MigrateRun
    | JobCommand
    | SlotCommand
)
Command: TypeAlias = RunCommand | MoveRun | DeleteInstance


def creates(command: Command) -> bool:
    """Return whether a command creates its instance if none exists."""
    return isinstance(command, StartRun) or (
        isinstance(command, SendEvent) and command.start is not None
    )
