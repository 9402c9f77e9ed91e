"""Creates, activates and reads deployments; reads include all writes of any gateway."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Response

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.authentication import admitted_key
from headwater.gateway.api.deployments.artifact_check import ArtifactCheck, check_name
from headwater.gateway.api.deployments.load_check import ActivationCheck
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.runs.run_service import active_of, deployment_of
from headwater.processors.deployments import (
    ALL,
    Activated,
    ActivationRejected,
    Created,
    DeploymentOutcome,
    Deployments,
    Reported,
    Retired,
    deployment_id,
)
from headwater.projections.workflows.queries import DeploymentRuns, Workflows
from headwater.schemas.answers import Answer
from headwater.schemas.codec import encode
from headwater.schemas.deployments import (
    INSTALLED,
    REOPENED,
    REQUESTED,
    DeployedSchedule,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentRetired,
    EnvironmentReported,
)
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import ARTIFACT_INVALID, DEPLOYMENT_NOT_LOADED, REPLAY_DIVERGED
from headwater.schemas.replay_answers import ReplayReport
from headwater.schemas.v1_answers import (
    Deployment,
    DeploymentActive,
    DeploymentId,
    DeploymentPage,
    DeploymentShare,
    EnvironmentDeployed,
    EnvironmentOnMachine,
    ScheduleDeployed,
    WorkflowDeployed,
)
from headwater.streams.workflows.deployment_log import DeploymentLog

#: Most bytes of declarations: every gateway and worker has those of all deployments in memory.
_DECLARED_BYTES_MAX: Final = 1024 * 1024
#: Runs that a refusal names; its report has all.
_NAMED: Final = 3


class DeploymentService:
    """Deploys apps, activates and rolls back deployments, and lists them.

    Args:
        log: The topic of deployments.
        artifact_check: Imports apps before they are deployed.
        activation_check: Checks a deployment before it is activated.
        workflows: Rows of the runs on deployments.
        clock: Returns Unix milliseconds.

    Methods that change something take the request for its audit entries.

    Raises:
        Problem: Every method raises it when a request is refused.
    """

    def __init__(
        self,
        log: DeploymentLog,
        artifact_check: ArtifactCheck,
        activation_check: ActivationCheck,
        workflows: Workflows,
        *,
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._artifact_check = artifact_check
        self._activation_check = activation_check
        self._workflows = workflows
        self._clock = clock

    async def deploy(self, request: AnyRequest, app: str, artifact: bytes) -> Response[bytes]:
        """Deploy an artifact without activating it."""
        check_name(app)
        digest = (await asyncio.to_thread(hashlib.sha256, artifact)).hexdigest()
        name = deployment_id(app, digest)
        note(request, deployment=name, app=app, digest=digest)
        deployments = await self._log.catch_up()
        if name in deployments.by_id and await self._is_open(request, deployments, name):
            return _response(_deployment(await self._log.catch_up(), deployments.by_id[name]))
        await self._artifact_check.remove_unused(deployments.by_id.values())
        checked = await self._artifact_check.check(app, artifact)
        record = DeploymentCreated(
            id=name,
            app=app,
            digest=digest,
            size=len(artifact),
            offset=0,
            by=admitted_key(request.scope) or "",
            at_ms=self._clock(),
            **checked._asdict(),
        )
        declared = len(encode(record))
        if declared > _DECLARED_BYTES_MAX:
            raise Problem(
                ARTIFACT_INVALID,
                f"expected an app that declares at most {_DECLARED_BYTES_MAX} bytes, names, graphs "
                f"and JSON Schemas of params, found {declared}",
            )
        await attempt(request)
        offset = await self._log.upload(name, artifact)
        outcome = await self._log.write(msgspec.structs.replace(record, offset=offset))
        created = _require_outcome(outcome, Created)
        status = HTTPStatus.CREATED if created.new else HTTPStatus.OK
        return _response(_deployment(await self._log.catch_up(), created.deployment), status)

    async def _is_open(self, request: AnyRequest, deployments: Deployments, name: str) -> bool:
        """Return whether an existing deployment may be used, after reopening a closed one."""
        retired = deployments.retired.get(name)
        if retired is None:
            note(request, deduped=True)
            return True
        await attempt(request)
        record = DeploymentRetired(
            id=name,
            stage=REOPENED,
            closing=retired.closing,
            by=admitted_key(request.scope) or "",
            at_ms=self._clock(),
        )
        return not _require_outcome(await self._log.write(record), Retired).removed

    async def activate(
        self, request: AnyRequest, name: str, after: str, percent: int = ALL, forced: str = ""
    ) -> Response[bytes]:
        """Activate a deployment: new runs begin on it, or a percentage of them.

        Args:
            request: The request.
            name: Id of the deployment.
            after: Id of the deployment that must be active before; "" for any.
            percent: Percentage of the new runs; 0 ends the share.
            forced: Why it is activated even if runs do not fit it; "" if it is not.
        """
        deployments = await self._log.catch_up()
        deployment_of(deployments, name)
        note(request, percent=None if percent == ALL else percent)
        record = DeploymentActivated(
            id=name,
            after=after,
            rollback=False,
            by=admitted_key(request.scope) or "",
            at_ms=self._clock(),
            percent=percent,
        )
        return await self._activate(request, deployments, record, forced)

    async def check(self, name: str) -> Response[bytes]:
        """Return how runs fit a deployment, without activating it."""
        deployments = await self._log.catch_up()
        return _response(await self._activation_check.check(deployment_of(deployments, name)))

    async def rollback(
        self, request: AnyRequest, name: str | None, after: str, forced: str = ""
    ) -> Response[bytes]:
        """Activate an earlier deployment again.

        Args:
            request: The request.
            name: Id of a deployment that was active before; None for the previous one.
            after: Id of the deployment that must be active before; "" for any.
            forced: As for `activate`.
        """
        deployments = await self._log.catch_up()
        if name is not None:
            deployment_of(deployments, name)
        active, state = deployments.active, deployments.state
        if after and after == deployments.rolled_back_from and active is not None:
            # A repeated request: its first response may have been lost.
            name = name or active.id
        if active is None or name != active.id:
            target = deployments.rolled_back_to(name)
            if isinstance(target, ActivationRejected):
                raise Problem(target.code, target.message)
            name = target.id
        # The state as the condition: two concurrent rollbacks must not go back two deployments.
        record = DeploymentActivated(
            id=name,
            after=after or state,
            rollback=True,
            by=admitted_key(request.scope) or "",
            at_ms=self._clock(),
        )
        return await self._activate(request, deployments, record, forced)

    async def _activate(
        self,
        request: AnyRequest,
        deployments: Deployments,
        record: DeploymentActivated,
        forced: str,
    ) -> Response[bytes]:
        replaces, report, created = None, None, deployments.by_id[record.id]
        note(request, deployment=created.id, app=created.app, digest=created.digest)
        if deployments.percent_of(created.id) == record.percent:
            note(request, deduped=True)
        else:
            if _needs_check(deployments, record):
                report = await self._checked(request, created, forced, record.percent == ALL)
            await attempt(request, replaces=deployments.state)
            activated = _require_outcome(await self._log.write(record), Activated)
            is_other = activated.new and record.percent == ALL and activated.before != created.id
            replaces = activated.before if is_other else None
            note(request, replaces=replaces)
            deployments = await self._log.catch_up()
        fields = _fields(deployments, created)
        return _response(
            DeploymentActive(**fields, replaces=replaces, replay=report), tag=deployments.state
        )

    async def install(self, request: AnyRequest, name: str) -> Response[bytes]:
        """Request that workers try again to install the environment of a deployment."""
        deployments = await self._log.catch_up()
        created = deployment_of(deployments, name)
        note(request, deployment=name, app=created.app, digest=created.digest)
        if created.environment:
            await attempt(request)
            record = EnvironmentReported(
                id=name, state=REQUESTED, by=admitted_key(request.scope) or "", at_ms=self._clock()
            )
            _require_outcome(await self._log.write(record), Reported)
        return _response(_deployment(deployments, created))

    async def _checked(
        self, request: AnyRequest, created: DeploymentCreated, forced: str, moves: bool
    ) -> ReplayReport:
        """Return how runs fit a deployment that is about to be activated.

        Args:
            request: The request.
            created: The deployment.
            forced: Why it is activated even if runs do not fit it; "" if it is not.
            moves: Whether runs that follow the code would continue on it.

        Raises:
            Problem: A worker cannot load it, or runs would continue on code that they do not fit,
                and it is not forced.
        """
        note(request, forced=forced or None)
        # Pinned runs are not affected, and a rollback may be urgent.
        is_pinned = not any(workflow.latest for workflow in created.workflows)
        report = await self._activation_check.check(
            created, without_runs=bool(forced) or is_pinned or not moves
        )
        if report.not_loaded and not forced:
            failed = report.not_loaded[0]
            raise Problem(
                DEPLOYMENT_NOT_LOADED,
                f"expected every worker to load {created.id}, found {len(report.not_loaded)} that "
                f"cannot, such as {failed.worker}: {failed.reason}; `headwater deployments check "
                f"{created.id}` names them all; repair these workers, or force the activation",
                report=report,
            )
        problem = _divergence(created, report) if moves else ""
        moving = (run for run in report.diverged if run.moves)
        note(request, diverged=[f"{run.workflow_name}/{run.instance_id}" for run in moving])
        if problem and not forced:
            raise Problem(REPLAY_DIVERGED, problem, report=report)
        return report

    async def list_deployments(self, limit: int, cursor: str | None) -> Response[bytes]:
        """Return a page of deployments, the newest first."""
        deployments = await self._log.catch_up()
        names = list(reversed(deployments.by_id))
        if cursor is not None:
            if cursor not in deployments.by_id:
                detail = f"expected the cursor of a page, found {cursor[:64]!r}"
                raise Problem("invalid_cursor", detail, field="cursor")
            names = names[names.index(cursor) + 1 :]
        more = len(names) > limit
        rows = await self._with_runs(
            [_deployment(deployments, deployments.by_id[name]) for name in names[:limit]]
        )
        page = DeploymentPage(
            deployments=rows, has_next_page=more, cursor=rows[-1].id if more else None
        )
        return _response(page)

    async def get_deployment(self, name: str) -> Response[bytes]:
        """Return a deployment."""
        deployments = await self._log.catch_up()
        created = deployment_of(deployments, name)
        (shown,) = await self._with_runs([_deployment(deployments, created, detailed=True)])
        return _response(shown)

    async def get_active(self) -> Response[bytes]:
        """Return the active deployment, with its ETag for If-Match."""
        deployments = await self._log.catch_up()
        active = active_of(deployments)
        (shown,) = await self._with_runs([_deployment(deployments, active, detailed=True)])
        if deployments.share is not None:
            shares = [
                DeploymentShare(deployment_id=name, percent=deployments.percent_of(name))
                for name in (active.id, deployments.share.deployment)
            ]
            shown = msgspec.structs.replace(shown, shares=shares)
        return _response(shown, tag=deployments.state)

    async def _with_runs(self, shown: list[Deployment]) -> list[Deployment]:
        """Add what is known of the runs on deployments, unless Postgres cannot be read."""
        workflows = {one.id: [workflow.name for workflow in one.workflows] for one in shown}
        try:
            runs = await self._workflows.runs_of_deployments(workflows)
        except StoreUnavailable:
            return shown
        return [_with_runs(deployment, runs[deployment.id]) for deployment in shown]

    async def get_active_id(self) -> Response[bytes]:
        """Return only the id of the active deployment."""
        return _response(DeploymentId(deployment_id=active_of(await self._log.catch_up()).id))


def _needs_check(deployments: Deployments, record: DeploymentActivated) -> bool:
    """Return whether an activation has to be checked: the end or a change of a share need not."""
    if record.percent == ALL:
        active = deployments.active
        return active is None or active.id != record.id
    return bool(record.percent) and record.id not in deployments.in_use


def _divergence(created: DeploymentCreated, report: ReplayReport) -> str:
    """Return why a deployment should not be activated; "" if no open run speaks against it."""
    moving = [run for run in report.diverged if run.moves]
    if not moving:
        return ""
    names = ", ".join(f"{run.workflow_name}/{run.instance_id}" for run in moving[:_NAMED])
    return (
        f"expected open runs that would continue on {created.id} to fit it, found {len(moving)} "
        f"that do not, such as {names}: {moving[0].reason}; `headwater deployments check "
        f"{created.id}` shows the report; fix the code, or force the activation"
    )


def _require_outcome(outcome: DeploymentOutcome, kind: type[Any]) -> Any:  # noqa: ANN401 (of that kind)
    if isinstance(outcome, ActivationRejected):
        raise Problem(outcome.code, outcome.message)
    assert isinstance(outcome, kind)  # noqa: S101 (the kind of the record determines it)
    return outcome


def _deployment(
    deployments: Deployments, created: DeploymentCreated, *, detailed: bool = False
) -> Deployment:
    return Deployment(**_fields(deployments, created, detailed=detailed))


def _fields(
    deployments: Deployments, created: DeploymentCreated, *, detailed: bool = False
) -> dict[str, Any]:
    at_ms = deployments.activated_at_ms.get(created.id)
    percent = deployments.percent_of(created.id)
    is_active = deployments.active is created
    status = "active" if is_active else "sharing" if percent else None
    return {
        "id": created.id,
        "app": created.app,
        "digest": created.digest,
        "size": created.size,
        "workflows": [_workflow(workflow, detailed=detailed) for workflow in created.workflows],
        "schedules": [_schedule(schedule) for schedule in created.schedules],
        "active": is_active,
        "percent": percent or None,
        "status": "removing" if created.id in deployments.retired else status,
        "deployed_at": _utc(created.at_ms),
        "deployed_by": created.by,
        "activated_at": None if at_ms is None else _utc(at_ms),
        "environment": _environment(deployments, created, detailed=detailed),
    }


def _environment(
    deployments: Deployments, created: DeploymentCreated, *, detailed: bool
) -> EnvironmentDeployed | None:
    if not created.environment:
        return None
    machines = deployments.environments.get(created.id, {})
    return EnvironmentDeployed(
        digest=created.environment,
        size=created.environment_bytes,
        packages=len(created.requirements),
        requirements=list(created.requirements) if detailed else None,
        machines=[_machine(machines[name]) for name in sorted(machines)] if detailed else None,
    )


def _machine(report: EnvironmentReported) -> EnvironmentOnMachine:
    return EnvironmentOnMachine(
        machine=report.machine,
        state="installed" if report.state == INSTALLED else "failed",
        reason=report.reason or None,
        reported_at=_utc(report.at_ms),
    )


def _with_runs(deployment: Deployment, runs: DeploymentRuns) -> Deployment:
    drained_at = None if runs.open or deployment.percent else runs.last_ended_at
    status = deployment.status
    if status is None:
        status = "draining" if runs.open else "inactive" if drained_at is None else "drained"
    return msgspec.structs.replace(
        deployment, open_runs=runs.open, status=status, drained_at=drained_at
    )


def _workflow(workflow: DeployedWorkflow, *, detailed: bool) -> WorkflowDeployed:
    schema = json.loads(workflow.params) if detailed and workflow.params is not None else None
    return WorkflowDeployed(
        name=workflow.name,
        kind="graph" if workflow.document is not None else "code",
        definition_digest=workflow.digest or None,
        versioning="latest" if workflow.latest else "pinned",
        params_schema=schema,
    )


def _schedule(schedule: DeployedSchedule) -> ScheduleDeployed:
    declared = json.loads(schedule.declared)
    return ScheduleDeployed(
        name=schedule.name,
        workflow=declared["workflow"],
        cron=declared["cron"],
        timezone=declared["timezone"],
    )


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _response(body: Answer, status: int = HTTPStatus.OK, tag: str = "") -> Response[bytes]:
    headers = {"etag": f'"{tag}"'} if tag else {}
    if status == HTTPStatus.CREATED and isinstance(body, Deployment):
        headers["location"] = f"/v1/deployments/{body.id}"
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type="application/json",
        headers=headers,
    )
