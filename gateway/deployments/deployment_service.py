"""What is done with deployments. Each answer is as of now, whichever gateway was asked before."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Response

from headwater.gateway.deployments.artifact_check import ArtifactCheck, check_name
from headwater.gateway.http.ports import DeploymentLog
from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.runs.deployment_choice import active_of, deployment_of
from headwater.processors.deployments import (
    Activated,
    Created,
    Deployments,
    Outcome,
    Refused,
    deployment_id,
)
from headwater.schemas.answers import Answer
from headwater.schemas.codec import encode
from headwater.schemas.deployment_answers import (
    Deployment,
    DeploymentActive,
    DeploymentId,
    DeploymentPage,
    ScheduleDeployed,
    WorkflowDeployed,
)
from headwater.schemas.deployments import (
    DeployedSchedule,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
)
from headwater.schemas.failures import ARTIFACT_INVALID

#: What an activation names to say that none is active yet.
NONE: Final = "none"
#: Every gateway and worker holds what all deployments declare.
_DECLARED_BYTES_MAX: Final = 1024 * 1024


class DeploymentService:
    """Deploys, activates, rolls back, and shows what there is.

    Shape:  by is the id of the operators' key, in all that is written.
    """

    def __init__(
        self,
        log: DeploymentLog,
        artifact_check: ArtifactCheck,
        *,
        by: str,
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._artifact_check = artifact_check
        self._by = by
        self._clock = clock

    async def deploy(self, app: str, artifact: bytes) -> Response[bytes]:
        """Deploys an artifact, which changes nothing until it is activated.

        Errors: Problem, here and in all below.
        """
        check_name(app)
        digest = (await asyncio.to_thread(hashlib.sha256, artifact)).hexdigest()
        name = deployment_id(app, digest)
        known = await self._log.catch_up()
        if name in known.by_id:
            return _answer(_shown(known, known.by_id[name]))
        workflows, schedules = await self._artifact_check.declared(app, artifact)
        record = DeploymentCreated(
            id=name,
            app=app,
            digest=digest,
            size=len(artifact),
            offset=0,
            workflows=workflows,
            by=self._by,
            at_ms=self._clock(),
            schedules=schedules,
        )
        declared = len(encode(record))
        if declared > _DECLARED_BYTES_MAX:
            raise Problem(
                ARTIFACT_INVALID,
                f"expected an app that declares at most {_DECLARED_BYTES_MAX} bytes, names, graphs "
                f"and JSON Schemas of params, found {declared}",
            )
        offset = await self._log.upload(name, artifact)
        outcome = await self._log.write(msgspec.structs.replace(record, offset=offset))
        made = _done(outcome, Created)
        status = HTTPStatus.CREATED if made.new else HTTPStatus.OK
        return _answer(_shown(await self._log.catch_up(), made.deployment), status)

    async def activate(self, name: str, after: str) -> Response[bytes]:
        """Has new runs begin on a deployment; after is what has to be active before, "" for any."""
        known = await self._log.catch_up()
        deployment_of(known, name)
        return await self._activate(known, name, after, rollback=False)

    async def rollback(self, name: str | None, after: str) -> Response[bytes]:
        """Goes back to the deployment that was active before, or to one before that."""
        known = await self._log.catch_up()
        if name is not None:
            deployment_of(known, name)
        active = NONE if known.active is None else known.active.id
        if after and after == known.rolled_back_from:
            # Who did not hear the answer asks again.
            name = name or active
        if name != active:
            target = known.rolled_back_to(name)
            if isinstance(target, Refused):
                raise Problem(target.code, target.message)
            name = target.id
        # Of two who go back from the same deployment, one does: else they would go back by two.
        return await self._activate(known, name, after or active, rollback=True)

    async def _activate(
        self, known: Deployments, name: str, after: str, *, rollback: bool
    ) -> Response[bytes]:
        replaces = None
        if known.active is not known.by_id[name]:
            record = DeploymentActivated(
                id=name, after=after, rollback=rollback, by=self._by, at_ms=self._clock()
            )
            done = _done(await self._log.write(record), Activated)
            replaces = done.before if done.new else None
            known = await self._log.catch_up()
        return _answer(
            DeploymentActive(**_fields(known, known.by_id[name]), replaces=replaces), tag=name
        )

    async def page(self, limit: int, cursor: str | None) -> Response[bytes]:
        """Deployments, the newest first."""
        known = await self._log.catch_up()
        names = list(reversed(known.by_id))
        if cursor is not None:
            if cursor not in known.by_id:
                detail = f"expected the cursor of a page, found {cursor[:64]!r}"
                raise Problem("invalid_cursor", detail, field="cursor")
            names = names[names.index(cursor) + 1 :]
        more = len(names) > limit
        shown = [_shown(known, known.by_id[each]) for each in names[:limit]]
        page = DeploymentPage(
            deployments=shown, has_next_page=more, cursor=shown[-1].id if more else None
        )
        return _answer(page)

    async def one(self, name: str) -> Response[bytes]:
        """A deployment."""
        known = await self._log.catch_up()
        return _answer(_shown(known, deployment_of(known, name), whole=True))

    async def active(self) -> Response[bytes]:
        """The active deployment; its ETag is what an activation may name."""
        known = await self._log.catch_up()
        found = active_of(known)
        return _answer(_shown(known, found, whole=True), tag=found.id)

    async def active_id(self) -> Response[bytes]:
        """The id of the active deployment alone."""
        return _answer(DeploymentId(deployment_id=active_of(await self._log.catch_up()).id))


def _done(outcome: Outcome, kind: type[Any]) -> Any:  # noqa: ANN401 (of that kind)
    if isinstance(outcome, Refused):
        raise Problem(outcome.code, outcome.message)
    assert isinstance(outcome, kind)  # noqa: S101 (what was written says which it is)
    return outcome


def _shown(known: Deployments, found: DeploymentCreated, *, whole: bool = False) -> Deployment:
    return Deployment(**_fields(known, found, whole=whole))


def _fields(known: Deployments, found: DeploymentCreated, *, whole: bool = False) -> dict[str, Any]:
    at_ms = known.activated_at_ms.get(found.id)
    return {
        "id": found.id,
        "app": found.app,
        "digest": found.digest,
        "size": found.size,
        "workflows": [_workflow(each, whole=whole) for each in found.workflows],
        "schedules": [_schedule(each) for each in found.schedules],
        "active": known.active is found,
        "deployed_at": _moment(found.at_ms),
        "deployed_by": found.by,
        "activated_at": None if at_ms is None else _moment(at_ms),
    }


def _workflow(found: DeployedWorkflow, *, whole: bool) -> WorkflowDeployed:
    schema = json.loads(found.params) if whole and found.params is not None else None
    return WorkflowDeployed(
        name=found.name,
        kind="graph" if found.document is not None else "code",
        definition_digest=found.digest or None,
        versioning="latest" if found.latest else "pinned",
        params_schema=schema,
    )


def _schedule(found: DeployedSchedule) -> ScheduleDeployed:
    declared = json.loads(found.declared)
    return ScheduleDeployed(
        name=found.name,
        workflow=declared["workflow"],
        cron=declared["cron"],
        timezone=declared["timezone"],
    )


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _answer(found: Answer, status: int = HTTPStatus.OK, tag: str = "") -> Response[bytes]:
    headers = {"etag": f'"{tag}"'} if tag else {}
    if status == HTTPStatus.CREATED and isinstance(found, Deployment):
        headers["location"] = f"/v1/deployments/{found.id}"
    return Response(
        msgspec.json.encode(found),
        status_code=status,
        media_type="application/json",
        headers=headers,
    )
