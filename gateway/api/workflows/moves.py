"""Moves runs to other code: a check against the deployments, and the move itself."""

from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from headwater.gateway.api.audit import note
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows import examples
from headwater.gateway.api.workflows.authorization import Policy
from headwater.gateway.api.workflows.bodies import Move
from headwater.gateway.api.workflows.command_service import CommandService
from headwater.gateway.api.workflows.openapi import write_spec
from headwater.gateway.api.workflows.parameters import PathName, Prefer
from headwater.gateway.api.workflows.query_service import QueryService, response_of
from headwater.gateway.api.workflows.runs.run_service import active_of, artifact_for
from headwater.processors.runs.lifecycle import MOVE
from headwater.schemas import answers
from headwater.schemas.failures import INSTANCE_NOT_FOUND, INSTANCE_TERMINAL
from headwater.schemas.history import ACTIVE_DEPLOYMENT, APP
from headwater.streams.workflows.deployment_log import DeploymentLog


class Moves:
    """Moves runs to deployments that have their workflow."""

    def __init__(
        self,
        deployments: DeploymentLog,
        query_service: QueryService,
        command_service: CommandService,
    ) -> None:
        self._deployments = deployments
        self._query_service = query_service
        self._command_service = command_service

    async def check(self, workflow: str, requested: str) -> str:
        """Return the name of the requested code.

        Only workers know which workflows the code of `--app` has.

        Raises:
            Problem: There is no such deployment, or it does not have the workflow.
        """
        deployments = await self._deployments.catch_up()
        name = active_of(deployments).id if requested == ACTIVE_DEPLOYMENT else requested
        if name != APP.name:
            artifact_for(deployments, workflow, name)
        return name

    async def move(
        self, workflow: str, instance_id: str, request: Move, prefer: str
    ) -> Response[bytes]:
        """Move a run, or only check whether it can be moved.

        Raises:
            Problem: There is no such run or code, or the run cannot continue there.
        """
        name = await self.check(workflow, request.deployment)
        if not request.dry_run:
            command = MOVE.command_with({"deployment": name})
            return await self._command_service.control_instance(
                workflow, instance_id, command, prefer
            )
        applied = self._query_service.applied()
        row = await self._query_service.find_instance(workflow, instance_id, applied)
        status = row.instance.details
        if status.ended:
            raise Problem(
                INSTANCE_TERMINAL, f"expected a live run of {instance_id}, found {status.status}"
            )
        return response_of(answers.Managed(ok=True, status=status, deployment_id=name), applied)


def move_route(moves: Moves) -> HTTPRouteHandler:
    """Return the route that moves a run."""

    @post(
        "/move",
        audit="instances.move",
        operation_id="moveInstance",
        summary=MOVE.summary,
        description=MOVE.effect,
        **write_spec(
            Policy.MANAGE,
            answers.Managed,
            examples.MOVED,
            *(INSTANCE_NOT_FOUND, *MOVE.refusals),
        ),
    )
    async def move_instance(
        request: AnyRequest,
        workflow: PathName,
        instance_id: PathName,
        data: JSONBody[Move],
        prefer: Prefer = "",
    ) -> Response[bytes]:
        note(request, deployment=data.deployment, dry_run=data.dry_run)
        return await moves.move(workflow, instance_id, data, prefer)

    return move_instance
