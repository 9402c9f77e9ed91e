"""Deploy graph definitions and read deployed ones, with the routes."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from litestar import Response, Router, get, put
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.params import HeaderParameter, PathParameter

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.json_bodies import BodySize, LimitedBodies, check_json
from headwater.gateway.api.openapi import raw_body
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import tag_of, with_checked_parameters
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.openapi import deploy_spec, read_spec
from headwater.gateway.api.workflows.parameters import WORKFLOW, PathName, workflow_name
from headwater.gateway.api.workflows.request_guard import BodyRequest, RequestGuard
from headwater.processors.graph.catalogue import Catalogue, Deployed, NotDeployed, Version
from headwater.processors.graph.definition import INVALID_DEFINITION, DefinitionInvalid, to_dict
from headwater.processors.graph.definition import Problem as DefinitionError
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.runs.limits import BUILTIN_PREFIX
from headwater.schemas.answers import Answer
from headwater.schemas.deployments import GraphDeployed
from headwater.schemas.failures import GRAPH_CHANGED, GRAPH_INVALID, GRAPH_NOT_FOUND, GRAPH_OF_APP
from headwater.schemas.graph_answers import (
    DefinitionWarning,
    GraphDefinition,
    GraphDeployment,
    GraphList,
    GraphVersion,
    GraphVersions,
)
from headwater.streams.workflows.deployment_log import DefinitionLog

#: Most errors of a definition that one response lists.
_ERRORS_SHOWN: Final = 100


class Graphs:
    """Deploys and reads graphs; reads include all earlier deployments.

    Raises:
        Problem: Every method raises it when a request is refused.
    """

    def __init__(self, definitions: DefinitionLog, *, clock: Callable[[], int]) -> None:
        self._definitions = definitions
        self._clock = clock

    async def deploy(
        self, request: AnyRequest, name: str, body: bytes, after: str
    ) -> Response[bytes]:
        """Deploy a definition.

        Args:
            request: The request, for its audit entries.
            name: Name of the graph.
            body: The definition as JSON.
            after: Digest that the newest version must have; "" for any.
        """
        graph = await asyncio.to_thread(_parse, name, body)
        record = GraphDeployed(
            name=name,
            document=json.dumps(to_dict(graph.definition), ensure_ascii=False),
            digest=graph.digest,
            app="",
            after=after,
            at_ms=self._clock(),
        )
        await attempt(request, digest=graph.digest)
        match await self._definitions.deploy(record):
            case Deployed(version, new):
                note(request, version=version.number, deduped=not new)
                status = HTTPStatus.CREATED if new else HTTPStatus.OK
                return _response(_deployment(version, graph), status, version)
            case NotDeployed(code, message):
                raise Problem(code, message)
            case outcome:
                raise AssertionError(outcome)

    async def list_graphs(self) -> Response[bytes]:
        """Return the newest version of every graph."""
        catalogue = await self._definitions.catch_up()
        newest = [versions[-1] for _, versions in sorted(catalogue.versions.items())]
        return _response(GraphList(graphs=[_graph_version(version) for version in newest]))

    async def list_versions(self, name: str) -> Response[bytes]:
        """Return the versions of a graph, the newest first."""
        catalogue = await self._definitions.catch_up()
        versions = catalogue.versions.get(name)
        if versions is None:
            raise graph_not_found(catalogue, name)
        rows = [_graph_version(version) for version in reversed(versions)]
        return _response(GraphVersions(versions=rows))

    async def get_definition(self, name: str, number: int | None = None) -> Response[bytes]:
        """Return a version of a graph with its definition; the newest if number is None."""
        catalogue = await self._definitions.catch_up()
        version = catalogue.newest(name) if number is None else catalogue.version(name, number)
        if version is None:
            raise graph_not_found(catalogue, name, number)
        definition = msgspec.Raw(version.document.encode())
        row = GraphDefinition(**_fields(version), definition=definition)
        return _response(row, HTTPStatus.OK, version)


def _parse(name: str, body: bytes) -> Graph:
    """Parse and validate the definition in a body, and compute its warnings."""
    if name.startswith(BUILTIN_PREFIX):
        raise Problem(
            GRAPH_OF_APP,
            f"expected a name that does not begin with {BUILTIN_PREFIX}, the prefix of built-in "
            f"workflows, found {name!r}",
        )
    check_json(body)
    document = json.loads(body)
    if isinstance(document, dict):
        document.setdefault("name", name)
    try:
        graph = graph_of(document)
    except DefinitionInvalid as error:
        raise _invalid(error.problems) from error
    if graph.definition.name != name:
        message = f"expected the name of the path, {name!r}, found {graph.definition.name[:64]!r}"
        raise _invalid((DefinitionError(INVALID_DEFINITION, "name", message),))
    graph.warnings  # noqa: B018, computed in this thread
    return graph


def _invalid(errors: tuple[DefinitionError, ...]) -> Problem:
    shown = errors[:_ERRORS_SHOWN]
    more = f"; {len(errors) - len(shown)} more" if len(errors) > len(shown) else ""
    lines = "; ".join(f"{error.code} at {error.path}: {error.message}" for error in shown)
    return Problem(
        GRAPH_INVALID,
        lines + more,
        field=shown[0].path,
        errors=[
            {"code": error.code, "path": error.path, "message": error.message} for error in shown
        ],
    )


def graph_not_found(catalogue: Catalogue, name: str, number: int | None = None) -> Problem:
    """Return the problem of a graph, or a version of one, that does not exist."""
    versions = catalogue.versions.get(name)
    if versions:
        return Problem(
            GRAPH_NOT_FOUND,
            f"expected a version of {name[:64]!r} from 1 to {len(versions)}, found {number}",
        )
    return Problem(GRAPH_NOT_FOUND, f"expected a deployed graph, found {name[:64]!r}")


def _deployment(version: Version, graph: Graph) -> GraphDeployment:
    warnings = [
        DefinitionWarning(code=warning.code, path=warning.path, message=warning.message)
        for warning in graph.warnings
    ]
    return GraphDeployment(**_fields(version), warnings=warnings)


def _graph_version(version: Version) -> GraphVersion:
    return GraphVersion(**_fields(version))


def _fields(version: Version) -> Mapping[str, Any]:
    return {
        "name": version.name,
        "version": version.number,
        "digest": version.digest,
        "deployed_at": datetime.fromtimestamp(version.deployed_at_ms / 1000, UTC),
        "app": version.app or None,
    }


def _response(
    body: Answer, status: int = HTTPStatus.OK, version: Version | None = None
) -> Response[bytes]:
    headers = {} if version is None else {"etag": f'"{version.digest}"'}
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type="application/json",
        headers=headers,
    )


# -- routes

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
        guards=[with_checked_parameters(request_guard.guard)],
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
        audits_attempt=True,
        body=BodySize.DEFINITION,
        operation_id="deployGraph",
        operation_class=_RAW,
        summary="Deploy a graph",
        description="New instances use it as soon as this request has returned. Existing instances "
        "stay on the version that they began with. Deploying the same definition again creates no "
        "new version. `warnings` lists parts that will not do what their author expects.",
        **deploy_spec(
            GraphDeployment, _VERSION | {"warnings": []}, GRAPH_INVALID, GRAPH_OF_APP, GRAPH_CHANGED
        ),
    )
    async def deploy_graph(
        request: AnyRequest, workflow: PathName, if_match: _IfMatch = None
    ) -> Response[bytes]:
        after = tag_of(if_match, _DIGEST, "the ETag of a version, in quotes")
        return await graphs.deploy(request, workflow, await request.body(), after)

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
