"""Answers of `/v1`: runs, their messages and events, and deployments."""

from datetime import datetime
from typing import Annotated, Any, Literal

from headwater.schemas.answers import Answer, Failure, means
from headwater.schemas.replay_answers import ReplayReport
from headwater.schemas.statuses import RunState


class WorkflowDeployed(Answer, frozen=True, kw_only=True):
    """A workflow of a deployment."""

    name: str
    kind: Annotated[Literal["code", "graph"], means("Whether it is code or a graph.")] = "code"
    definition_digest: Annotated[
        str | None, means("SHA-256 of the definition of a graph, in its canonical form.")
    ] = None
    versioning: Annotated[
        Literal["pinned", "latest"],
        means("Whether its runs stay on the deployment that they started on."),
    ] = "pinned"
    params_schema: Annotated[
        Any, means("The JSON Schema of its params; none where it declares no type for them.")
    ] = None


class ScheduleDeployed(Answer, frozen=True, kw_only=True):
    """A schedule of a deployment."""

    name: str
    workflow: Annotated[str, means("The workflow that it starts.")]
    cron: str
    timezone: str


class EnvironmentOnMachine(Answer, frozen=True, kw_only=True):
    """The state of an environment on a machine with workers."""

    machine: Annotated[str, means("Host name of the machine.")]
    state: Literal["installed", "failed"]
    reason: Annotated[
        str | None, means("Why it cannot be installed, with the last lines of the installer.")
    ] = None
    reported_at: datetime


class EnvironmentDeployed(Answer, frozen=True, kw_only=True):
    """The environment of a deployment with a requirements.txt."""

    digest: Annotated[str, means("SHA-256 of its requirements with their hashes.")]
    size: Annotated[int, means("Bytes of the environment, as the gateway installed it.")]
    packages: Annotated[int, means("Number of its packages.")]
    requirements: Annotated[
        list[str] | None,
        means("Its packages, as name==version; absent in listings and in answers to changes."),
    ] = None
    machines: Annotated[
        list[EnvironmentOnMachine] | None,
        means("Its state on machines whose workers reported it; absent where packages are."),
    ] = None


class DeploymentShare(Answer, frozen=True, kw_only=True):
    """The percentage of new runs that begin on a deployment."""

    deployment_id: str
    percent: int


class Deployment(Answer, frozen=True, kw_only=True):
    """Code that was deployed."""

    id: Annotated[str, means("The same for the same app and artifact.")]
    app: Annotated[str, means("The app in the artifact.")]
    digest: Annotated[str, means("SHA-256 of the artifact.")]
    size: Annotated[int, means("Bytes of the artifact.")]
    workflows: Annotated[list[WorkflowDeployed], means("The workflows that new runs may have.")]
    schedules: Annotated[list[ScheduleDeployed], means("Its schedules, while it is active.")]
    #: Never omitted, because clients need it even if it is false.
    active: Annotated[
        bool,
        means("Whether new runs start on it, except for those in the share of another one."),
    ]
    deployed_at: datetime
    deployed_by: Annotated[str, means("The id of the key that deployed it.")]
    activated_at: Annotated[datetime | None, means("Last activation; absent if never.")] = None
    environment: Annotated[
        EnvironmentDeployed | None, means("Its environment; absent without a requirements.txt.")
    ] = None
    open_runs: Annotated[
        int | None,
        means(
            "Runs on it that have not ended; absent in answers to changes, and while Postgres "
            "cannot be read."
        ),
    ] = None
    percent: Annotated[
        int | None, means("Percentage of the new runs that start on it; absent if none do.")
    ] = None
    status: Annotated[
        Literal["active", "sharing", "removing", "draining", "drained", "inactive"] | None,
        means(
            "Sharing: it has a share of the new runs. Removing: it gets no new runs, and waits for "
            "its runs to end. Draining: it gets no new runs, and runs of it have not ended. "
            "Drained: all of its runs have ended. Inactive: it never had runs. Absent like "
            "`openRuns`, unless it is one of the first three."
        ),
    ] = None
    drained_at: Annotated[
        datetime | None, means("When its last run ended, if it gets no new runs and has none.")
    ] = None
    shares: Annotated[
        list[DeploymentShare] | None,
        means("Of the active deployment, while another one has a share of the new runs."),
    ] = None


