"""What is answered of workflows: instances, and what the history of a run consists of.

One description for everybody: the projection makes answers of rows, the gateway sends them, the
client reads them, and the test harness makes them of its log. Names are snake_case in Python and
camelCase in JSON. A field with a default is left out of the JSON where it has that default, and
fields that a reader does not know are passed over.

Values of authors are any JSON. The projection and the gateway hold them as `msgspec.Raw`, the text
that was written, because to parse it would alter numbers and spaces. The client and the harness
have them parsed.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from headwater.schemas.statuses import ENDED, EntryKind, EntryStatus, RunStatus


def means(description: str) -> msgspec.Meta:
    """What a field means, for the description of the API."""
    return msgspec.Meta(description=description)


#: As many as it likes is infinity, which JSON has not: there it is null.
_Attempts: TypeAlias = Annotated[
    int | float | None,
    msgspec.Meta(
        description="null for any number.",
        extra_json_schema={"extra": {"one_of": None, "type": ["integer", "null"]}},
    ),
]


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what is answered."""


class SlotsListed(Answer, frozen=True, kw_only=True):
    """The slots of one limit: of a key, or of all runs of a workflow."""

    key: Annotated[Any, means("The key's value; none for a limit without a key.")] = None
    held: Annotated[int, means("How many runs have a slot.")]
    waiting: Annotated[int, means("How many wait for one.")]
    waiting_since: Annotated[datetime | None, means("Since when the first waits.")] = None


class Concurrency(Answer, frozen=True, kw_only=True):
    """How many runs of a workflow may be under way at once, and how many are, or wait."""

    limit: int
    key: Annotated[str | None, means("The expression that gives the key.")] = None
    held: Annotated[int, means("How many runs have a slot, of all keys together.")] = 0
    waiting: Annotated[int, means("How many wait for one.")] = 0
    slots: Annotated[
        list[SlotsListed], means("Those for which most wait: 20 at most, the longest queue first.")
    ] = []


class WorkflowListed(Answer, frozen=True, kw_only=True):
    """A workflow."""

    name: str
    params_schema: Annotated[
        Any, means("The JSON Schema of its params; none where it declares no type for them.")
    ] = None
    concurrency: Annotated[
        Concurrency | None, means("Its limit; none where any number of runs may be under way.")
    ] = None


class WorkflowList(Answer, frozen=True, kw_only=True):
    """The workflows of authors: in code that a worker has or had, and graphs."""

    workflows: list[WorkflowListed]


class Failure(Answer, frozen=True, kw_only=True):
    """An error of an author's code; `traceback` has the frames of that code, not in listings."""

    name: str
    message: str
    traceback: str | None = None


class InstanceStatus(Answer, frozen=True, kw_only=True):
    """How an instance stands; an output or an error only if it has one."""

    status: RunStatus
    error: Failure | None = None
    output: Annotated[Any, means("What the workflow returned.")] = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen, unless somebody restarts it."""
        return self.status in ENDED


class StatusOfRun(InstanceStatus, frozen=True, kw_only=True):
    """How an instance stands, and in which run."""

    run_number: int


class InstanceListed(Answer, frozen=True, kw_only=True):
    """An instance in a listing."""

    id: str
    details: InstanceStatus
    labels: Annotated[dict[str, str], means("By what it is found.")] = {}


class InstancesCreated(Answer, frozen=True, kw_only=True):
    """Instances that were created; those that existed are left out."""

    instances: list[InstanceListed]


class Parent(Answer, frozen=True, kw_only=True):
    """The step of another instance that started this one."""

    workflow_name: str
    instance_id: str
    run_number: int
    step_key: str


class CurrentStep(Answer, frozen=True, kw_only=True):
    """What a run stands at."""

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
    """The slot that a run waits for before it begins."""

    key: Annotated[Any, means("The key's value; none for a limit without a key.")] = None
    limit: Annotated[int | None, means("How many slots there are.")] = None
    before: Annotated[int, means("How many runs wait that came before it.")]
    since: Annotated[datetime, means("Since when it waits.")]


class TokensAt(Answer, frozen=True, kw_only=True):
    """Tokens that a graph's run stands at: those of a node with one status."""

    node_ref: str
    status: str
    tokens: Annotated[int, means("How many.")]
    next_retry_at: Annotated[datetime | None, means("When the first is tried again.")]
    wake_at: Annotated[datetime | None, means("When the first has waited too long.")]


class InstanceFound(InstanceListed, frozen=True, kw_only=True):
    """An instance on a page of them, and what it stands at."""

    workflow_name: str
    created_at: datetime
    updated_at: datetime
    deployment_id: Annotated[
        str | None, means("The deployment that its run began on; none if it follows the code.")
    ] = None
    current_step: CurrentStep | None = None
    current_tokens: Annotated[list[TokensAt], means("Of a graph.")] = []
    awaited_slot: Annotated[
        SlotAwaited | None, means("Of a run that has not begun, because of a limit.")
    ] = None


class InstancePage(Answer, frozen=True, kw_only=True):
    """Instances, the newest first; the next page begins at `cursor`."""

    instances: list[InstanceFound]
    has_next_page: bool
    cursor: str | None = None


