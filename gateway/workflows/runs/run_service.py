"""What is done with runs below `/v1`: created once under a key, shown, cancelled."""

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

import msgspec

from headwater.gateway.http.ports import DeploymentLog
from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.bodies import generic, text
from headwater.gateway.workflows.command_service import CommandResult, CommandService
from headwater.gateway.workflows.runs.bodies import NewRun
from headwater.gateway.workflows.runs.deployment_choice import artifact_for
from headwater.gateway.workflows.runs.idempotent_requests import (
    CreateRun,
    IdempotencyKeyStore,
    IdempotentRequest,
    RunResult,
)
from headwater.gateway.workflows.runs.idempotent_requests import Once as Requests
from headwater.processors.idempotency import Key, canonical_hash
from headwater.projections.workflows.runs import FoundRun, Runs, state_of
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import INSTANCE_CREATED_BEFORE, INSTANCE_EXISTS
from headwater.schemas.history import Once, StartRun
from headwater.schemas.run_answers import RunCreated
from headwater.schemas.statuses import RunState
from headwater.streams.authoring.steering import CANCEL

#: Called with the id of a run before anything is done to it, for the audit log.
Touches: TypeAlias = Callable[[str], None]


class RunPorts(NamedTuple):
    """What runs need of the world."""

    rows: Runs
    keys: IdempotencyKeyStore
    deployments: DeploymentLog
    project_id: str


class RunService:
    """Creates, finds and cancels runs.

    Errors: Problem from every method.
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
        self._requests = Requests(ports.keys)

    def fresh_id(self) -> str:
        """The id of a run that is to be."""
        return f"run_{self._new_id()}"

    async def create_once(self, new: NewRun, key: str, touches: Touches) -> RunResult:
        """Create a run under a key; what says the same under it is the same run."""
        request_hash = canonical_hash([new.workflow_name, generic(new.input), new.deployment_id])
        return await self.once("runs.create", key, new, self.fresh_id(), touches, request_hash)

    async def once(
        self,
        endpoint: str,
        key: str,
        new: NewRun,
        run_id: str,
        touches: Touches,
        request_hash: str = "",
    ) -> RunResult:
        """Create a run under a key of an endpoint.

        Args:
            endpoint: What the key belongs to, besides its caller.
            key: The caller's key.
            new: The run.
            run_id: Its id, if the key is new.
            touches: Called with the id of the run before anything is done to it.
            request_hash: Hash of what the key stands for; without one the key decides, and the
                workflow, which is half of a run's name.
        """
        request_hash = request_hash or canonical_hash([new.workflow_name])
        asked = IdempotentRequest(
            key=Key(self._ports.project_id, key, endpoint),
            request_hash=request_hash,
            run_id=run_id,
            prepare=partial(self.prepare, new, touches, Once(key, request_hash)),
        )
        return await self._requests.do(asked)

    async def prepare(self, new: NewRun, touches: Touches, under: Once | None = None) -> CreateRun:
        """Return what creates a run, once under a key, if there is a deployment for it."""
        deployments = await self._ports.deployments.catch_up()
        deployment = artifact_for(deployments, new.workflow_name, new.deployment_id)
        command = StartRun(text(new.input), deployment=deployment, once=under)
        return partial(self._create, new.workflow_name, command, touches)

    async def _create(
        self, workflow: str, command: StartRun, touches: Touches, run_id: str
    ) -> RunResult:
        touches(run_id)
        result = await self._command_service.send_command(workflow, run_id, command)
        (reply,) = result.replies
        run = RunCreated(
            run_id=run_id,
            workflow_name=workflow,
            status=state_of(reply.status),
            deployment_id=None if command.deployment is None else command.deployment.name,
        )
        stands = await self._standing(run) if result.applied else run
        body = msgspec.json.encode(stands).decode()
        # What was made can be read by now, or is not yet to be read.
        status = HTTPStatus.CREATED if result.applied else HTTPStatus.ACCEPTED
        return RunResult(run_id, status, body, reply.code == INSTANCE_CREATED_BEFORE, result)

    async def _standing(self, run: RunCreated) -> RunCreated:
        """A run that was created, as it stands."""
        try:
            found = await self._ports.rows.find(run.run_id, run.workflow_name)
        except StoreUnavailable:
            return run
        if not found:
            return run
        stands = found[0].run
        return msgspec.structs.replace(
            run, status=stands.status, deployment_id=stands.deployment_id
        )

    async def find(self, run_id: str, workflow: str | None = None) -> FoundRun:
        """The run of an id."""
        return self.only(await self.find_all(run_id, workflow), run_id)

    async def find_all(self, run_id: str, workflow: str | None = None) -> list[FoundRun]:
        """The runs of an id: of one workflow, or of all."""
        return await self._ports.rows.find(run_id, workflow)

    @staticmethod
    def only(found: Sequence[FoundRun], run_id: str) -> FoundRun:
        """Return the only run of those found, all of which the caller may know of."""
        if not found:
            raise Problem(
                "run_not_found", f"expected a run, found none with the id {run_id[:100]!r}"
            )
        if len(found) > 1:
            names = " and ".join(each.run.workflow_name for each in found)
            raise Problem(
                "ambiguous_run",
                f"expected {run_id[:100]!r} in one workflow, found it in {names}; name one as "
                "workflowName",
                field="workflowName",
            )
        return found[0]

    async def refuse_taken(self, run_id: str, workflow: str) -> None:
        """Refuses the id of a run that is of another workflow: it could not be found by it."""
        for each in await self._ports.rows.find(run_id):
            if each.run.workflow_name != workflow:
                raise Problem(
                    INSTANCE_EXISTS,
                    f"expected no run {run_id[:100]!r}, found one of {each.run.workflow_name}",
                    field="runId",
                )

    async def cancel(self, found: FoundRun, reason: str) -> CommandResult | None:
        """Cancels a run; None if it was cancelled before, which it stays."""
        run = found.run
        if run.status is RunState.CANCELLED:
            return None
        return await self._command_service.send_command(
            run.workflow_name, run.run_id, CANCEL.because(reason)
        )