class DeploymentActive(Deployment, frozen=True, kw_only=True):
    """The deployment that was activated."""

    replaces: Annotated[str | None, means("The one that was active until now.")] = None
    replay: Annotated[
        ReplayReport | None, means("How runs fit it; absent if it was active already.")
    ] = None


class DeploymentPage(Answer, frozen=True, kw_only=True):
    """Deployments, the newest first; the next page begins at `cursor`."""

    deployments: list[Deployment]
    has_next_page: bool
    cursor: str | None = None


class DeploymentId(Answer, frozen=True, kw_only=True):
    """The id of the active deployment."""

    deployment_id: str


# -- runs


class RunCreated(Answer, frozen=True, kw_only=True):
    """A run that was created."""

    run_id: str
    workflow_name: str
    status: RunState
    deployment_id: Annotated[
        str | None, means("What it runs on: a deployment, or `app`; none if it follows the code.")
    ] = None


class RunListed(RunCreated, frozen=True, kw_only=True):
    """A run in a listing."""

    created_at: datetime
    started_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    error: Failure | None = None


class Run(RunListed, frozen=True, kw_only=True):
    """A run with all details."""

    input: Annotated[Any, means("What it was started with.")]
    output: Annotated[Any, means("What the workflow returned.")] = None


class RunPage(Answer, frozen=True, kw_only=True):
    """Runs, the newest first, without their inputs and outputs."""

    data: list[RunListed]
    cursor: Annotated[str | None, means("Where the next page begins.")]
    has_more: bool


class MessagePublished(Answer, frozen=True, kw_only=True):
    """A message that is in its queue."""

    message_id: Annotated[str, means("Its id; also that of its run, unless a rule names another.")]
    deduped: Annotated[bool, means("Whether it was published before.")]


class QueueListed(Answer, frozen=True, kw_only=True):
    """A queue."""

    name: str
    waiting: Annotated[int, means("Messages that are not delivered yet.")]


class QueueList(Answer, frozen=True, kw_only=True):
    """Queues with messages that are not delivered yet."""

    data: list[QueueListed]


class EventCreated(Answer, frozen=True, kw_only=True):
    """An event of a run that was accepted."""

    run_id: str
    event_type: str
    deduped: Annotated[bool, means("Whether it was accepted before.")]


class HookAccepted(Answer, frozen=True, kw_only=True):
    """The event of a hook that was received, now or by an earlier call."""

    accepted: bool


# -- parts of runs, as the World names them


class WorldStep(Answer, frozen=True, kw_only=True):
    """A step of a run."""

    step_id: Annotated[str, means("Its key.")]
    run_id: str
    step_name: str
    status: Literal["pending", "running", "completed", "failed", "cancelled"]
    attempt: Annotated[int, means("Attempts that have ended.")]
    output: Annotated[Any, means("Its result, with `resolveData=all`.")] = None
    error: Failure | None = None
    created_at: datetime
    started_at: Annotated[datetime | None, means("Begin of the latest attempt.")] = None
    updated_at: datetime
    completed_at: datetime | None = None
    retry_after: datetime | None = None


class WorldHook(Answer, frozen=True, kw_only=True):
    """A wait of a run for an event."""

    hook_id: Annotated[str, means("Its key.")]
    run_id: str
    token: Annotated[str, means("Type of the event; the `correlationId` of `hook_received`.")]
    status: Literal["waiting", "disposed"]
    payload: Annotated[Any, means("What it received, with `resolveData=all`.")] = None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None = None


class WorldWait(Answer, frozen=True, kw_only=True):
    """A sleep of a run."""

    wait_id: Annotated[str, means("Its key.")]
    run_id: str
    status: Literal["waiting", "completed"]
    resume_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None = None


class WorldEvent(Answer, frozen=True, kw_only=True):
    """Something that happened in a run."""

    event_id: Annotated[str, means("Unique within the run.")]
    run_id: str
    event_type: str
    correlation_id: Annotated[
        str | None, means("Id of the step or wait, or type of the received event.")
    ] = None
    event_data: dict[str, Any]
    created_at: datetime


class WorldPage(Answer, frozen=True, kw_only=True):
    """A page of runs or of parts of a run."""

    data: list[Any]
    cursor: Annotated[str | None, means("Where the next page begins.")]
    has_more: bool
