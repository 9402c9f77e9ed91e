"""The facts of workflows: the events of a run, and the record that carries them.

One record of `workflow-history` holds what one decision led to for one instance: it is in the log
whole or not at all. Values of authors (params, results, payloads) are JSON text, never looked
into. Like all records of the house these are structs, because building a frozen dataclass costs
microseconds.

A history is folded by `processors.replay.appliers`; who may write one, and which records count,
says `processors.runs.claims`.
"""

from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

#: JSON text, as an author's code gave it.
Json: TypeAlias = str


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value within a record."""


class Tagged(msgspec.Struct, frozen=True, tag=True, tag_field="_", array_like=True, gc=False):
    """A value that says what it is, for where there are several."""


class EntryKind(StrEnum):
    """What an entry of a history is; the values are those of `history.steps[i].type`."""

    DO = "do"
    SLEEP = "sleep"
    WAIT = "wait_for_event"
    LOOP = "loop"
    JOIN = "join"
    RACE = "race"
    CHILD = "child"
    CHECKPOINT = "checkpoint"
    REMOVED = "removed"
    #: `step.now()`; not shown to people.
    NOW = "now"


class Failure(Part, frozen=True):
    """An error as data. `detail` is JSON text for errors that carry more, such as a join's."""

    name: str
    message: str
    detail: Json | None = None


class Parent(Part, frozen=True):
    """Whose entry a child instance belongs to."""

    workflow: str
    instance_id: str
    run_number: int
    key: str


class Child(Part, frozen=True):
    """The instance that an entry of kind `child` started."""

    workflow: str
    instance_id: str


class Sender(Part, frozen=True):
    """The instance whose outbox a command comes from, and the post's number there."""

    workflow: str
    instance_id: str
    run_number: int
    number: int


# -- commands, as they travel on `workflow-commands` and wait in an instance's outbox


class StartRun(Tagged, frozen=True):
    """Create an instance; for a parent also: restart its own child.

    Shape:  sender is the instance whose step has asked for it, and does not wait for its end.
    """

    params: Json
    parent: Parent | None = None
    sender: Sender | None = None


class SendEvent(Tagged, frozen=True):
    """Put an event into an instance's mailbox; one that was sent by a program says whose it is.

    Shape:  start has the params of the instance that is created if there is none.
    """

    event_id: str
    type: str
    payload: Json
    sender: Sender | None = None
    start: Json | None = None


class PauseRun(Tagged, frozen=True):
    """Stop at the next step boundary."""


class ResumeRun(Tagged, frozen=True):
    """Go on after a pause."""


class TerminateRun(Tagged, frozen=True):
    """End a run for good; with a parent, only if the instance is that parent's child."""

    reason: str = ""
    parent: Parent | None = None


class RestartRun(Tagged, frozen=True):
    """Begin a new run of the same instance."""


class RetryRun(Tagged, frozen=True):
    """Begin a new run of an errored instance that keeps what was done.

    Shape:  from_key is the first entry that is done again; without it, the one that failed.
    """

    from_key: str | None = None


class FinishChild(Tagged, frozen=True):
    """Tell a parent how its child ended: with an output or a failure."""

    run_number: int
    key: str
    output: Json | None = None
    failure: Failure | None = None


class NoteRefusal(Tagged, frozen=True):
    """Tell an instance that a command which it had sent was refused."""

    run_number: int
    message: str


Command: TypeAlias = (
    StartRun
    | SendEvent
    | PauseRun
    | ResumeRun
    | TerminateRun
    | RestartRun
    | FinishChild
    | NoteRefusal
    | RetryRun
)


class Post(Part, frozen=True):
    """What an instance has decided to send: a command, or a record for a topic.

    It stays in the instance's outbox until `PostsSent`. A command may be sent twice, always under
    the same number, by which its receiver knows it.

    Shape:  order is the place of a record among all that the partition's owners ever publish; -1
            for a command.
    """

    number: int
    workflow: str | None = None
    instance_id: str | None = None
    command: Command | None = None
    topic: str | None = None
    key: str | None = None
    value: Json | None = None
    order: int = -1


# -- events: the life of a run


class Reopened(Part, frozen=True):
    """A join, race or loop that a run has kept, and that goes on.

    Shape:  iteration is that of a loop from which on its commits are forgotten.
    """

    key: str
    iteration: int | None = None


class RunStarted(Tagged, frozen=True):
    """A run begins; number 0 is the creation of its instance.

    Shape:  kept are the keys of the entries that a retry takes over from the run before, with the
            mailbox; None for a run from the beginning. Reopened ones are not among them.
    """

    params: Json
    seed: str
    parent: Parent | None = None
    kept: tuple[str, ...] | None = None
    reopened: tuple[Reopened, ...] = ()


class RunSuspended(Tagged, frozen=True):
    """Nothing can move without time or an event."""


class RunPaused(Tagged, frozen=True):
    """An operator stopped the run."""


class RunResumed(Tagged, frozen=True):
    """An operator let the run go on."""


class RunTerminated(Tagged, frozen=True):
    """The run was ended from outside."""

    reason: str


class RunCompleted(Tagged, frozen=True):
    """The author's function returned."""

    output: Json


class RunErrored(Tagged, frozen=True):
    """The author's function raised, after all rollbacks."""

    failure: Failure


