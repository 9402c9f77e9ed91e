"""Answers about graphs: their versions and definitions, and a run under inspection.

As in `answers`, these are one description for the gateway, the client and the harness. Decisions
and traces are plain objects, as planners return them to tools: a decision has its `type`, such as
`CREATE_TOKEN`, and keys in snake case.
"""

from datetime import datetime
from typing import Annotated, Any, TypeAlias

import msgspec

from headwater.schemas.answers import Answer, Failure, means
from headwater.schemas.statuses import RunStatus


class GraphVersion(Answer, frozen=True, kw_only=True):
    """A version of a graph."""

    name: str
    version: Annotated[int, means("Gapless from 1.")]
    digest: Annotated[str, means("SHA-256 of the definition: the same for the same content.")]
    deployed_at: datetime
    app: Annotated[
        str | None,
        means("The app that declares it; absent if it was deployed over HTTP."),
    ] = None


class DefinitionWarning(Answer, frozen=True, kw_only=True):
    """A part of a definition that will not do what its author expects."""

    code: str
    path: str
    message: str


class GraphDeployment(GraphVersion, frozen=True, kw_only=True):
    """A version of a graph that was deployed, and warnings about it."""

    # A factory other than `list`, so that an empty list is not omitted from the JSON.
    warnings: list[DefinitionWarning] = msgspec.field(default_factory=lambda: [])  # noqa: PIE807


class GraphDefinition(GraphVersion, frozen=True, kw_only=True):
    """A version of a graph with its definition."""

    definition: Annotated[Any, means("The definition, without its defaults.")]


class GraphList(Answer, frozen=True, kw_only=True):
    """The newest version of every graph."""

    graphs: list[GraphVersion]


class GraphVersions(Answer, frozen=True, kw_only=True):
    """The versions of a graph, the newest first."""

    versions: list[GraphVersion]


# -- inspection

#: A decision or a trace of a planner.
Plain: TypeAlias = dict[str, Any]


class AsOf(Answer, frozen=True, kw_only=True):
    """A run as of its event `sequence`, which occurred at `at`."""

    workflow_name: str
    instance_id: str
    run_number: int
    status: RunStatus
    sequence: Annotated[int, means("Number of the last event within the run; the first is 0.")]
    at: datetime
    definition_digest: Annotated[
        str, means("Digest of its definition; `/api/graphs` has the version of this digest.")
    ]


class WaitsFor(Answer, frozen=True, kw_only=True):
    """What a token waits for, and until when, if the wait has a limit.

    Attributes:
        what: dispatch (of its task), task (its result), worker (that takes a job), retry, siblings,
            subworkflow, time, event, or resume (of its paused run: it has its result).
        worker: The worker that has the job until then.
        event_type: Type of the event that it waits for.
    """

    what: str
    until: datetime | None = None
    worker: str | None = None
    child_workflow_name: str | None = None
    child_instance_id: str | None = None
    event_type: str | None = None


class LiveToken(Answer, frozen=True, kw_only=True):
    """A token that has not ended."""

    id: str
    node_ref: str
    status: str
    path_id: str
    parent_token_id: str | None
    transition_ref: Annotated[str | None, means("The transition by which it arrived.")]
    fork: str | None
    sibling_group: str | None
    branch_index: int
    branch_total: int
    iteration_counts: dict[str, int]
    attempts: Annotated[int, means("Attempts of its task that have failed.")]
    waits_for: WaitsFor


class TokensPage(AsOf, frozen=True, kw_only=True):
    """The tokens that have not ended, by their numbers; `total` counts all of them.

    `cursor` is the id of the last one on this page if there are more.
    """

    tokens: list[LiveToken]
    total: int
    cursor: str | None = None


class Fired(Answer, frozen=True, kw_only=True):
    """A transition that would fire, and how many tokens it would create."""

    transition_ref: str
    to_node_ref: str
    tokens: int


class Simulated(AsOf, frozen=True, kw_only=True):
    """The decisions that would follow. Nothing was changed.

    Attributes:
        token: The token in question.
        would_be: The status that the run would have.
        error: Its error if it would fail.
        decisions: The first decisions; `decisions_left_out` is the number of others.
        trace: The first traces; `trace_left_out` is the number of others.
    """

    token: LiveToken
    decisions: list[Plain]
    trace: list[Plain]
    would_be: RunStatus
    error: Failure | None = None
    decisions_left_out: int = 0
    trace_left_out: int = 0


