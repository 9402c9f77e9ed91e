"""What is answered of a graph's run that is looked into: its tokens, what would follow, and why.

As `answers`, these are one description for the gateway, the client and the harness. Decisions and
traces are plain objects, as the planners give them to tools: a decision has its `type`, such as
`CREATE_TOKEN`, and keys in snake case.
"""

from datetime import datetime
from typing import Annotated, Any, TypeAlias

from headwater.schemas.answers import Answer, Failure, means
from headwater.schemas.statuses import RunStatus

#: A decision or a trace of a planner.
Plain: TypeAlias = dict[str, Any]


class AsOf(Answer, frozen=True, kw_only=True):
    """A run as it was once its event `sequence` had happened, which was at `at`."""

    workflow_name: str
    instance_id: str
    run_number: int
    status: RunStatus
    sequence: Annotated[int, means("Number of the last event within the run; the first is 0.")]
    at: datetime
    definition_digest: Annotated[
        str, means("The definition that it is on; `/api/graphs` has the version of this digest.")
    ]


class WaitsFor(Answer, frozen=True, kw_only=True):
    """What a token waits for, and until when if there is an end to it.

    Shape:  what is dispatch (of its task), task (its result), worker (who takes a job), retry,
            siblings or subworkflow; `worker` has the job until then.
    """

    what: str
    until: datetime | None = None
    worker: str | None = None
    child_workflow_name: str | None = None
    child_instance_id: str | None = None


class LiveToken(Answer, frozen=True, kw_only=True):
    """A token that has not ended."""

    id: str
    node_ref: str
    status: str
    path_id: str
    parent_token_id: str | None
    transition_ref: Annotated[str | None, means("It came by this one.")]
    fork: str | None
    sibling_group: str | None
    branch_index: int
    branch_total: int
    iteration_counts: dict[str, int]
    attempts: Annotated[int, means("Attempts of its task that have failed.")]
    waits_for: WaitsFor


class TokensPage(AsOf, frozen=True, kw_only=True):
    """The tokens that live, by their numbers; `total` counts all of them.

    `cursor` is the id of the last one here if there are more.
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
    """What would be decided. Nothing was changed.

    Shape:  token is the one it is about; `would_be` is how the run would stand, with its error if
            it would fail. Of very many decisions and traces the first are here, the numbers of the
            others beside them.
    """

    token: LiveToken
    decisions: list[Plain]
    trace: list[Plain]
    would_be: RunStatus
    error: Failure | None = None
    decisions_left_out: int = 0
    trace_left_out: int = 0


class SimulatedRouting(Simulated, frozen=True, kw_only=True):
    """What would follow if a token completed; `fires` are the transitions that it would take."""

    fires: list[Fired]


class BranchCounts(Answer, frozen=True, kw_only=True):
    """The branches of a fork as a meeting point counts them, the arrival at hand among them.

    Shape:  completed have arrived there; terminal can bring nothing more, arrived or not.
    """

    total: int
    completed: int
    failed: int
    terminal: int


class SimulatedSynchronization(Simulated, frozen=True, kw_only=True):
    """What would follow if a token came to where its branch meets others.

    Shape:  decision is the type of the planner's own: `MARK_WAITING`, `ACTIVATE_FAN_IN`,
            `FAIL_WORKFLOW`, `CANCEL_TOKENS` for one too late, `MARK_FOR_DISPATCH` for one outside
            of the group, which has no counts.
    """

    transition_ref: str
    strategy: str
    decision: str
    counts: BranchCounts | None = None


class ArrivedBranch(Answer, frozen=True, kw_only=True):
    """A branch that waits where branches meet."""

    branch_index: int
    token_id: str
    arrived_at: datetime


class MissingBranch(Answer, frozen=True, kw_only=True):
    """A branch that has not arrived, and why.

    Shape:  why is running, worker (nobody has taken its job), dispatch, retry, siblings (it waits
            at a join itself), subworkflow, or elsewhere: it has ended, and never comes. The token
            is the one that is furthest behind in it, or the last one that it had.
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
    """A meeting point where somebody waits.

    Shape:  needed is how many branches have to arrive, null for `all`; missing_by says of how many
            branches which `why` is true. Of very many branches the first are listed; the counts
            are of all.
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
    """Why a run stands where it stands: its joins that wait, and all of it in sentences."""

    says: list[str]
    joins: list[JoinExplained]
    waiting_for: Annotated[dict[str, int], means("Of all tokens that live: what they wait for.")]


class TracedDecision(Answer, frozen=True, kw_only=True):
    """What was decided at once, made again from the state before it.

    Shape:  sequence and last_sequence are of its first and last event; `same` says that making it
            again gave these very events. Where it did not, another release decided it, and only
            what its events say is told.
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
    """Decisions of a run; the next are those from `next_from` on, if there are more."""

    decided: list[TracedDecision]
    next_from: int | None = None
