"""Moves runs to other code, after a check that their histories fit it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows import examples
from headwater.gateway.api.workflows.authorization import Policy
from headwater.gateway.api.workflows.bodies import Move
from headwater.gateway.api.workflows.command_service import CheckedMove, CommandService
from headwater.gateway.api.workflows.openapi import write_spec
from headwater.gateway.api.workflows.parameters import PathName, Prefer
from headwater.gateway.api.workflows.query_service import QueryService, response_of
from headwater.gateway.api.workflows.replay_gate import ReplayGate
from headwater.gateway.api.workflows.runs.run_service import active_of, artifact_for
from headwater.processors.runs.lifecycle import MOVE
from headwater.schemas import answers
from headwater.schemas.deployments import DeploymentCreated
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import INSTANCE_NOT_FOUND, INSTANCE_TERMINAL, REPLAY_DIVERGED
from headwater.schemas.history import ACTIVE_DEPLOYMENT, APP, MoveRun
from headwater.schemas.replay_answers import NotReplayed, ReplayReport, difference_of
from headwater.schemas.statuses import RunStatus
from headwater.streams.workflows.deployment_log import DeploymentLog

#: Why runs are not replayed before they are moved to the code of `--app`.
_APP_REASON: Final = (
    "the code of --app is with the workers, not with the gateway; `headwater check-replay` replays "
    "exported histories against it"
)


class MoveTarget(NamedTuple):
    """Code to which runs are moved.

    Attributes:
        name: Its name in the histories of runs.
        deployment: The deployment; None for the code of `--app`.
        is_graph: Whether the workflow is a graph there.
    """

    name: str
    deployment: DeploymentCreated | None
    is_graph: bool = False


class Moves:
    """Moves runs to deployments that have their workflow.

    Args:
        deployments: The log of deployments.
        gate: Replays runs against deployments.
        query_service: Reads instances.
        command_service: Sends commands.
    """

    def __init__(
        self,
        deployments: DeploymentLog,
        gate: ReplayGate,
        query_service: QueryService,
        command_service: CommandService,
    ) -> None:
        self._deployments = deployments
        self._gate = gate
        self._query_service = query_service
        self._command_service = command_service

    async def target(self, workflow: str, requested: str) -> MoveTarget:
        """Return the requested code.

        Only workers know which workflows the code of `--app` has.

        Raises:
            Problem: There is no such deployment, or it does not have the workflow.
        """
        deployments = await self._deployments.catch_up()
        name = active_of(deployments).id if requested == ACTIVE_DEPLOYMENT else requested
        if name == APP.name:
            return MoveTarget(name, None)
        artifact_for(deployments, workflow, name)
        deployed = deployments.workflow(name, workflow)
        is_graph = deployed is not None and deployed.document is not None
        return MoveTarget(name, deployments.by_id[name], is_graph)

    async def check(
        self,
        request: AnyRequest,
        target: MoveTarget,
        workflow: str,
        instance_ids: Sequence[str],
        forced: str,
    ) -> tuple[CheckedMove, ReplayReport]:
        """Replay runs against the code to which they are to be moved.

        Args:
            request: The request, for its audit entries.
            target: The code.
            workflow: Workflow of the runs.
            instance_ids: Instances of the runs.
            forced: Why runs are moved even if they do not fit; "" if they are not.

        Returns:
            The move, and the report about the runs.

        Raises:
            StoreUnavailable: Postgres is not available, and the move is not forced.
            BrokerUnavailable: Kafka is not available.
        """
        try:
            report = await self._replayed(target, workflow, instance_ids)
        except StoreUnavailable as error:
            if not forced:
                raise
            report = _not_replayed(workflow, instance_ids, f"runs cannot be read: {error.message}")
        diverged = report.diverged
        names = [f"{workflow}/{run.instance_id}" for run in diverged]
        note(request, forced=forced or None, diverged=names)
        reasons = {run.instance_id: difference_of(run) for run in diverged}
        skipped = [skipped.reason for skipped in report.not_replayed]
        move = CheckedMove(
            command=MoveRun(target.name),
            refused={} if forced else reasons,
            not_replayed=skipped[0] if skipped else None,
        )
        return move, report

    async def _replayed(
        self, target: MoveTarget, workflow: str, instance_ids: Sequence[str]
    ) -> ReplayReport:
        if target.deployment is None:
            return _not_replayed(workflow, instance_ids, _APP_REASON)
        # A run of a graph is only moved to the same definition, which decides the same.
        if target.is_graph or not instance_ids:
            return ReplayReport(runs=[])
        return await self._gate.check_moves(target.deployment, workflow, instance_ids)

    async def move(
        self, request: AnyRequest, workflow: str, instance_id: str, data: Move, prefer: str
    ) -> Response[bytes]:
        """Move a run, or only check whether it can be moved.

        Raises:
            Problem: There is no such run or code, or the run cannot continue there.
        """
        forced = data.forced()
        target = await self.target(workflow, data.deployment)
        applied = self._query_service.applied()
        status = None
        if data.dry_run or (target.deployment is not None and not forced):
            # What is not in Postgres yet could not be replayed.
            row = await self._query_service.find_instance(workflow, instance_id, applied)
            status = row.instance.details
            if status.ended:
                raise _ended(instance_id, status.status)
        move, report = await self.check(request, target, workflow, [instance_id], forced)
        if move.refused:
            raise _refusal(target, f"{workflow}/{instance_id}", move, report)
        if data.dry_run and status is not None:
            managed = answers.Managed(
                ok=True,
                status=status,
                deployment_id=target.name,
                not_replayed=move.not_replayed,
            )
            return response_of(managed, applied)
        await attempt(request)
        return await self._command_service.control_instance(
            workflow, instance_id, move.command, prefer, move.not_replayed
        )


def _not_replayed(workflow: str, instance_ids: Sequence[str], reason: str) -> ReplayReport:
    runs = len(instance_ids)
    skipped = NotReplayed(workflow_name=workflow, runs=runs, reason=reason)
    return ReplayReport(runs=[], not_replayed=[skipped] if runs else [])


def _ended(instance_id: str, status: RunStatus) -> Problem:
    detail = f"expected a live run of {instance_id}, found {status}"
    return Problem(INSTANCE_TERMINAL, detail)


def _refusal(target: MoveTarget, run: str, move: CheckedMove, report: ReplayReport) -> Problem:
    (difference,) = move.refused.values()
    return Problem(
        REPLAY_DIVERGED,
        f"expected {run} to fit {target.name}, found: {difference}; move it to code that does the "
        "same steps, or force the move",
        report=report,
    )


def move_route(moves: Moves) -> HTTPRouteHandler:
    """Return the route that moves a run."""

    @post(
        "/move",
        audit="instances.move",
        audits_attempt=True,
        operation_id="moveInstance",
        summary=MOVE.summary,
        description=f"{MOVE.effect} Before, its history is replayed against the code of the "
        "deployment: a run that does not fit is refused, unless the move is forced.",
        **write_spec(
            Policy.MANAGE,
            answers.Managed,
            examples.MOVED,
            *(INSTANCE_NOT_FOUND, *MOVE.refusals, REPLAY_DIVERGED, "store_unavailable"),
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
        return await moves.move(request, workflow, instance_id, data, prefer)

    return move_instance
