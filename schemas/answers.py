"""Answers about workflows: instances, and the history of a run.

One description for all: the projection creates answers from rows, the gateway sends them, the
client decodes them, and the test harness creates them from its log. Names are snake_case in Python
and camelCase in JSON. A field that has its default is omitted from the JSON, and unknown fields are
ignored.

Values of authors are any JSON. The projection and the gateway keep them as `msgspec.Raw`, the
original text, because parsing would change numbers and spaces. The client and the harness parse
them.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from headwater.schemas.statuses import ENDED, EntryKind, EntryStatus, RunStatus


def means(description: str) -> msgspec.Meta:
    """Return the description of a field for the API description."""
    return msgspec.Meta(description=description)


#: Description of a run's deployment.
_DEPLOYMENT: Final = (
    "The deployment that its run is on, or `app` for the code of --app; none if it follows the "
    "newest code."
)
_NOT_REPLAYED: Final = "Of a move: why nothing was replayed before; none if it was."
#: Any number of attempts is infinity, which JSON does not have: there it is null.
_Attempts: TypeAlias = Annotated[
    int | float | None,
    msgspec.Meta(
        description="null for any number.",
        extra_json_schema={"extra": {"one_of": None, "type": ["integer", "null"]}},
    ),
]


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all answers."""


class SlotsListed(Answer, frozen=True, kw_only=True):
    """The slots of one limit: of a key, or of all runs of a workflow."""

    key: Annotated[Any, means("The key's value; none for a limit without a key.")] = None
    held: Annotated[int, means("How many runs have a slot.")]
    waiting: Annotated[int, means("How many wait for one.")]
    waiting_since: Annotated[datetime | None, means("Since when the first one waits.")] = None


class Concurrency(Answer, frozen=True, kw_only=True):
    """Limit of concurrent runs of a workflow, and how many are active or wait."""

    limit: int
    key: Annotated[str | None, means("The expression that returns the key.")] = None
    held: Annotated[int, means("How many runs have a slot, of all keys together.")] = 0
    waiting: Annotated[int, means("How many wait for one.")] = 0
    slots: Annotated[list[SlotsListed], means("Those with the longest queues, 20 at most.")] = []


class WorkflowListed(Answer, frozen=True, kw_only=True):
    """A workflow."""

    name: str
    params_schema: Annotated[
        Any, means("The JSON Schema of its params; none where it declares no type for them.")
    ] = None
    concurrency: Annotated[
        Concurrency | None, means("Its limit; none if any number of runs may be active.")
    ] = None


class WorkflowList(Answer, frozen=True, kw_only=True):
    """The workflows of authors: in code that a worker has or had, and graphs."""

    workflows: list[WorkflowListed]


class Failure(Answer, frozen=True, kw_only=True):
    """An error of an author's code; `traceback` has the frames of that code, except in listings."""

    name: str
    message: str
    traceback: str | None = None


class InstanceStatus(Answer, frozen=True, kw_only=True):
    """Status of an instance; an output or an error only if it has one."""

    status: RunStatus
    error: Failure | None = None
    output: Annotated[Any, means("What the workflow returned.")] = None

    @property
    def ended(self) -> bool:
        """Whether it has ended and only a restart or retry can change it."""
        return self.status in ENDED


class StatusOfRun(InstanceStatus, frozen=True, kw_only=True):
    """Status of an instance, and its run."""

    run_number: int


class InstanceListed(Answer, frozen=True, kw_only=True):
    """An instance in a listing."""

    id: str
    details: InstanceStatus
    labels: Annotated[dict[str, str], means("Labels by which it can be queried.")] = {}


class InstancesCreated(Answer, frozen=True, kw_only=True):
    """Instances that were created; those that existed are omitted."""

    instances: list[InstanceListed]


class Parent(Answer, frozen=True, kw_only=True):
    """The step of another instance that started this one."""

    workflow_name: str
    instance_id: str
    run_number: int
    step_key: str


class CurrentStep(Answer, frozen=True, kw_only=True):
    """The current step of a run."""

    step_key: str
    name: str
    type: EntryKind
    status: EntryStatus
    attempts: int
    max_attempts: _Attempts
    timeout_ms: int | None
    next_retry_at: datetime | None
    wake_at: datetime | None
    wait_event_type: str | list[str] | None
    last_attempt_at: datetime | None
    error: Failure | None = None


class SlotAwaited(Answer, frozen=True, kw_only=True):
    """The slot that a run waits for before it starts."""

    key: Annotated[Any, means("The key's value; none for a limit without a key.")] = None
    limit: Annotated[int | None, means("How many slots there are.")] = None
    before: Annotated[int, means("Number of runs that wait before it.")]
    since: Annotated[datetime, means("Since when it waits.")]


class TokensAt(Answer, frozen=True, kw_only=True):
    """Current tokens of a graph's run: those of a node with the same status."""

    node_ref: str
    status: str
    tokens: Annotated[int, means("Number of tokens.")]
    next_retry_at: Annotated[datetime | None, means("When the first is retried.")]
    wake_at: Annotated[datetime | None, means("When the first wait times out.")]


