"""Events of a graph's run: its tokens, results of tasks, and joins of branches.

A record contains many tokens: tokens of one fork that differ only by their position are one event,
so that a fan-out of thousands takes as much of the log as one of two.
"""

from typing import TypeAlias

from headwater.schemas.history.values import Child, Failure, Json, Part, Tagged


class OfGraph(Tagged, frozen=True):
    """Base of the events that only a graph's run has."""


class TimesTaken(Part, frozen=True):
    """How often tokens took a transition."""

    #: The transition.
    ref: str
    #: How often.
    times: int


class TaskDispatch(Part, frozen=True):
    """An attempt of a task that starts."""

    #: The token of the task.
    token: int
    #: The attempt; the first is 1.
    attempt: int
    #: Input of the task, JSON text; null for the same input as before.
    input: Json | None = None
    #: Idempotency token of its job, if external workers execute it; null if a code host does.
    job: str | None = None


class ContextChange(Part, frozen=True):
    """A value that was set in the context."""

    #: Path of the value, with its section: `state.a.b` or `output.c`.
    path: str
    #: The value, JSON text.
    value: Json


class GraphStarted(OfGraph, frozen=True):
    """The run of a graph starts. It stays on this definition."""

    #: The definition, JSON text.
    document: Json
    #: How long the run may take, milliseconds; null for any time.
    timeout_ms: int | None = None


class ForkOpened(OfGraph, frozen=True):
    """A token has split into branches, which a join may merge."""

    #: The fork within its run.
    fork: str
    #: The name of the sibling group of its tokens.
    group: str | None
    #: Number of its branches.
    total: int
    #: The token that was split.
    origin: int


class TokensCreated(OfGraph, frozen=True):
    """Tokens were created at a node: one, or those of consecutive branches."""

    #: Number of the first token within its run; the others follow.
    first: int
    #: Number of tokens.
    count: int
    #: The node.
    node: str
    #: Their parent token; null for the first of a run.
    parent: int | None
    #: The transition by which they arrived; null for the first of a run.
    transition: str | None
    #: Their path; of several tokens it is the part before the number of the branch.
    path: str
    #: The fork of their branches; null outside of forks.
    fork: str | None
    #: Their sibling group.
    group: str | None
    #: Branch of the first token; the others follow.
    branch: int
    #: Number of branches of the fork.
    total: int
    #: Transitions taken since the parent, after a join; empty if it was `transition` alone.
    taken: tuple[TimesTaken, ...]
    #: The name of a branch's item in expressions.
    item_name: str | None = None
    #: The items of these branches, a list as JSON text.
    items: Json | None = None
    #: The task of the node.
    task: str | None = None
    #: The workflow that the node starts, if it has no task.
    subworkflow: str | None = None
    #: Whether external workers execute the task.
    external: bool = False
    #: The error of the node before, if an error transition led here.
    failure: Failure | None = None
    #: Of a token that continues from a join: branches of the fork that failed.
    failed: int | None = None


class TasksDispatched(OfGraph, frozen=True):
    """Attempts of tasks start."""

    #: The attempts.
    tasks: tuple[TaskDispatch, ...]


class TaskUnderWay(OfGraph, frozen=True):
    """An attempt takes long enough that it should be visible."""

    #: The token of the task.
    token: int
    #: The attempt.
    attempt: int


class JobActivated(OfGraph, frozen=True):
    """An external worker has leased an attempt of a task."""

    #: The token of the task.
    token: int
    #: The attempt.
    attempt: int
    #: The worker.
    worker: str
    #: End of the lease, Unix milliseconds.
    until_ms: int
    #: When the attempt times out, Unix milliseconds; null for never.
    ends_at_ms: int | None = None


class JobExtended(OfGraph, frozen=True):
    """The lease of an attempt was extended."""

    #: The token.
    token: int
    #: The attempt.
    attempt: int
    #: The worker.
    worker: str
    #: End of the lease, Unix milliseconds.
    until_ms: int


class LeaseExpired(OfGraph, frozen=True):
    """A lease expired: the next attempt is available to any worker."""

    #: The token.
    token: int
    #: The attempt that has ended.
    attempt: int
    #: The error that is recorded for it.
    failure: Failure


class WaitStarted(OfGraph, frozen=True):
    """A token waits for a time, or for an event."""

    #: The token.
    token: int
    #: End of the wait, Unix milliseconds.
    until_ms: int
    #: Type of the event; null if only the time ends the wait.
    event_type: str | None = None


class TokenCompleted(OfGraph, frozen=True):
    """The node of a token has its result: of a task, a workflow, an event, or the end of a wait."""

    #: The token.
    token: int
    #: The attempt that succeeded.
    attempt: int
    #: The result, JSON text.
    result: Json
    #: The event that it consumed.
    consumed: str | None = None


class TokenFailed(OfGraph, frozen=True):
    """An attempt of a task failed, or the workflow that a token waited for did."""

    #: The token.
    token: int
    #: The attempt that failed.
    attempt: int
    #: The error.
    failure: Failure
    #: When it is retried, Unix milliseconds; null if it has failed for good.
    retry_at_ms: int | None = None
    #: Whether it timed out.
    timed_out: bool = False
    #: Its result, JSON text, if its run cannot continue with it; null if the attempt failed.
    result: Json | None = None
    #: Whether the run continues without the token, which has ended.
    handled: bool = False
    #: The event that it consumed, if it has ended.
    consumed: str | None = None


class RoutingFailed(OfGraph, frozen=True):
    """The run fails because it cannot be decided what follows a token that has completed.

    A retry of the run decides it again.
    """

    #: The token.
    token: int


