"""Create runs on a deployment under an idempotency key, find and cancel them."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.bodies import generic, text
from headwater.gateway.api.workflows.command_service import CommandResult, CommandService
from headwater.gateway.api.workflows.runs.bodies import NewRun
from headwater.processors.canonical_json import canonical_hash
from headwater.processors.deployments import Deployments, artifact_of, removal_message
from headwater.processors.idempotency_keys import (
    Answered,
    Conflict,
    IdempotencyKey,
    Pending,
    key_result,
    reservation,
)
from headwater.processors.runs.lifecycle import CANCEL
from headwater.projections.gateway_state import IdempotencyKeys
from headwater.projections.workflows.runs import FoundRun, Runs, state_of
from headwater.schemas.deployments import DeploymentCreated
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import (
    DEPLOYMENT_NOT_FOUND,
    DEPLOYMENT_REMOVED,
    IDEMPOTENCY_CONFLICT,
    INSTANCE_CREATED_BEFORE,
    INSTANCE_EXISTS,
    NO_ACTIVE_DEPLOYMENT,
    WORKFLOW_NOT_FOUND,
)
from headwater.schemas.history import Artifact, Once, StartRun
from headwater.schemas.statuses import RunState
from headwater.schemas.v1_answers import RunCreated
from headwater.streams.workflows.deployment_log import DeploymentLog

_NONE_ACTIVE = "No active deployment. Activate a deployment before triggering runs."


def active_of(deployments: Deployments) -> DeploymentCreated:
    """Return the active deployment.

    Raises:
        Problem: No deployment is active.
    """
    if deployments.active is None:
        raise Problem(NO_ACTIVE_DEPLOYMENT, _NONE_ACTIVE)
    return deployments.active


def deployment_of(deployments: Deployments, name: str) -> DeploymentCreated:
    """Return the deployment with an id.

    Raises:
        Problem: No deployment has the id, or it was removed.
    """
    deployment = deployments.by_id.get(name)
    if deployments.is_removed(name):
        raise Problem(DEPLOYMENT_REMOVED, removal_message(name), field="deploymentId")
    if deployment is None:
        raise Problem(
            DEPLOYMENT_NOT_FOUND,
            f"expected a deployment, found none with the id {name[:64]!r}",
            field="deploymentId",
        )
    return deployment


def artifact_for(deployments: Deployments, workflow: str, name: str | None) -> Artifact | None:
    """Return the artifact of the named deployment; None for the active one.

    The worker resolves the active deployment when it starts the run.

    Raises:
        Problem: The deployment does not exist, is being removed, or does not have the workflow.
    """
    if name is None:
        active_of(deployments)
        return None
    deployment = deployment_of(deployments, name)
    if name in deployments.retired:
        raise Problem(DEPLOYMENT_REMOVED, removal_message(name), field="deploymentId")
    if deployments.workflow(name, workflow) is None:
        # Without the names of other workflows, which hooks may hide from the caller.
        raise Problem(
            WORKFLOW_NOT_FOUND,
            f"expected a workflow of {deployment.id}, found {workflow[:64]!r}; GET "
            f"/v1/deployments/{deployment.id} lists them",
            field="workflowName",
        )
    return artifact_of(deployment)


# -- idempotent requests

_LOG: Final = logging.getLogger("headwater.gateway")


class RunResult(NamedTuple):
    """Result of a request that creates a run.

    Attributes:
        run_id: The run.
        status: Status of the response.
        body: Body of the response.
        deduped: Whether an earlier request created the run.
        command: Result of the command that created the run just now.
    """

    run_id: str
    status: int
    body: str
    deduped: bool
    command: CommandResult | None = None


#: Creates the run with an id; calling it again with the same id has no effect.
CreateRun: TypeAlias = Callable[[str], Awaitable[RunResult]]


class IdempotentRequest(NamedTuple):
    """A request with an idempotency key.

    Attributes:
        key: The key.
        request_hash: Hash of the parts of the request that must not differ under the key.
        run_id: Id of the run that the first request creates.
        prepare: Returns what creates the run. It may refuse the request before the key is reserved.
    """

    key: IdempotencyKey
    request_hash: str
    run_id: str
    prepare: Callable[[], Awaitable[CreateRun]]


class IdempotentRequests:
    """Executes idempotent requests.

    A request reserves its key, creates the run, and stores the response, which later requests with
    the same key get again.
    """

    def __init__(self, keys: IdempotencyKeys) -> None:
        self._keys = keys

    async def execute(self, request: IdempotentRequest) -> RunResult:
        """Execute a request, or return the response of an earlier one with the same key.

        Concurrent requests with the same key create one run.

        Raises:
            Problem: The request was refused, or the key was used for a different request.
            StoreUnavailable: Postgres is unavailable; no run was created.
        """
        create = await request.prepare()
        new = reservation(request.run_id, request.request_hash)
        match key_result(await self._keys.reserve(request.key, new), request.request_hash):
            case Pending(run_id):
                return await self._create(request, create, run_id)
            case Answered(run_id, status, body):
                return RunResult(run_id, status, body, deduped=True)
            case Conflict():
                raise Problem(
                    IDEMPOTENCY_CONFLICT,
                    "expected the request that was sent before with this idempotency key, found a "
                    "different one; use a new key for every request that is to be executed once",
                    field="Idempotency-Key",
                )

    async def _create(
        self, request: IdempotentRequest, create: CreateRun, run_id: str
    ) -> RunResult:
        """Create a run, and return the first response that is stored for it."""
        try:
            created = await create(run_id)
        except Problem:
            await self._free(request.key, run_id)
            raise
        try:
            stored = await self._keys.complete(request.key, run_id, created.status, created.body)
        except StoreUnavailable:
            # The run exists. A repeated request finds it by the reservation.
            return created
        if stored is None:
            return created
        return created._replace(status=stored.status_code, body=stored.body)

    async def _free(self, key: IdempotencyKey, run_id: str) -> None:
        """Free the key of a refused request, as far as possible; the refusal is the response."""
        try:
            await self._keys.refuse(key, run_id)
        except StoreUnavailable as error:
            _LOG.warning("could not free the idempotency key of a refused request: %s", error)


# -- runs

#: Checks a request and returns what creates its run; the argument deduplicates the command.
PrepareCreation: TypeAlias = Callable[[Once | None], Awaitable[CreateRun]]
#: Called with the id and the workflow of a run before a command for it is sent; used by the audit
#: log. If it raises, the command is not sent.
OnRunId: TypeAlias = Callable[[str, str], Awaitable[None]]


class RunPorts(NamedTuple):
    """External dependencies of the run service."""

    rows: Runs
    keys: IdempotencyKeys
    deployments: DeploymentLog
    project_id: str


class RunService:
    """Creates, finds and cancels runs.

    Raises:
        Problem: Every method raises it when a request is refused.
    """

    def __init__(
        self,
        ports: RunPorts,
        command_service: CommandService,
        *,
        new_id: Callable[[], str],
    ) -> None:
        self._ports = ports
        self._command_service = command_service
        self._new_id = new_id
        self._idempotent_requests = IdempotentRequests(ports.keys)

    def new_run_id(self) -> str:
        """Return an id for a new run."""
        return f"run_{self._new_id()}"

    async def create_by_request(self, new: NewRun, key: str, on_run_id: OnRunId) -> RunResult:
        """Create a run under a key; an equal request with the same key gets the same run."""
        request_hash = canonical_hash([new.workflow_name, generic(new.input), new.deployment_id])
        prepare = partial(self.prepare_creation, new, on_run_id)
        return await self.create_once("runs.create", key, request_hash, self.new_run_id(), prepare)

    async def create_once(
        self, endpoint: str, key: str, request_hash: str, run_id: str, prepare: PrepareCreation
    ) -> RunResult:
        """Create a run under a key of an endpoint.

        Args:
            endpoint: Endpoint that the key is scoped to, besides its caller.
            key: The caller's key.
            request_hash: Hash of the parts of the request that must not differ under the key.
            run_id: The id of the run, if the key is new.
            prepare: Checks the request; returns what creates the run.
        """
        request = IdempotentRequest(
            key=IdempotencyKey(self._ports.project_id, key, endpoint),
            request_hash=request_hash,
            run_id=run_id,
            prepare=partial(prepare, Once(key, request_hash)),
        )
        return await self._idempotent_requests.execute(request)

    async def prepare_creation(
        self, new: NewRun, on_run_id: OnRunId, once: Once | None = None
    ) -> CreateRun:
        """Check the deployment of a new run; return what creates the run.

        Args:
            new: The run.
            on_run_id: Called with the id and the workflow of the run before its command is sent.
            once: Deduplicates the command in the owner of the instance.
        """
        deployment = await self.artifact_for(new.workflow_name, new.deployment_id)
        command = StartRun(text(new.input), deployment=deployment, once=once)
        return self.creation(new.workflow_name, command, on_run_id)

    def creation(self, workflow: str, command: StartRun, on_run_id: OnRunId) -> CreateRun:
        """Return what creates a run of a workflow."""
        return partial(self._create, workflow, command, on_run_id)

    async def artifact_for(self, workflow: str, deployment_id: str | None) -> Artifact | None:
        """Return the artifact of a deployment for a new run, as the function of this name."""
        return artifact_for(await self._ports.deployments.catch_up(), workflow, deployment_id)

    async def _create(
        self, workflow: str, command: StartRun, on_run_id: OnRunId, run_id: str
    ) -> RunResult:
        await on_run_id(run_id, workflow)
        result = await self._command_service.send_command(workflow, run_id, command)
        (reply,) = result.replies
        run = RunCreated(
            run_id=run_id,
            workflow_name=workflow,
            status=state_of(reply.status),
            deployment_id=reply.deployment,
        )
        current = await self._with_current_status(run) if result.applied else run
        body = msgspec.json.encode(current).decode()
        # 201 if the run can be read now, 202 if not yet.
        status = HTTPStatus.CREATED if result.applied else HTTPStatus.ACCEPTED
        return RunResult(run_id, status, body, reply.code == INSTANCE_CREATED_BEFORE, result)

    async def _with_current_status(self, run: RunCreated) -> RunCreated:
        """Return a created run with its status and deployment from Postgres."""
        try:
            rows = await self._ports.rows.find(run.run_id, run.workflow_name)
        except StoreUnavailable:
            return run
        if not rows:
            return run
        current = rows[0].run
        return msgspec.structs.replace(
            run, status=current.status, deployment_id=current.deployment_id
        )

    async def find_run(self, run_id: str, workflow: str | None = None) -> FoundRun:
        """Return the run with an id."""
        return self.single_run(await self.find_runs(run_id, workflow), run_id)

    async def find_runs(self, run_id: str, workflow: str | None = None) -> list[FoundRun]:
        """Return the runs with an id, of one workflow or of all."""
        return await self._ports.rows.find(run_id, workflow)

    @staticmethod
    def single_run(rows: Sequence[FoundRun], run_id: str) -> FoundRun:
        """Return the only run among rows that the caller may read.

        Raises:
            Problem: There is no row, or more than one.
        """
        if not rows:
            raise Problem(
                "run_not_found", f"expected a run, found none with the id {run_id[:100]!r}"
            )
        if len(rows) > 1:
            names = " and ".join(row.run.workflow_name for row in rows)
            raise Problem(
                "ambiguous_run",
                f"expected {run_id[:100]!r} in one workflow, found it in {names}; name one as "
                "workflowName",
                field="workflowName",
            )
        return rows[0]

    async def refuse_taken_id(self, run_id: str, workflow: str) -> None:
        """Refuse a run id that another workflow uses: the run could not be found by its id."""
        for row in await self._ports.rows.find(run_id):
            if row.run.workflow_name != workflow:
                raise Problem(
                    INSTANCE_EXISTS,
                    f"expected no run {run_id[:100]!r}, found one of {row.run.workflow_name}",
                    field="runId",
                )

    async def cancel(self, row: FoundRun, reason: str) -> CommandResult | None:
        """Cancel a run; return None if it is already canceled."""
        run = row.run
        if run.status is RunState.CANCELLED:
            return None
        return await self._command_service.send_command(
            run.workflow_name, run.run_id, CANCEL.command_with({"reason": reason})
        )