class InstanceFound(InstanceListed, frozen=True, kw_only=True):
    """An instance on a page, and its current step or tokens."""

    workflow_name: str
    created_at: datetime
    updated_at: datetime
    deployment_id: Annotated[str | None, means(_DEPLOYMENT)] = None
    current_step: CurrentStep | None = None
    current_tokens: Annotated[list[TokensAt], means("Of a graph.")] = []
    awaited_slot: Annotated[
        SlotAwaited | None, means("Of a run that has not started, because of a limit.")
    ] = None


class InstancePage(Answer, frozen=True, kw_only=True):
    """Instances, the newest first; the next page begins at `cursor`."""

    instances: list[InstanceFound]
    has_next_page: bool
    cursor: str | None = None


class InstanceMeta(Answer, frozen=True, kw_only=True):
    """Details of an instance besides its status."""

    workflow_name: str
    run_number: int
    params: Annotated[Any, means("What the run was started with.")]
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    deployment_id: Annotated[str | None, means(_DEPLOYMENT)] = None
    retention_until: Annotated[
        datetime | None, means("When a prune may remove it; absent means never.")
    ] = None
    current_step: CurrentStep | None = None
    current_tokens: Annotated[list[TokensAt], means("Of a graph.")] = []
    awaited_slot: Annotated[
        SlotAwaited | None, means("Of a run that has not started, because of a limit.")
    ] = None
    parent: Parent | None = None


class Instance(InstanceListed, frozen=True, kw_only=True):
    """An instance with all details."""

    meta: InstanceMeta


class Managed(Answer, frozen=True, kw_only=True):
    """The requested change was made, with the new status; and the new run, if any."""

    ok: bool
    status: InstanceStatus
    run_number: int | None = None
    deployment_id: Annotated[str | None, means("Of the new or moved run.")] = None
    not_replayed: Annotated[str | None, means(_NOT_REPLAYED)] = None


class BulkChanged(Answer, frozen=True, kw_only=True):
    """An instance that was changed, or would be in a dry run, and its status."""

    id: str
    status: RunStatus
    code: Annotated[str | None, means("Why it was rejected, if it was.")] = None
    detail: str | None = None


class BulkPage(Answer, frozen=True, kw_only=True):
    """Instances that were changed, the newest first; the next page begins at `cursor`."""

    instances: list[BulkChanged]
    has_next_page: bool
    cursor: str | None = None
    not_replayed: Annotated[str | None, means(_NOT_REPLAYED)] = None


class CommandAccepted(Answer, frozen=True, kw_only=True):
    """A command that is not decided yet."""

    workflow_name: str
    id: Annotated[str, means("Of the instance.")]
    command_id: str


class CommandsAccepted(Answer, frozen=True, kw_only=True):
    """Commands that are stored until a worker decides them; they may still be rejected."""

    accepted: list[CommandAccepted]
    detail: str


class EventSent(Answer, frozen=True, kw_only=True):
    """The instance has received the event; its status."""

    status: InstanceStatus


class Step(CurrentStep, frozen=True, kw_only=True):
    """An entry of a run's history; its id is its key, unique in the run.

    Iterations of a loop before `trimmed_before` are dropped, with all their entries.
    """

    id: str
    workflow_name: str
    instance_id: str
    run_number: int
    result: Annotated[Any, means("What it returned.")]
    error_name: str | None
    error_message: str | None
    child_workflow_name: str | None
    child_instance_id: str | None
    trimmed_before: int | None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    rolled_back_at: datetime | None
    rollback_failed_at: Annotated[datetime | None, means("When its rollback handler failed.")]


class Event(Answer, frozen=True, kw_only=True):
    """An event that a run has received."""

    id: str
    workflow_name: str
    instance_id: str
    run_number: int
    type: str
    payload: Annotated[Any, means("The payload.")]
    created_at: datetime
    delivered_at: datetime | None
    consumed_by_step_key: str | None


class LogLine(Answer, frozen=True, kw_only=True):
    """A line that a run has written; the category `system` is the engine's."""

    id: str
    workflow_name: str
    instance_id: str
    run_number: int
    step_key: str | None
    attempt: int | None
    level: str
    category: str
    message: str
    data: Annotated[Any, means("Structured data of the line.")]
    is_replay: bool
    created_at: datetime


