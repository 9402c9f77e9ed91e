"""Routes that deploy graphs and read deployed ones."""

import re
from typing import Annotated, Any, Final, TypeAlias

from litestar import Response, Router, get, put
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.params import HeaderParameter, PathParameter

from headwater.gateway.api.checked_parameters import checked_parameters
from headwater.gateway.api.entity_tags import tag_of
from headwater.gateway.api.limited_bodies import BodySize, LimitedBodies
from headwater.gateway.api.openapi import raw_body
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.graphs import Graphs
from headwater.gateway.api.workflows.openapi import deploy_spec, read_spec
from headwater.gateway.api.workflows.parameters import WORKFLOW, PathName, workflow_name
from headwater.gateway.api.workflows.request_guard import BodyRequest, RequestGuard
from headwater.schemas.failures import (
    GRAPH_CHANGED,
    GRAPH_INVALID,
    GRAPH_NOT_FOUND,
    GRAPH_OF_APP,
)
from headwater.schemas.graph_answers import (
    GraphDefinition,
    GraphList,
    GraphVersion,
    GraphVersions,
)

BASE: Final = "/api/graphs"
_GRAPH_PATH: Final = f"/{{{WORKFLOW}:str}}"
_VERSIONS_MAX: Final = 2**31 - 1
_DIGEST: Final = re.compile(r'"([0-9a-f]{64})"')
_READ_PROBLEMS: Final = ("broker_unavailable", "not_yet_readable")

_IfMatch: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        description="ETag of a version: deploy only if that is the newest version.",
    ),
]
_Number: TypeAlias = Annotated[
    int, PathParameter(description="Number of the version.", ge=1, le=_VERSIONS_MAX)
]

_VERSION: Final[dict[str, Any]] = {
    "name": "review",
    "version": 2,
    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "deployedAt": "2026-07-01T08:00:00Z",
}
_DEFINITION: Final[dict[str, Any]] = {
    "name": "review",
    "initialNodeRef": "start",
    "nodes": [{"ref": "start", "task": "noop"}],
}


#: Read as raw bytes: one response lists all errors of a definition.
_RAW: Final = raw_body(
    "application/json",
    Schema(
        type=OpenAPIType.OBJECT,
        description="Definition of a graph, at most 1 MiB.",
        example=_DEFINITION,
    ),
)


def graph_router(graphs: Graphs, request_guard: RequestGuard, limited: LimitedBodies) -> Router:
    """Return the router of graphs."""
    return Router(
        BASE,
        route_handlers=[_deploy(graphs), *_reads(graphs)],
        guards=[request_guard.guard, checked_parameters],
        dependencies={"workflow": Provide(workflow_name)},
        middleware=[limited],
        request_class=BodyRequest,
        request_max_body_size=None,
        tags=["graphs"],
    )


def _deploy(graphs: Graphs) -> HTTPRouteHandler:
    @put(
        _GRAPH_PATH,
        audit="graphs.deploy",
        body=BodySize.DEFINITION,
        operation_id="deployGraph",
        operation_class=_RAW,
        summary="Deploy a graph",
        description="New instances use it as soon as this request has returned. Existing instances "
        "stay on the version that they began with. Deploying the same definition again creates no "
        "new version.",
        **deploy_spec(GraphVersion, _VERSION, GRAPH_INVALID, GRAPH_OF_APP, GRAPH_CHANGED),
    )
    async def deploy_graph(
        request: AnyRequest, workflow: PathName, if_match: _IfMatch = None
    ) -> Response[bytes]:
        after = tag_of(if_match, _DIGEST, "the ETag of a version, in quotes")
        return await graphs.deploy(workflow, await request.body(), after)

    return deploy_graph


def _reads(graphs: Graphs) -> list[HTTPRouteHandler]:
    @get(
        "/",
        operation_id="listGraphs",
        summary="List the deployed graphs",
        description="The newest version of every graph, including graphs of apps.",
        **read_spec(GraphList, {"graphs": [_VERSION]}, *_READ_PROBLEMS),
    )
    async def list_graphs() -> Response[bytes]:
        return await graphs.list_graphs()

    @get(
        _GRAPH_PATH,
        operation_id="getGraph",
        summary="Get the newest version of a graph",
        **read_spec(
            GraphDefinition,
            _VERSION | {"definition": _DEFINITION},
            *_READ_PROBLEMS,
            GRAPH_NOT_FOUND,
        ),
    )
    async def get_graph(workflow: PathName) -> Response[bytes]:
        return await graphs.get_definition(workflow)

    @get(
        f"{_GRAPH_PATH}/versions",
        operation_id="listGraphVersions",
        summary="List the versions of a graph, the newest first",
        **read_spec(GraphVersions, {"versions": [_VERSION]}, *_READ_PROBLEMS, GRAPH_NOT_FOUND),
    )
    async def list_versions(workflow: PathName) -> Response[bytes]:
        return await graphs.list_versions(workflow)

    @get(
        f"{_GRAPH_PATH}/versions/{{number:int}}",
        operation_id="getGraphVersion",
        summary="Get a version of a graph",
        **read_spec(
            GraphDefinition,
            _VERSION | {"definition": _DEFINITION},
            *_READ_PROBLEMS,
            GRAPH_NOT_FOUND,
        ),
    )
    async def get_version(workflow: PathName, number: _Number) -> Response[bytes]:
        return await graphs.get_definition(workflow, number)

    return [list_graphs, get_graph, list_versions, get_version]
