"""Reads under `/v1/world`: runs, and their steps, hooks, waits and events."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter, QueryParameter

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.openapi import world_read_spec
from headwater.gateway.api.workflows.parameters import V1_PAGE_DEFAULT, V1Cursor, V1Limit
from headwater.gateway.api.workflows.query_service import cursor_field, response_of
from headwater.gateway.api.workflows.request_guard import require_readable
from headwater.gateway.api.workflows.runs.routes import RunsQuery
from headwater.gateway.api.workflows.runs.run_service import RunService
from headwater.projections.workflows.answers import Page
from headwater.projections.workflows.runs import Runs
from headwater.projections.workflows.world import Parts, RunPart, WorldEntries
from headwater.schemas.v1_answers import (
    Run,
    WorldEvent,
    WorldHook,
    WorldPage,
    WorldStep,
    WorldWait,
)

_AT: Final = "2026-07-01T08:00:00Z"
_RUN_ID: Final = "run_01J9ZB4Q3V8D5T2M7K6N1XWYRA"
_RUN: Final[dict[str, Any]] = {
    "runId": _RUN_ID,
    "workflowName": "order",
    "status": "running",
    "deploymentId": "dep_3f9c1b7a52e84d60c1aa",
    "createdAt": _AT,
    "startedAt": _AT,
    "updatedAt": _AT,
    "completedAt": None,
    "input": {"sku": "x"},
}
_TIMES: Final = {"runId": _RUN_ID, "createdAt": _AT, "updatedAt": _AT}
_EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "steps": {
        **_TIMES, "stepId": "charge", "stepName": "charge", "status": "completed", "attempt": 1,
        "output": 125, "startedAt": _AT, "completedAt": _AT,
    },
    "hooks": {**_TIMES, "hookId": "approval", "token": "approval", "status": "waiting"},
    "waits": {**_TIMES, "waitId": "rest", "status": "waiting", "resumeAt": _AT},
    "events": {
        "runId": _RUN_ID, "eventId": "run_created", "eventType": "run_created",
        "eventData": {"workflowName": "order", "input": {"sku": "x"}}, "createdAt": _AT,
    },
}  # fmt: skip

_ResolveData: TypeAlias = Annotated[
    Literal["none", "all"],
    QueryParameter(
        name="resolveData", description="`none` leaves out inputs, outputs, results and payloads."
    ),
]
_RunId: TypeAlias = Annotated[
    str, QueryParameter(name="runId", min_length=1, description="Id of the run.")
]
_Workflow: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="workflowName",
        min_length=1,
        description="Its workflow, if several have a run with this id.",
    ),
]
_RunInPath: TypeAlias = Annotated[str, PathParameter(description="Id of the run.")]
_Key: TypeAlias = Annotated[str, PathParameter(description="Id of the step, hook or wait.")]
#: Reads a page of parts of a run.
_Read: TypeAlias = Callable[[RunPart, int, str | None], Awaitable[Parts]]


class PartsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of parts of a run."""

    workflow_name: _Workflow = None
    limit: V1Limit = V1_PAGE_DEFAULT
    cursor: V1Cursor = None
    resolve_data: _ResolveData = "all"


def world_read_routes(rows: Runs, entries: WorldEntries) -> list[HTTPRouteHandler]:
    """Return the routes."""
    return [
        _runs_route(rows),
        _run_route(rows),
        _list_route("steps", WorldStep, entries.steps),
        _list_route("hooks", WorldHook, entries.hooks),
        _list_route("waits", WorldWait, entries.waits),
        _list_route("events", WorldEvent, entries.events),
        _get_route("steps", WorldStep, entries.steps),
        _get_route("hooks", WorldHook, entries.hooks),
        _get_route("waits", WorldWait, entries.waits),
    ]


