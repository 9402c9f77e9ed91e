"""Routes of runs, under `/v1/runs`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import JSONBody, PathParameter, QueryParameter

from headwater.gateway.api.audit import attempt_run, note
from headwater.gateway.api.authentication import scoped_key
from headwater.gateway.api.json_bodies import BodySize
from headwater.gateway.api.openapi import OptionalBody
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.authorization import Policy
from headwater.gateway.api.workflows.bodies import Ending, generic
from headwater.gateway.api.workflows.command_service import CommandResult
from headwater.gateway.api.workflows.openapi import create_spec, read_spec, write_spec
from headwater.gateway.api.workflows.parameters import (
    V1_PAGE_DEFAULT,
    IdempotencyKey,
    Position,
    V1Cursor,
    V1Limit,
)
from headwater.gateway.api.workflows.positions import HEADER, format_positions, furthest
from headwater.gateway.api.workflows.query_service import QueryService, cursor_field, response_of
from headwater.gateway.api.workflows.request_guard import (
    RequestGuard,
    attempt_change,
    require_readable,
)
from headwater.gateway.api.workflows.runs.bodies import NewRun
from headwater.gateway.api.workflows.runs.run_service import RunResult, RunService
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
from headwater.schemas.statuses import RunState
from headwater.schemas.v1_answers import Run, RunCreated, RunPage

BASE: Final = "/v1/runs"

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
_RUN_PROBLEMS: Final = ("run_not_found", "ambiguous_run")

_WorkflowName: TypeAlias = Annotated[
    str | None,
    QueryParameter(name="workflowName", min_length=1, description="Only runs of this workflow."),
]
_RunId: TypeAlias = Annotated[
    str, PathParameter(description="Id of the run.", examples=[Example(value=_CREATED["runId"])])
]


class RunsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters and page of a listing of runs."""

    workflow_name: _WorkflowName = None
    status: Annotated[
        RunState | None, QueryParameter(name="status", description="Only runs with this status.")
    ] = None
    deployment_id: Annotated[
        str | None,
        QueryParameter(
            name="deploymentId", min_length=1, description="Only runs on this deployment."
        ),
    ] = None
    limit: V1Limit = V1_PAGE_DEFAULT
    cursor: V1Cursor = None


def run_routes(
    request_guard: RequestGuard, query_service: QueryService, run_service: RunService, rows: Runs
) -> list[HTTPRouteHandler]:
    """Return the routes of runs."""
    return [
        _create_route(request_guard, run_service),
        _list_route(request_guard, query_service, rows),
        _get_route(request_guard, query_service, run_service),
        _cancel_route(request_guard, run_service),
    ]


def _create_route(request_guard: RequestGuard, run_service: RunService) -> HTTPRouteHandler:
    @post(
        "/",
        audit="runs.create",
        audits_attempt=True,
        body=BodySize.PARAMS,
        operation_id="createRun",
        summary="Create a run",
        description="On the active deployment or a named one. The header Idempotency-Key is "
        "required: a request that is repeated with the same key within a day gets the first "
        "response. The order of names in JSON objects does not matter.",
        **create_spec(
            RunCreated,
            _CREATED,
            *("idempotency_required", IDEMPOTENCY_CONFLICT, INVALID_PARAMS, "store_unavailable"),
            *(NO_ACTIVE_DEPLOYMENT, DEPLOYMENT_NOT_FOUND, WORKFLOW_NOT_FOUND),
        ),
    )
    async def create_run(
        request: AnyRequest, data: JSONBody[NewRun], key: IdempotencyKey = None
    ) -> Response[bytes]:
        if not key:
            raise Problem(
                "idempotency_required",
                "Idempotency-Key header is required",
                field="Idempotency-Key",
            )
        note(request, workflow=data.workflow_name, idempotency_key=key or "")
        context = request_guard.context_of(request, request.route_handler)
        await request_guard.authorize(
            replace(context, workflow_name=data.workflow_name),
            lambda: {"id": None, "params": generic(data.input)},
        )
        own_key = scoped_key(request.scope, key)
        created = await run_service.create_by_request(
            data,
            own_key,
            partial(attempt_run, request),
        )
        note(request, deduped=created.deduped, run_id=created.run_id)
        return _creation_response(created)

    return create_run


def _list_route(
    request_guard: RequestGuard, query_service: QueryService, rows: Runs
) -> HTTPRouteHandler:
    @get(
        "/",
        authorizes_later=True,
        operation_id="listRuns",
        summary="List runs, newest first",
        description="Pages are stable while runs are created and deleted: the cursor names the "
        "last run of a page. Inputs and outputs are left out.",
        dependencies={"filters": Provide(RunsQuery, sync_to_thread=False)},
        **read_spec(RunPage, _PAGE, "invalid_cursor"),
    )
    async def list_runs(
        request: AnyRequest, filters: NamedDependency[RunsQuery], position: Position
    ) -> Response[bytes]:
        context = request_guard.context_of(request, request.route_handler)
        await request_guard.authorize(replace(context, workflow_name=filters.workflow_name))
        applied = await query_service.wait_until_applied(position)
        with cursor_field("cursor"):
            page = await rows.page(
                workflow=filters.workflow_name,
                state=filters.status,
                deployment=filters.deployment_id,
                limit=filters.limit,
                after=filters.cursor,
            )
        more = page.cursor is not None
        return response_of(
            RunPage(data=list(page.rows), cursor=page.cursor, has_more=more), applied
        )

    return list_runs


