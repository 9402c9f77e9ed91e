"""The events of a graph's run: its tokens, what their tasks came to, and where branches meet.

A record holds many tokens: those of one fork that differ by their place alone are one event, so
that a fan-out of thousands costs as much of the log as one of two.
"""

from typing import TypeAlias

from headwater.schemas.history.values import Child, Failure, Json, Part, Tagged


class OfGraph(Tagged, frozen=True):
    """Base of the events that only the run of a graph has."""


class TimesTaken(Part, frozen=True):
    """How often a token, or those before it, took a transition."""

    #: The transition.
    ref: str
    #: How often.
    times: int


class TaskDispatch(Part, frozen=True):
    """An attempt of a task that begins."""

    #: The token whose task it is.
    token: int
    #: The attempt; the first is 1.
    attempt: int
    #: What the task is given, JSON text; null for what it was given before.
    input: Json | None = None
    #: The idempotency token of its job, if workers outside are to take it; null if a code host is.
    job: str | None = None


class ContextChange(Part, frozen=True):
    """A value that was set."""

    #: Where, from its section on: `state.a.b` or `output.c`.
    path: str
    #: The value, JSON text.
    value: Json


class GraphStarted(OfGraph, frozen=True):
    """The run of a graph begins. It stays on this definition."""

    #: The definition, JSON text.
    document: Json


class ForkOpened(OfGraph, frozen=True):
    """A token has ended in branches, which meet again or not."""

    #: The fork within its run.
    fork: str
    #: The name of the group that its tokens are siblings in.
    group: str | None
    #: How many branches it has.
    total: int
    #: The token that it began at.
    origin: int


class TokensCreated(OfGraph, frozen=True):
    """Tokens come to a node: one, or those of branches that follow each other."""

    #: Number of the first within its run; the others follow.
    first: int
    #: How many.
    count: int
    #: The node.
    node: str
    #: The token that they come from; null for the first of a run.
    parent: int | None
    #: The transition that they came by; null for the first of a run.
    transition: str | None
    #: Their path; of several it is what comes before the number of the branch.
    path: str
    #: The fork whose branches they are of; null outside of forks.
    fork: str | None
    #: The group that they are siblings in.
    group: str | None
    #: Branch of the first; the others follow.
    branch: int
    #: How many branches there are.
    total: int
    #: How often which transitions were taken on the way.
    taken: tuple[TimesTaken, ...]
    #: The name of a branch's item in expressions.
    item_name: str | None = None
    #: The items of these branches, a list as JSON text.
    items: Json | None = None
    #: The task of the node.
    task: str | None = None
    #: The workflow that the node starts, if it has no task.
    subworkflow: str | None = None


class TasksDispatched(OfGraph, frozen=True):
    """Attempts of tasks begin."""

    #: The attempts.
    tasks: tuple[TaskDispatch, ...]


class TaskUnderWay(OfGraph, frozen=True):
    """An attempt takes so long that people may want to see it."""

    #: The token whose task it is.
    token: int
    #: The attempt.
    attempt: int


class JobActivated(OfGraph, frozen=True):
    """A worker outside has taken an attempt of a task."""

    #: The token whose task it is.
    token: int
    #: The attempt.
    attempt: int
    #: Who has it.
    worker: str
    #: Until when it is theirs, Unix milliseconds.
    until_ms: int
    #: When the attempt has taken too long, Unix milliseconds; null for never.
    ends_at_ms: int | None = None


class JobExtended(OfGraph, frozen=True):
    """A worker has an attempt for longer."""

    #: The token.
    token: int
    #: The attempt.
    attempt: int
    #: Who has it.
    worker: str
    #: Until when it is theirs, Unix milliseconds.
    until_ms: int


class LeaseExpired(OfGraph, frozen=True):
    """A worker was not heard of in time: the next attempt is there for anybody to take."""

    #: The token.
    token: int
    #: The attempt that is over.
    attempt: int
    #: What is said of it.
    failure: Failure


class TokenCompleted(OfGraph, frozen=True):
    """A task, or the workflow that a token waited for, has its result."""

    #: The token.
    token: int
    #: The attempt that succeeded.
    attempt: int
    #: The result, JSON text.
    result: Json


class TokenFailed(OfGraph, frozen=True):
    """An attempt of a task failed, or the workflow that a token waited for did."""

    #: The token.
    token: int
    #: The attempt that failed.
    attempt: int
    #: What it failed with.
    failure: Failure
    #: When it is tried again, Unix milliseconds; null if its run fails with it.
    retry_at_ms: int | None = None
    #: Whether time ended it.
    timed_out: bool = False
    #: What it gave, JSON text, if its run cannot go on with that; null for an attempt that failed.
    result: Json | None = None


class ContextChanged(OfGraph, frozen=True):
    """Values of the context that the whole run shares were set."""

    #: The values, in this order.
    changes: tuple[ContextChange, ...]


class BranchChanged(OfGraph, frozen=True):
    """A branch has another output; it is its own until branches meet."""

    #: The fork.
    fork: str
    #: The branch.
    branch: int
    #: The fields of its output that changed, an object as JSON text.
    output: Json


class TokenArrived(OfGraph, frozen=True):
    """A token waits where branches of its fork meet: at its node."""

    #: The token.
    token: int
    #: When those that have arrived wait no longer, Unix milliseconds; null for ever.
    until_ms: int | None = None


class BranchMerge(Part, frozen=True):
    """What becomes of the outputs of branches that meet."""

    #: The transition that their tokens came by.
    transition: str
    #: What is taken of each output, such as `_branch.output.n`.
    source: str
    #: Where the merged value goes, from its section on.
    target: str
    #: How they are put together.
    strategy: str


class FanInActivated(OfGraph, frozen=True):
    """Branches have met: the tokens that had arrived have ended, their outputs are merged.

    The merged values follow from the outputs: together these may be more than a record can hold.
    """

    #: The fork.
    fork: str
    #: The node.
    node: str
    #: The tokens.
    tokens: tuple[int, ...]
    #: The merges of the transitions that they came by.
    merges: tuple[BranchMerge, ...] = ()


class TokensCancelled(OfGraph, frozen=True):
    """Tokens that are no longer wanted."""

    #: The tokens.
    tokens: tuple[int, ...]
    #: Why.
    reason: str
    #: Whether their run has failed with them, and a retry takes them up again.
    kept: bool = False


class TokensTimedOut(OfGraph, frozen=True):
    """Tokens have waited too long for their siblings, and their run fails."""

    #: The tokens.
    tokens: tuple[int, ...]


class ForkEnded(OfGraph, frozen=True):
    """No token of a fork is left, nor of those within it."""

    #: The fork.
    fork: str


class SubworkflowStarted(OfGraph, frozen=True):
    """A token waits for the workflow that it has started."""

    #: The token.
    token: int
    #: The instance.
    child: Child
    #: When it has taken too long, Unix milliseconds; null for never.
    until_ms: int | None = None


GraphEvent: TypeAlias = (
    GraphStarted
    | ForkOpened
    | TokensCreated
    | TasksDispatched
    | TaskUnderWay
    | JobActivated
    | JobExtended
    | LeaseExpired
    | TokenCompleted
    | TokenFailed
    | ContextChanged
    | BranchChanged
    | TokenArrived
    | FanInActivated
    | TokensCancelled
    | TokensTimedOut
    | ForkEnded
    | SubworkflowStarted
)