class Token(Answer, frozen=True, kw_only=True):
    """A token of a graph's run."""

    id: str
    workflow_name: str
    instance_id: str
    run_number: int
    node_ref: str
    task: str | None
    subworkflow: str | None
    status: str
    path_id: str
    parent_token_id: str | None
    sibling_group: str | None
    branch_index: int
    branch_total: int
    iteration_counts: dict[str, int]
    attempts: int
    input: Annotated[Any, means("Input of its task.")]
    result: Annotated[Any, means("Result of its task.")]
    error: Failure | None
    next_retry_at: datetime | None
    wake_at: Annotated[datetime | None, means("Deadline of its wait; it stays after the wait.")]
    event_type: Annotated[
        str | None, means("Type of the event that it waits for; it stays after the wait.")
    ] = None
    reason: Annotated[str | None, means("Why it was canceled.")]
    child_workflow_name: str | None
    child_instance_id: str | None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    worker: Annotated[str | None, means("The external worker that has its job.")] = None
    lease_until: Annotated[datetime | None, means("End of the worker's lease.")] = None


#: Names of the workflow events of graphs.
GRAPH_EVENTS: Final = (
    *("workflow.started", "workflow.completed", "workflow.failed"),
    *("task.dispatched", "task.completed", "task.failed"),
    *("token.created", "token.completed", "token.waiting"),
    *("fan_out.started", "fan_in.completed", "branches.merged"),
    *("subworkflow.dispatched", "subworkflow.completed"),
)


class GraphEvent(Answer, frozen=True, kw_only=True):
    """A workflow event of a graph's run: what happened, by name."""

    name: str
    workflow_name: str
    instance_id: str
    run_number: int
    sequence: Annotated[int, means("Number of the event of the history that it comes from.")]
    position: Annotated[int, means("Its position among the events of that number.")]
    node_ref: str | None
    token_id: str | None
    payload: Annotated[dict[str, Any], means("Details.")]
    created_at: datetime


class HistoryPage(Answer, frozen=True, kw_only=True):
    """A page of a run's history: steps of code or tokens of a graph; logs only on request."""

    run_number: int
    steps: list[Step]
    tokens: list[Token]
    events: list[Event]
    steps_has_next_page: bool
    tokens_has_next_page: bool
    events_has_next_page: bool
    steps_cursor: str | None = None
    tokens_cursor: str | None = None
    events_cursor: str | None = None
    logs: list[LogLine] | None = None
    logs_cursor: str | None = None
    logs_has_next_page: bool | None = None


class History(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The complete history of a run; tokens are those of a graph."""

    run_number: int
    steps: list[Step]
    events: list[Event]
    logs: list[LogLine]
    tokens: list[Token] = []
    #: The workflow events of a graph: a list for every name in `GRAPH_EVENTS`.
    events_by_name: dict[str, list[GraphEvent]] = {}


class WorkerTicked(Answer, frozen=True, kw_only=True):
    """Result of a tick in one worker, as it reports to the gateway."""

    processed: int
    steps: int


class Ticked(Answer, frozen=True, kw_only=True):
    """Result of a tick."""

    processed: int


class Job(Answer, frozen=True, kw_only=True):
    """A job that a worker has until its lease expires."""

    key: Annotated[str, means("Identifies this attempt, to end or extend the job.")]
    type: Annotated[str, means("The task of its node.")]
    workflow: str
    instance_id: str
    run_number: int
    token_id: str
    node_ref: str
    attempt: Annotated[int, means("The first is 1.")]
    input: Any
    lease_until: datetime
    idempotency_token: Annotated[str, means("The same for all attempts.")]


class JobList(Answer, frozen=True, kw_only=True):
    """The jobs that were given to a worker."""

    jobs: list[Job]


class JobListed(Answer, frozen=True, kw_only=True):
    """A job that has not ended, for operators."""

    type: Annotated[str, means("The task of its node.")]
    status: Annotated[
        Literal["waiting", "taken", "retrying"],
        means("waiting: for a worker; retrying: for its next attempt, which is not due yet."),
    ]
    workflow: str
    instance_id: str
    run_number: int
    token_id: str
    node_ref: str
    attempt: Annotated[int, means("The latest; the first is 1.")]
    created_at: Annotated[datetime, means("When a token arrived at its node.")]
    updated_at: Annotated[datetime, means("When it was last leased, extended or failed.")]
    worker: Annotated[str | None, means("The worker that has it.")] = None
    lease_until: Annotated[datetime | None, means("End of the lease, unless extended.")] = None
    next_retry_at: Annotated[datetime | None, means("When the next attempt is due.")] = None


class JobPage(Answer, frozen=True, kw_only=True):
    """A page of the jobs that have not ended; the next page begins at `cursor`."""

    jobs: list[JobListed]
    has_next_page: bool
    cursor: str | None = None


class JobEnded(Answer, frozen=True, kw_only=True):
    """The end of a job that a worker reported was accepted, now or before."""

    ok: bool


class JobExtended(Answer, frozen=True, kw_only=True):
    """The lease of a job was extended."""

    lease_until: datetime


#: Event name of the last message of a live tail.
END: Final = "end"
#: Messages of a live tail, by event name.
STREAMED: Final[dict[str, type[Answer]]] = {
    "status": StatusOfRun,
    "step": Step,
    "token": Token,
    "event": Event,
    "log": LogLine,
    END: StatusOfRun,
    **dict.fromkeys(GRAPH_EVENTS, GraphEvent),
}