def _runs_route(rows: Runs) -> HTTPRouteHandler:
    example = {"data": [_RUN], "cursor": None, "hasMore": False}

    @get(
        "/runs",
        operation_id="listWorldRuns",
        summary="List runs, newest first",
        dependencies={"filters": Provide(RunsQuery, sync_to_thread=False)},
        **world_read_spec(WorldPage, example, "invalid_cursor"),
    )
    async def list_world_runs(
        request: AnyRequest, filters: NamedDependency[RunsQuery], resolve_data: _ResolveData = "all"
    ) -> Response[bytes]:
        require_readable(request, filters.workflow_name)
        with cursor_field("cursor"):
            page = await rows.page(
                workflow=filters.workflow_name,
                state=filters.status,
                deployment=filters.deployment_id,
                limit=filters.limit,
                after=filters.cursor,
                payload=resolve_data == "all",
            )
        return _page_response(page)

    return list_world_runs


def _run_route(rows: Runs) -> HTTPRouteHandler:
    @get(
        "/runs/{runId:str}",
        operation_id="getWorldRun",
        summary="Get a run",
        **world_read_spec(Run, _RUN, "run_not_found", "ambiguous_run"),
    )
    async def get_world_run(
        request: AnyRequest,
        runId: _RunInPath,  # noqa: N803 (as the path has it)
        workflow_name: _Workflow = None,
        resolve_data: _ResolveData = "all",
    ) -> Response[bytes]:
        row = RunService.single_run(await rows.find(runId, workflow_name), runId)
        run = row.run
        require_readable(request, run.workflow_name)
        if resolve_data == "none":
            run = msgspec.structs.replace(run, input=None, output=None)
        return response_of(run, {})

    return get_world_run


def _list_route(what: str, kind: type, read: _Read) -> HTTPRouteHandler:
    example = {"data": [_EXAMPLES[what]], "cursor": None, "hasMore": False}

    @get(
        f"/{what}",
        operation_id=f"listWorld{what.title()}",
        summary=f"List {what} of a run",
        description=f"Of the current run of an instance, in their order. Rows are {kind.__name__}.",
        dependencies={"page": Provide(PartsQuery, sync_to_thread=False)},
        **world_read_spec(WorldPage, example, "invalid_cursor", "run_not_found", "ambiguous_run"),
    )
    async def list_parts(
        request: AnyRequest, run_id: _RunId, page: NamedDependency[PartsQuery]
    ) -> Response[bytes]:
        part = RunPart(run_id, page.workflow_name, payload=page.resolve_data == "all")
        with cursor_field("cursor"):
            parts = await read(part, page.limit, page.cursor)
        _check_run(parts.workflows, run_id)
        require_readable(request, *parts.workflows)
        return _page_response(parts.page)

    return list_parts


def _get_route(what: str, kind: type, read: _Read) -> HTTPRouteHandler:
    @get(
        f"/{what}/{{key:str}}",
        operation_id=f"getWorld{what.title()[:-1]}",
        summary=f"Get one of the {what} of a run",
        **world_read_spec(kind, _EXAMPLES[what], "run_not_found", "ambiguous_run", "not_found"),
    )
    async def get_part(
        request: AnyRequest,
        key: _Key,
        run_id: _RunId,
        workflow_name: _Workflow = None,
        resolve_data: _ResolveData = "all",
    ) -> Response[bytes]:
        part = RunPart(run_id, workflow_name, key, resolve_data == "all")
        parts = await read(part, 1, None)
        _check_run(parts.workflows, run_id)
        require_readable(request, *parts.workflows)
        if not parts.page.rows:
            raise Problem(
                "not_found", f"expected one of the {what} of {run_id[:100]!r}, found none"
            )
        return response_of(parts.page.rows[0], {})

    return get_part


def _check_run(workflows: Sequence[str], run_id: str) -> None:
    """Check that one workflow has a run with an id.

    Raises:
        Problem: None has one, or several have.
    """
    if not workflows:
        raise Problem("run_not_found", f"expected a run, found none with the id {run_id[:100]!r}")
    if len(workflows) > 1:
        raise Problem(
            "ambiguous_run",
            f"expected {run_id[:100]!r} in one workflow, found it in {' and '.join(workflows)}; "
            "name one as workflowName",
            field="workflowName",
        )


def _page_response(page: Page[Any]) -> Response[bytes]:
    more = page.cursor is not None
    return response_of(WorldPage(data=list(page.rows), cursor=page.cursor, has_more=more), {})
