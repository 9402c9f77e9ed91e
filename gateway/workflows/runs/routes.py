"""The routes of runs, `/v1/runs`."""

from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import JSONBody, PathParameter, QueryParameter

from headwater.gateway.http.auditing import note
from headwater.gateway.http.keys import scoped_key
from headwater.gateway.http.limited_bodies import BodySize
from headwater.gateway.http.openapi import OptionalBody
from headwater.gateway.http.problems import Problem
from headwater.gateway.http.request_scope import AnyRequest
from headwater.gateway.workflows.authorization import Policy
from headwater.gateway.workflows.bodies import CURSOR_MAX, Ending, generic
from headwater.gateway.workflows.command_service import CommandResult
from headwater.gateway.workflows.openapi import create_spec, read_spec, write_spec
from headwater.gateway.workflows.parameters import IdempotencyKey, Position
from headwater.gateway.workflows.positions import HEADER, furthest, format_positions
from headwater.gateway.workflows.query_service import QueryService, response_of, cursor_field
from headwater.gateway.workflows.request_guard import RequestGuard
from headwater.gateway.workflows.runs.bodies import NewRun
from headwater.gateway.workflows.runs.idempotent_requests import RunResult
from headwater.gateway.workflows.runs.run_service import RunService
from headwater.projections.workflows.runs import FoundRun, Runs
from headwater.schemas.failures import (
    DEPLOYMENT_NOT_FOUND,
    IDEMPOTENCY_CONFLICT,
    INSTANCE_TERMINAL,
    INVALID_PARAMS,
    NO_ACTIVE_DEPLOYMENT,
    WORKFLOW_NOT_FOUND,
)
from headwater.schemas.history import ReplySent
from headwater.schemas.run_answers import Run, RunCreated, RunPage
from headwater.schemas.statuses import RunState

BASE: Final = "/v1/runs"
LIMIT_DEFAULT: Final = 50
#: As many as the peers of this API give on a page; a run in a listing is small.
LIMIT_MAX: Final = 1_000

_AT: Final = "2026-07-01T08:00:00Z"
_CREATED: Final[dict[str, Any]] = {
    "runId": "run_01J9ZB4Q3V8D5T2M7K6N1XWYRA",
    "workflowName": "order",
    "status": "running",
    "deploymentId": "dep_3f9c1b7a52e84d60c1aa",
}
_LISTED: Final[dict[str, Any]] = _CREATED | {
    "createdAt": _AT,
    "startedAt": _AT,
    "updatedAt": _AT,
    "completedAt": None,
}
_RUN: Final[dict[str, Any]] = _LISTED | {"input": {"sku": "x"}}
_PAGE: Final[dict[str, Any]] = {"data": [_LISTED], "cursor": None, "hasMore": False}
_OF_RUN: Final = ("run_not_found", "ambiguous_run")

_WorkflowName: TypeAlias = Annotated[
    str | None,
    QueryParameter(name="workflowName", min_length=1, description="Only runs of this workflow."),
]
_RunId: TypeAlias = Annotated[
    str, PathParameter(description="The run.", examples=[Example(value=_CREATED["runId"])])
]


class RunsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are asked for."""

    workflow_name: _WorkflowName = None
    status: Annotated[
        RunState | None, QueryParameter(name="status", description="Only runs that stand so.")
    ] = None
    deployment_id: Annotated[
        str | None,
        QueryParameter(
            name="deploymentId", min_length=1, description="Only runs on this deployment."
        ),
    ] = None
    limit: Annotated[
        int, QueryParameter(name="limit", ge=1, le=LIMIT_MAX, description="How many, at most.")
    ] = LIMIT_DEFAULT
    cursor: Annotated[
        str | None,
        QueryParameter(
            name="cursor",
            min_length=1,
            max_length=CURSOR_MAX,
            description="The cursor of the previous page.",
        ),
    ] = None


def run_routes(
    request_guard: RequestGuard, query_service: QueryService, run_service: RunService, rows: Runs
) -> list[HTTPRouteHandler]:
    """The routes."""
    return [
        _creation(request_guard, run_service),
        _listing(request_guard, query_service, rows),
        _one(request_guard, query_service, run_service),
        _cancellation(request_guard, run_service),
    ]


def _creation(request_guard: RequestGuard, run_service: RunService) -> HTTPRouteHandler:
    @post(
        "/",
        audit="runs.create",
        body=BodySize.PARAMS,
        operation_id="createRun",
        summary="Create a run",
        description="Of the active deployment, or one that is named. The header Idempotency-Key is "
        "required: what is asked for again under it, within a day, is answered as the first time. "
        "In which order an object has its names does not matter.",
        **create_spec(
            RunCreated,
            _CREATED,
            *("idempotency_required", IDEMPOTENCY_CONFLICT, INVALID_PARAMS, "store_unavailable"),
            *(NO_ACTIVE_DEPLOYMENT, DEPLOYMENT_NOT_FOUND, WORKFLOW_NOT_FOUND),
        ),
    )
    async def create_run(
        request: AnyRequest, data: JSONBody[NewRun], key: IdempotencyKey = ""
    ) -> Response[bytes]:
        if not key:
            raise Problem(
                "idempotency_required",
                "Idempotency-Key header is required",
                field="Idempotency-Key",
            )
        note(request, workflow=data.workflow_name, idempotency_key=key)
        context = request_guard.context_of(request, request.route_handler)
        await request_guard.authorize(
            replace(context, workflow_name=data.workflow_name),
            lambda: {"id": None, "params": generic(data.input)},
        )
        own_key = scoped_key(request.scope, key)
        created = await run_service.create_once(
            data, own_key, lambda run_id: note(request, run_id=run_id)
        )
        note(request, deduped=created.deduped, run_id=created.run_id)
        return _answered(created)

    return create_run


def _listing(
    request_guard: RequestGuard, query_service: QueryService, rows: Runs
) -> HTTPRouteHandler:
    @get(
        "/",
        named_later=True,
        operation_id="listRuns",
        summary="Runs, newest first",
        description="A page holds still while runs come and go: its cursor names the last one "
        "seen. Inputs and outputs are left out.",
        dependencies={"asked": Provide(RunsQuery, sync_to_thread=False)},
        **read_spec(RunPage, _PAGE, "invalid_cursor"),
    )
    async def list_runs(
        request: AnyRequest, asked: NamedDependency[RunsQuery], position: Position
    ) -> Response[bytes]:
        context = request_guard.context_of(request, request.route_handler)
        await request_guard.authorize(replace(context, workflow_name=asked.workflow_name))
        applied = await query_service.wait_until_applied(position)
        with cursor_field("cursor"):
            page = await rows.page(
                workflow=asked.workflow_name,
                state=asked.status,
                deployment=asked.deployment_id,
                limit=asked.limit,
                after=asked.cursor,
            )
        more = page.cursor is not None
        return response_of(
            RunPage(data=list(page.rows), cursor=page.cursor, has_more=more), applied
        )

    return list_runs


def _one(
    request_guard: RequestGuard, query_service: QueryService, run_service: RunService
) -> HTTPRouteHandler:
    @get(
        "/{runId:str}",
        named_later=True,
        operation_id="getRun",
        summary="One run, whole",
        description="Any instance of a workflow is a run. Where callers have given one id to "
        "instances of several workflows, `workflowName` says which is meant.",
        **read_spec(Run, _RUN, *_OF_RUN),
    )
    async def get_run(
        request: AnyRequest,
        runId: _RunId,  # noqa: N803 (as the path has it)
        position: Position,
        workflow_name: _WorkflowName = None,
    ) -> Response[bytes]:
        if workflow_name is not None:
            await _allow_named(request_guard, request, workflow_name, runId)
        await query_service.wait_until_applied(position)
        found = await _find_allowed(request_guard, request, run_service, runId, workflow_name)
        return response_of(found.run, {found.partition: found.offset})

    return get_run


def _cancellation(request_guard: RequestGuard, run_service: RunService) -> HTTPRouteHandler:
    @post(
        "/{runId:str}/cancel",
        audit="runs.cancel",
        named_later=True,
        operation_id="cancelRun",
        operation_class=OptionalBody,
        summary="Cancel a run",
        description="Its code may clean up; then it is cancelled. One that is cancelled already "
        "stays so.",
        **write_spec(Policy.MANAGE, Run, _RUN, *_OF_RUN, INSTANCE_TERMINAL, "store_unavailable"),
    )
    async def cancel_run(
        request: AnyRequest,
        runId: _RunId,  # noqa: N803 (as the path has it)
        data: JSONBody[Ending],
        workflow_name: _WorkflowName = None,
    ) -> Response[bytes]:
        note(request, run_id=runId)
        if workflow_name is not None:
            await _allow_named(request_guard, request, workflow_name, runId)
        found = await _find_allowed(request_guard, request, run_service, runId, workflow_name)
        note(request, workflow=found.run.workflow_name)
        result = await run_service.cancel(found, data.reason)
        if result is None:
            return response_of(found.run, {found.partition: found.offset})
        stands = await run_service.find(runId, found.run.workflow_name) if result.applied else found
        return response_of(
            stands.run, _positions(result.replies), status=_status(result, HTTPStatus.OK)
        )

    return cancel_run


async def _allow_named(
    request_guard: RequestGuard, request: AnyRequest, workflow: str, run_id: str
) -> None:
    """Asks the hooks about a run whose workflow is named, before it is looked up."""
    context = request_guard.context_of(request, request.route_handler)
    await request_guard.authorize(replace(context, workflow_name=workflow, instance_id=run_id))


async def _find_allowed(
    request_guard: RequestGuard,
    request: AnyRequest,
    run_service: RunService,
    run_id: str,
    workflow: str | None,
) -> FoundRun:
    """Return the run of an id among those that the caller may read or manage.

    The hooks have been asked about a workflow that is named. A run of a workflow that they keep
    from the caller is answered as one that does not exist.

    Raises:
        Problem: The hooks refuse, or there is no such run, or there are several.
    """
    if workflow is not None:
        return run_service.only(await run_service.find_all(run_id, workflow), run_id)
    context = replace(request_guard.context_of(request, request.route_handler), instance_id=run_id)
    found = [
        each
        for each in await run_service.find_all(run_id)
        if await request_guard.is_authorized(replace(context, workflow_name=each.run.workflow_name))
    ]
    if not found:
        # Whether one exists or not, the hooks are asked the same, and answer the same.
        await request_guard.authorize(context)
    return run_service.only(found, run_id)


def _answered(created: RunResult) -> Response[bytes]:
    headers = {"idempotent-replayed": "true"} if created.deduped else {}
    position = (
        "" if created.result is None else format_positions(_positions(created.result.replies))
    )
    return Response(
        created.body.encode(),
        status_code=created.status,
        media_type="application/json",
        headers=headers | ({HEADER: position} if position else {}),
    )


def _positions(replies: Sequence[ReplySent]) -> dict[int, int]:
    return furthest((reply.partition, reply.position) for reply in replies)


def _status(result: CommandResult | None, done: HTTPStatus) -> HTTPStatus:
    """What was done can be read by now, or is not yet to be read."""
    return done if result is None or result.applied else HTTPStatus.ACCEPTED