class OutcomeHeld(OfGraph, frozen=True):
    """A node succeeded or failed while its run was paused; it takes effect after the pause."""

    #: The token.
    token: int
    #: When that was, Unix milliseconds.
    at_ms: int
    #: The result, JSON text, if it has one.
    result: Json | None = None
    #: The error, if it failed.
    failure: Failure | None = None
    #: When a failed attempt is retried, Unix milliseconds; null if it is not.
    retry_at_ms: int | None = None
    #: Whether it timed out.
    timed_out: bool = False
    #: The event that its wait ended with.
    event_id: str | None = None


class ContextChanged(OfGraph, frozen=True):
    """Values of the run's shared context were set."""

    #: The values, in this order.
    changes: tuple[ContextChange, ...]


class BranchChanged(OfGraph, frozen=True):
    """The output of a branch changed; it is visible only in the branch until the join."""

    #: The fork.
    fork: str
    #: The branch.
    branch: int
    #: The changed fields of its output, an object as JSON text.
    output: Json


class TokenArrived(OfGraph, frozen=True):
    """A token waits at a join of its fork, or at a node for tokens by its other transitions."""

    #: The token.
    token: int
    #: End of the wait, Unix milliseconds; null for no limit.
    until_ms: int | None = None
    #: How often it took its transition, at a node that joins its transitions; null at other joins.
    times: int | None = None


class TransitionsJoined(OfGraph, frozen=True):
    """Tokens that waited at a node, one by each of its transitions, have ended."""

    #: The tokens; one that continues follows the last.
    tokens: tuple[int, ...]


class BranchMerge(Part, frozen=True):
    """How outputs of joined branches are merged."""

    #: The transition by which their tokens arrived.
    transition: str
    #: The merged value of every output, such as `_branch.output.n`.
    source: str
    #: Path of the merged value, with its section.
    target: str
    #: How the values are merged.
    strategy: str


class FanInActivated(OfGraph, frozen=True):
    """Branches were joined, and their fork is over: tokens that waited have ended.

    The merged values are computed from the outputs: together they may not fit into a record.
    """

    #: The fork.
    fork: str
    #: The node.
    node: str
    #: The tokens that waited there.
    tokens: tuple[int, ...]
    #: The merges of the transitions by which they arrived.
    merges: tuple[BranchMerge, ...] = ()
    #: The tokens that waited at other joins of the fork.
    elsewhere: tuple[int, ...] = ()


class BranchFailed(OfGraph, frozen=True):
    """A branch has ended with an error, and a join of its fork tolerates that."""

    #: The fork.
    fork: str
    #: The branch.
    branch: int
    #: The error.
    failure: Failure


class BranchOutputSet(OfGraph, frozen=True):
    """An operator has replaced the output of a branch of an errored run."""

    #: The fork.
    fork: str
    #: The branch.
    branch: int
    #: The output, an object as JSON text.
    output: Json


class TokensCancelled(OfGraph, frozen=True):
    """Tokens were canceled."""

    #: The tokens.
    tokens: tuple[int, ...]
    #: The reason.
    reason: str
    #: Whether their run has failed with them, so that a retry continues them.
    kept: bool = False


class WaitRestarted(OfGraph, frozen=True):
    """Tokens that wait at a join have their full time again, because their run is retried."""

    #: The fork.
    fork: str
    #: The node.
    node: str
    #: The tokens.
    tokens: tuple[int, ...]
    #: End of the wait, Unix milliseconds.
    until_ms: int


class TokensTimedOut(OfGraph, frozen=True):
    """Tokens timed out while they waited for their siblings, and their run fails."""

    #: The tokens.
    tokens: tuple[int, ...]


class ForkEnded(OfGraph, frozen=True):
    """No token of a fork, or of forks within it, is left."""

    #: The fork.
    fork: str


class SubworkflowStarted(OfGraph, frozen=True):
    """A token waits for the workflow that it has started."""

    #: The token.
    token: int
    #: The instance.
    child: Child
    #: When it times out, Unix milliseconds; null for never.
    until_ms: int | None = None


class NodeMoved(Part, frozen=True):
    """A node whose tokens are at a node of another definition now."""

    #: The node.
    node: str
    #: The node of the new definition.
    to: str
    #: The live tokens that moved.
    tokens: tuple[int, ...]
    #: The task of the new node.
    task: str | None = None
    #: The workflow that the new node starts, if it has no task.
    subworkflow: str | None = None
    #: Whether external workers execute the task.
    external: bool = False


class GraphMigrated(OfGraph, frozen=True):
    """The run continues on another definition, and stays on it."""

    #: The definition, JSON text.
    document: Json
    #: Its digest.
    digest: str
    #: Its version; null if it has none.
    version: int | None
    #: The nodes whose tokens moved, or that the run knows by another name now.
    nodes: tuple[NodeMoved, ...] = ()


GraphEvent: TypeAlias = (
    GraphStarted
    | ForkOpened
    | TokensCreated
    | TasksDispatched
    | TaskUnderWay
    | JobActivated
    | JobExtended
    | LeaseExpired
    | WaitStarted
    | TokenCompleted
    | TokenFailed
    | RoutingFailed
    | OutcomeHeld
    | ContextChanged
    | BranchChanged
    | TokenArrived
    | TransitionsJoined
    | FanInActivated
    | BranchFailed
    | BranchOutputSet
    | TokensCancelled
    | WaitRestarted
    | TokensTimedOut
    | ForkEnded
    | SubworkflowStarted
    | GraphMigrated
)
