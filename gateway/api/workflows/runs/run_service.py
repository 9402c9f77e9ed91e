"""Creates, finds and cancels runs for the routes under `/v1`."""

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

import msgspec

from headwater.gateway.api.ports import DeploymentLog
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.bodies import generic, text
from headwater.gateway.api.workflows.command_service import CommandResult, CommandService
from headwater.gateway.api.workflows.runs.bodies import NewRun
from headwater.gateway.api.workflows.runs.deployment_choice import artifact_for
from headwater.gateway.api.workflows.runs.idempotent_requests import (
    CreateRun,
    IdempotencyKeyStore,
    IdempotentRequest,
    IdempotentRequests,
    RunResult,
)
from headwater.processors.idempotency import IdempotencyKey, canonical_hash
from headwater.projections.workflows.runs import FoundRun, Runs, state_of
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import INSTANCE_CREATED_BEFORE, INSTANCE_EXISTS
from headwater.schemas.history import Once, StartRun
from headwater.schemas.run_answers import RunCreated
from headwater.schemas.statuses import RunState
from headwater.streams.authoring.lifecycle import CANCEL

#: Called with the id of a run before a command for it is sent; used by the audit log.
OnRunId: TypeAlias = Callable[[str], None]


class RunPorts(NamedTuple):
    """External dependencies of the run service."""

    rows: Runs
    keys: IdempotencyKeyStore
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
        return await self.create_once(
            "runs.create", key, new, self.new_run_id(), on_run_id, request_hash
        )

    async def create_once(
        self,
        endpoint: str,
        key: str,
        new: NewRun,
        run_id: str,
        on_run_id: OnRunId,
        request_hash: str = "",
    ) -> RunResult:
        """Create a run under a key of an endpoint.

        Args:
            endpoint: Endpoint that the key is scoped to, besides its caller.
            key: The caller's key.
            new: The run.
            run_id: Its id, if the key is new.
            on_run_id: Called with the id of the run before its command is sent.
            request_hash: Hash of what the key stands for. Without one, requests with the same key
                are equal if they have the same workflow, which is half of a run's identity.
        """
        request_hash = request_hash or canonical_hash([new.workflow_name])
        request = IdempotentRequest(
            key=IdempotencyKey(self._ports.project_id, key, endpoint),
            request_hash=request_hash,
            run_id=run_id,
            prepare=partial(self.prepare_creation, new, on_run_id, Once(key, request_hash)),
        )
        return await self._idempotent_requests.execute(request)

    async def prepare_creation(
        self, new: NewRun, on_run_id: OnRunId, once: Once | None = None
    ) -> CreateRun:
        """Check the deployment of a new run; return what creates the run.

        Args:
            new: The run.
            on_run_id: Called with the id of the run before its command is sent.
            once: Deduplicates the command in the owner of the instance.
        """
        deployments = await self._ports.deployments.catch_up()
        deployment = artifact_for(deployments, new.workflow_name, new.deployment_id)
        command = StartRun(text(new.input), deployment=deployment, once=once)
        return partial(self._create, new.workflow_name, command, on_run_id)

    async def _create(
        self, workflow: str, command: StartRun, on_run_id: OnRunId, run_id: str
    ) -> RunResult:
        on_run_id(run_id)
        result = await self._command_service.send_command(workflow, run_id, command)
        (reply,) = result.replies
        run = RunCreated(
            run_id=run_id,
            workflow_name=workflow,
            status=state_of(reply.status),
            deployment_id=None if command.deployment is None else command.deployment.name,
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
            run.workflow_name, run.run_id, CANCEL.with_reason(reason)
        )