def _get_route(
    request_guard: RequestGuard, query_service: QueryService, run_service: RunService
) -> HTTPRouteHandler:
    @get(
        "/{runId:str}",
        authorizes_later=True,
        operation_id="getRun",
        summary="Get a run",
        description="Every instance of a workflow is a run. If instances of several workflows have "
        "the same id, `workflowName` selects one.",
        **read_spec(Run, _RUN, *_RUN_PROBLEMS),
    )
    async def get_run(
        request: AnyRequest,
        runId: _RunId,  # noqa: N803 (as the path has it)
        position: Position,
        workflow_name: _WorkflowName = None,
    ) -> Response[bytes]:
        if workflow_name is not None:
            await _authorize_named(request_guard, request, workflow_name, runId)
        await query_service.wait_until_applied(position)
        row = await _find_authorized(request_guard, request, run_service, runId, workflow_name)
        require_readable(request, row.run.workflow_name)
        return response_of(row.run, {row.partition: row.offset})

    return get_run


def _cancel_route(request_guard: RequestGuard, run_service: RunService) -> HTTPRouteHandler:
    @post(
        "/{runId:str}/cancel",
        audit="runs.cancel",
        audits_attempt=True,
        authorizes_later=True,
        operation_id="cancelRun",
        operation_class=OptionalBody,
        summary="Cancel a run",
        description="The code of the run may clean up; then the run is canceled. Canceling a "
        "canceled run has no effect.",
        **write_spec(
            Policy.MANAGE, Run, _RUN, *_RUN_PROBLEMS, INSTANCE_TERMINAL, "store_unavailable"
        ),
    )
    async def cancel_run(
        request: AnyRequest,
        runId: _RunId,  # noqa: N803 (as the path has it)
        data: JSONBody[Ending],
        workflow_name: _WorkflowName = None,
    ) -> Response[bytes]:
        note(request, run_id=runId)
        if workflow_name is not None:
            await _authorize_named(request_guard, request, workflow_name, runId)
        row = await _find_authorized(request_guard, request, run_service, runId, workflow_name)
        await attempt_change(request, runId, row.run.workflow_name)
        result = await run_service.cancel(row, data.reason)
        if result is None:
            return response_of(row.run, {row.partition: row.offset})
        current = (
            await run_service.find_run(runId, row.run.workflow_name) if result.applied else row
        )
        return response_of(current.run, _positions(result.replies), status=_status(result))

    return cancel_run


async def _authorize_named(
    request_guard: RequestGuard, request: AnyRequest, workflow: str, run_id: str
) -> None:
    """Authorize a request for a run of a named workflow, before the run is read."""
    context = request_guard.context_of(request, request.route_handler)
    await request_guard.authorize(replace(context, workflow_name=workflow, instance_id=run_id))


async def _find_authorized(
    request_guard: RequestGuard,
    request: AnyRequest,
    run_service: RunService,
    run_id: str,
    workflow: str | None,
) -> FoundRun:
    """Return the run with an id, of those that the caller may read or manage.

    For a named workflow the hooks were already called. A run that they deny is reported as not
    found.

    Raises:
        Problem: The request is denied, or there is no such run, or there are several.
    """
    if workflow is not None:
        return run_service.single_run(await run_service.find_runs(run_id, workflow), run_id)
    context = replace(request_guard.context_of(request, request.route_handler), instance_id=run_id)
    rows = [
        row
        for row in await run_service.find_runs(run_id)
        if await request_guard.is_authorized(replace(context, workflow_name=row.run.workflow_name))
    ]
    if not rows:
        # The same call whether the run exists or not, so that the response does not reveal it.
        await request_guard.authorize(context)
    return run_service.single_run(rows, run_id)


def _creation_response(created: RunResult) -> Response[bytes]:
    headers = {"idempotent-replayed": "true"} if created.deduped else {}
    position = (
        "" if created.command is None else format_positions(_positions(created.command.replies))
    )
    return Response(
        created.body.encode(),
        status_code=created.status,
        media_type="application/json",
        headers=headers | ({HEADER: position} if position else {}),
    )


def _positions(replies: Sequence[ReplySent]) -> dict[int, int]:
    return furthest((reply.partition, reply.position) for reply in replies)


def _status(result: CommandResult) -> HTTPStatus:
    """Return 200, or 202 if the outcome cannot be read yet."""
    return HTTPStatus.OK if result.applied else HTTPStatus.ACCEPTED