class EventReceived(Tagged, frozen=True):
    """An event lies in the mailbox."""

    event_id: str
    type: str
    payload: Json
    sent_at_ms: int


class LogWritten(Tagged, frozen=True):
    """A line of `step.log`, or of the engine (category `system`)."""

    level: str
    category: str
    message: str
    data: Json | None = None
    step_key: str | None = None
    attempt: int | None = None
    is_replay: bool = False


class PostsQueued(Tagged, frozen=True):
    """The outbox has grown."""

    posts: tuple[Post, ...]


class PostsSent(Tagged, frozen=True):
    """The posts up to and including this number are acknowledged by Kafka."""

    through: int


# -- events: the entries of a code workflow


class StepCompleted(Tagged, frozen=True):
    """A `step.do` has its result. Steps are not opened: one record a step is enough."""

    key: str
    name: str
    ordinal: int
    reached_at_ms: int
    attempt: int
    max_attempts: int
    timeout_ms: int
    result: Json
    rollback: bool = False


class StepFailed(Tagged, frozen=True):
    """An attempt of a `step.do` failed; without `retry_at_ms` it was the last.

    Units:  max_attempts 0 stands for any number.
    """

    key: str
    name: str
    ordinal: int
    reached_at_ms: int
    attempt: int
    max_attempts: int
    timeout_ms: int
    failure: Failure
    retry_at_ms: int | None = None


class StepsRetried(Tagged, frozen=True):
    """The next attempts of steps begin: the time of each has come."""

    keys: tuple[str, ...]


class EntryOpened(Tagged, frozen=True):
    """An entry other than a step begins."""

    key: str
    name: str
    kind: EntryKind
    ordinal: int
    wake_at_ms: int | None = None
    event_types: tuple[str, ...] | None = None
    limit: int | None = None
    child: Child | None = None
    #: JSON text that a loop starts from.
    state: Json | None = None


class EntryCompleted(Tagged, frozen=True):
    """An entry has its result; `consumed` are the ids of the events that it took."""

    key: str
    result: Json
    consumed: tuple[str, ...] = ()


class EntryErrored(Tagged, frozen=True):
    """An entry ended with an error, which the author's code sees."""

    key: str
    failure: Failure


class EntriesCancelled(Tagged, frozen=True):
    """Entries that were open and are no longer wanted: the losers of a race."""

    keys: tuple[str, ...]


class LoopAdvanced(Tagged, frozen=True):
    """A loop has come to this iteration; what lies before `trim_before` is forgotten."""

    key: str
    iteration: int
    state: Json
    trim_before: int = 0


class RollbackStarted(Tagged, frozen=True):
    """The run failed for this reason; rollback handlers run now."""

    failure: Failure


class EntryRolledBack(Tagged, frozen=True):
    """A rollback handler is done, or given up."""

    key: str


class RollbackFailed(Tagged, frozen=True):
    """An attempt of a rollback handler failed and is tried again at `retry_at_ms`."""

    key: str
    attempt: int
    failure: Failure
    retry_at_ms: int


class HostLost(Tagged, frozen=True):
    """The code host died or stood still while the run's own code, not a step, was running."""

    reason: str
    retry_at_ms: int


# -- notes in the log that belong to no run


class PartitionClaimed(Tagged, frozen=True):
    """A new owner of the partition; the offset of this record is its epoch.

    Shape:  workflows are the names of those whose code it has.
    """

    owner: str
    workflows: tuple[str, ...] = ()


class CommandRejected(Tagged, frozen=True):
    """A command was refused and changed nothing."""

    code: str
    message: str


RunEvent: TypeAlias = (
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
    | StepCompleted
    | StepFailed
    | EntryOpened
    | EntryCompleted
    | EntryErrored
    | EntriesCancelled
    | LoopAdvanced
    | RollbackStarted
    | EntryRolledBack
    | RollbackFailed
    | HostLost
    | StepsRetried
)
LogEvent: TypeAlias = RunEvent | PartitionClaimed | CommandRejected

#: A record that no command caused.
NO_CAUSE: Final = -1


class HistoryAppended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one decision led to (topic `workflow-history`, key: the instance's key).

    Shape:  epoch is the offset of the writer's claim; cause the offset of the command in
            `workflow-commands`, or NO_CAUSE; sequence is the number of the first event within the
            run, gapless. Claims, rejections and PostsSent take no sequence.
    Units:  at_ms, Unix milliseconds, by the owner's clock.
    """

    workflow: str
    instance_id: str
    run_number: int
    sequence: int
    epoch: int
    cause: int
    at_ms: int
    events: tuple[LogEvent, ...]


class CommandSent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A command on its way (topic `workflow-commands`, key: the instance's key).

    Shape:  reply_to is the partition of `workflow-replies` where the sender listens, or -1.
    Units:  sent_at_ms, by the sender's clock: an event counts from here.
    """

    command_id: str
    workflow: str
    instance_id: str
    sent_at_ms: int
    reply_to: int
    command: Command


class ReplySent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a command (topic `workflow-replies`, no key).

    Shape:  code is empty when the command was accepted. Position is the outcome's offset in the
            partition of `workflow-history` that the command's instance belongs to.
    """

    command_id: str
    code: str
    message: str
    status: str
    run_number: int
    partition: int
    position: int


def instance_key(workflow: str, instance_id: str) -> str:
    """The key of an instance in all topics; a workflow's name has no slash."""
    return f"{workflow}/{instance_id}"