class SimulatedRouting(Simulated, frozen=True, kw_only=True):
    """The decisions if a token completed; `fires` are the transitions that it would take."""

    fires: list[Fired]


class BranchCounts(Answer, frozen=True, kw_only=True):
    """The branches of a fork as counted at a join, including the simulated arrival.

    Attributes:
        completed: Branches that have arrived.
        terminal: Branches that have ended, arrived or not.
    """

    total: int
    completed: int
    failed: int
    terminal: int


class SimulatedSynchronization(Simulated, frozen=True, kw_only=True):
    """The decisions if a token arrived at the join of its branch.

    Attributes:
        decision: Type of the planner's decision: `MARK_WAITING`, `ACTIVATE_FAN_IN`,
            `FAIL_WORKFLOW`, `CANCEL_TOKENS` for a late token, `MARK_FOR_DISPATCH` for one outside
            the group, which has no counts.
    """

    transition_ref: str
    strategy: str
    decision: str
    counts: BranchCounts | None = None


class ArrivedBranch(Answer, frozen=True, kw_only=True):
    """A branch that waits at a join."""

    branch_index: int
    token_id: str
    arrived_at: datetime


class MissingBranch(Answer, frozen=True, kw_only=True):
    """A branch that has not arrived, and why.

    Attributes:
        why: running, worker (its job is not taken), dispatch, retry, siblings (it waits at another
            join), subworkflow, or elsewhere: it has ended and will not arrive.
        token_id: The token that is furthest behind in it, or its last one.
    """

    branch_index: int
    why: str
    says: str
    token_id: str | None = None
    node_ref: str | None = None
    status: str | None = None
    attempts: int = 0
    until: datetime | None = None
    error: Failure | None = None
    child_workflow_name: str | None = None
    child_instance_id: str | None = None
    more_tokens: int = 0


class JoinExplained(Answer, frozen=True, kw_only=True):
    """A join at which tokens wait.

    Attributes:
        needed: Number of branches that have to arrive; null for `all`.
        missing_by: Number of missing branches by `why`.
        arrived: The first arrived branches; `arrived_count` counts all.
        missing: The first missing branches; `missing_count` counts all.
    """

    node_ref: str
    transition_ref: str
    sibling_group: str
    fork: str
    strategy: str
    total: int
    needed: int | None
    arrived_count: int
    missing_count: int
    missing_by: dict[str, int]
    arrived: list[ArrivedBranch]
    missing: list[MissingBranch]
    due_at: datetime | None
    on_timeout: Annotated[str | None, means("fail or proceed_with_available; null: no timeout.")]
    says: list[str]


class Explanation(AsOf, frozen=True, kw_only=True):
    """Why a run is in its current state: its waiting joins, and all of it in sentences."""

    says: list[str]
    joins: list[JoinExplained]
    waiting_for: Annotated[dict[str, int], means("What the tokens that have not ended wait for.")]


class TracedDecision(Answer, frozen=True, kw_only=True):
    """One decision, repeated from the state before it.

    Attributes:
        sequence: Sequence of its first event.
        last_sequence: Sequence of its last event.
        same: Whether repeating it resulted in these events. If not, another release decided it, and
            only its events are known.
    """

    sequence: int
    last_sequence: int
    at: datetime
    events: list[str]
    decisions: list[Plain]
    trace: list[Plain]
    same: bool
    decisions_left_out: int = 0
    trace_left_out: int = 0


class TracePage(AsOf, frozen=True, kw_only=True):
    """Decisions of a run; the next ones are those from `next_from` on, if there are more."""

    decided: list[TracedDecision]
    next_from: int | None = None


# -- migration


class MovedToken(Answer, frozen=True, kw_only=True):
    """A live token, and its node in another definition."""

    id: str
    node_ref: str
    to_node_ref: Annotated[str | None, means("Its node there; absent if there is none.")] = None
    status: str
    problem: Annotated[str | None, means("Why it cannot be there; absent if it can.")] = None


class MigrationPlan(AsOf, frozen=True, kw_only=True):
    """Where the tokens of a run would be in another definition.

    Attributes:
        version: Version of the other definition; null if it has none.
        digest: Its digest.
        possible: Whether the run can continue on it.
        tokens: The first live tokens, those with a problem first; `tokens_left_out` counts others.
        problems: Why it cannot, besides problems of tokens.
    """

    version: int | None
    digest: str
    possible: bool
    tokens: list[MovedToken]
    problems: list[str]
    tokens_left_out: int = 0