class InstanceMeta(Answer, frozen=True, kw_only=True):
    """What there is to know of an instance beside how it stands."""

    workflow_name: str
    run_number: int
    params: Annotated[Any, means("What the run was started with.")]
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    deployment_id: Annotated[
        str | None, means("The deployment that its run began on; none if it follows the code.")
    ] = None
    retention_until: Annotated[
        datetime | None, means("From then on a prune removes it; never, without.")
    ] = None
    current_step: CurrentStep | None = None
    current_tokens: Annotated[list[TokensAt], means("Of a graph.")] = []
    awaited_slot: Annotated[
        SlotAwaited | None, means("Of a run that has not begun, because of a limit.")
    ] = None
    parent: Parent | None = None


class Instance(InstanceListed, frozen=True, kw_only=True):
    """An instance, whole."""

    meta: InstanceMeta


class Managed(Answer, frozen=True, kw_only=True):
    """What was asked for is so now, and how the instance stands; with the number of a new run."""

    ok: bool
    status: InstanceStatus
    run_number: int | None = None


class BulkChanged(Answer, frozen=True, kw_only=True):
    """An instance to which something was done, or with a dry run would be, and how it stands."""

    id: str
    status: RunStatus
    code: Annotated[str | None, means("Why it was refused, if it was.")] = None
    detail: str | None = None


class BulkPage(Answer, frozen=True, kw_only=True):
    """Instances that were changed, the newest first; the next page begins at `cursor`."""

    instances: list[BulkChanged]
    has_next_page: bool
    cursor: str | None = None


class CommandAccepted(Answer, frozen=True, kw_only=True):
    """A command that nobody has decided yet."""

    workflow_name: str
    id: Annotated[str, means("Of the instance.")]
    command_id: str


class CommandsAccepted(Answer, frozen=True, kw_only=True):
    """Commands that are kept until a worker comes; whether they are refused shows then."""

    accepted: list[CommandAccepted]
    detail: str


class EventSent(Answer, frozen=True, kw_only=True):
    """The instance has the event; how it stands."""

    status: InstanceStatus


class Step(CurrentStep, frozen=True, kw_only=True):
    """An entry of a run's history; its id is its key, unique in the run.

    Iterations of a loop before `trimmed_before` are forgotten, with all that was in them.
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
    rollback_failed_at: Annotated[datetime | None, means("When its rollback handler was given up.")]


class Event(Answer, frozen=True, kw_only=True):
    """An event that a run has received."""

    id: str
    workflow_name: str
    instance_id: str
    run_number: int
    type: str
    payload: Annotated[Any, means("What it says.")]
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
    data: Annotated[Any, means("What goes with it.")]
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
    input: Annotated[Any, means("What its task was given.")]
    result: Annotated[Any, means("What its task gave.")]
    error: Failure | None
    next_retry_at: datetime | None
    wake_at: Annotated[datetime | None, means("When its wait ends at the latest; it stays.")]
    reason: Annotated[str | None, means("Why it was cancelled.")]
    child_workflow_name: str | None
    child_instance_id: str | None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    worker: Annotated[str | None, means("The worker outside that has its job.")] = None
    lease_until: Annotated[datetime | None, means("Until when the worker has it.")] = None


class HistoryPage(Answer, frozen=True, kw_only=True):
    """A part of a run's history: steps of code or tokens of a graph; logs only if asked for."""

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
    """What happened in a run, whole.

    Shape:  tokens are those of a graph.
    """

    run_number: int
    steps: list[Step]
    events: list[Event]
    logs: list[LogLine]
    tokens: list[Token] = []


class WorkerTicked(Answer, frozen=True, kw_only=True):
    """What a tick did in one worker, as that tells the gateway."""

    processed: int
    steps: int


class Ticked(Answer, frozen=True, kw_only=True):
    """What a tick did."""

    processed: int


class Job(Answer, frozen=True, kw_only=True):
    """A job that a worker has until its lease ends."""

    key: Annotated[str, means("Names this attempt: by it the job is ended, or extended.")]
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
    """The jobs that a worker has got."""

    jobs: list[Job]


class JobListed(Answer, frozen=True, kw_only=True):
    """A job that has not ended, as an operator sees it."""

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
    created_at: Annotated[datetime, means("When a token came to its node.")]
    updated_at: Annotated[datetime, means("When it was last given, extended or failed.")]
    worker: Annotated[str | None, means("Who has it.")] = None
    lease_until: Annotated[datetime | None, means("Until when, unless it is extended.")] = None
    next_retry_at: Annotated[datetime | None, means("When the next attempt is due.")] = None


class JobPage(Answer, frozen=True, kw_only=True):
    """A page of the jobs that have not ended; the cursor goes on behind it."""

    jobs: list[JobListed]
    has_next_page: bool
    cursor: str | None = None


class JobEnded(Answer, frozen=True, kw_only=True):
    """What a worker said of the end of a job was taken, now or before."""

    ok: bool


class JobExtended(Answer, frozen=True, kw_only=True):
    """A worker has a job for longer."""

    lease_until: datetime


#: The messages of a live tail, by the names of their events.
STREAMED: Final[dict[str, type[Answer]]] = {
    "status": StatusOfRun,
    "step": Step,
    "token": Token,
    "event": Event,
    "log": LogLine,
    "end": StatusOfRun,
}
