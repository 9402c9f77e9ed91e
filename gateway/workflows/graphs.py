"""What is done with graphs: they are deployed, and read as they were deployed."""

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec
from litestar import Response

from headwater.gateway.http.json_bodies import check_json
from headwater.gateway.http.problems import Problem
from headwater.processors.graph.catalogue import Catalogue, Deployed, NotDeployed, Outcome, Version
from headwater.processors.graph.definition import (
    INVALID_DEFINITION,
    DefinitionInvalid,
    to_dict,
)
from headwater.processors.graph.definition import (
    Problem as Mistake,
)
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.runs.limits import BUILTIN_PREFIX
from headwater.schemas.answers import Answer
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.failures import GRAPH_INVALID, GRAPH_NOT_FOUND, GRAPH_OF_APP
from headwater.schemas.graph_answers import (
    GraphDefinition,
    GraphList,
    GraphVersion,
    GraphVersions,
)

#: Mistakes that an answer names; whoever mends these sees the others.
_MISTAKES_SHOWN: Final = 100


class Definitions(Protocol):
    """The graphs that are deployed, as the log has them."""

    async def catch_up(self) -> Catalogue:
        """All that was deployed before the call."""

    async def deploy(self, record: GraphDeployed) -> Outcome:
        """Deploys a definition; says what came of it once it is durable."""

    async def stop(self) -> None:
        """Disconnects."""


class Graphs:
    """Deploys graphs, and answers what is asked of them: always the newest."""

    def __init__(self, definitions: Definitions, *, clock: Callable[[], int]) -> None:
        self._definitions = definitions
        self._clock = clock

    async def deploy(self, name: str, body: bytes, after: str) -> Response[bytes]:
        """Deploys a definition.

        Shape:  after is the digest that the newest version has to have, "" for any.
        Errors: Problem, here and in all below.
        """
        graph = await asyncio.to_thread(_read, name, body)
        record = GraphDeployed(
            name=name,
            document=json.dumps(to_dict(graph.definition), ensure_ascii=False),
            digest=graph.digest,
            app="",
            after=after,
            at_ms=self._clock(),
        )
        match await self._definitions.deploy(record):
            case Deployed(version, new):
                status = HTTPStatus.CREATED if new else HTTPStatus.OK
                return _answer(_shown(version), status, version)
            case NotDeployed(code, message):
                raise Problem(code, message)
            case taken:
                raise AssertionError(taken)

    async def listing(self) -> Response[bytes]:
        """The newest version of each graph."""
        catalogue = await self._definitions.catch_up()
        newest = [versions[-1] for _, versions in sorted(catalogue.versions.items())]
        return _answer(GraphList(graphs=[_shown(each) for each in newest]))

    async def versions(self, name: str) -> Response[bytes]:
        """The versions of a graph, the newest first."""
        catalogue = await self._definitions.catch_up()
        found = catalogue.versions.get(name)
        if found is None:
            raise _not_found(catalogue, name)
        return _answer(GraphVersions(versions=[_shown(each) for each in reversed(found)]))

    async def definition(self, name: str, number: int | None = None) -> Response[bytes]:
        """A version of a graph, whole; the newest unless another is named."""
        catalogue = await self._definitions.catch_up()
        found = catalogue.newest(name) if number is None else catalogue.version(name, number)
        if found is None:
            raise _not_found(catalogue, name, number)
        definition = msgspec.Raw(found.document.encode())
        whole = GraphDefinition(**_fields(found), definition=definition)
        return _answer(whole, HTTPStatus.OK, found)


def _read(name: str, body: bytes) -> Graph:
    """The definition in a body, checked."""
    if name.startswith(BUILTIN_PREFIX):
        raise Problem(
            GRAPH_OF_APP,
            f"expected a name that does not begin with {BUILTIN_PREFIX}, as those do that come "
            f"with Headwater, found {name!r}",
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
        raise _invalid((Mistake(INVALID_DEFINITION, "name", message),))
    return graph


def _invalid(mistakes: tuple[Mistake, ...]) -> Problem:
    shown = mistakes[:_MISTAKES_SHOWN]
    more = f"; {len(mistakes) - len(shown)} more" if len(mistakes) > len(shown) else ""
    lines = "; ".join(f"{each.code} at {each.path}: {each.message}" for each in shown)
    return Problem(
        GRAPH_INVALID,
        lines + more,
        field=shown[0].path,
        errors=[{"code": each.code, "path": each.path, "message": each.message} for each in shown],
    )


def _not_found(catalogue: Catalogue, name: str, number: int | None = None) -> Problem:
    versions = catalogue.versions.get(name)
    if versions:
        return Problem(
            GRAPH_NOT_FOUND,
            f"expected a version of {name[:64]!r} from 1 to {len(versions)}, found {number}",
        )
    return Problem(GRAPH_NOT_FOUND, f"expected a graph that is deployed, found {name[:64]!r}")


def _shown(version: Version) -> GraphVersion:
    return GraphVersion(**_fields(version))


def _fields(version: Version) -> Mapping[str, Any]:
    return {
        "name": version.name,
        "version": version.number,
        "digest": version.digest,
        "deployed_at": datetime.fromtimestamp(version.deployed_at_ms / 1000, UTC),
        "app": version.app or None,
    }


def _answer(
    found: Answer, status: int = HTTPStatus.OK, version: Version | None = None
) -> Response[bytes]:
    tag = {} if version is None else {"etag": f'"{version.digest}"'}
    return Response(
        msgspec.json.encode(found),
        status_code=status,
        media_type="application/json",
        headers=tag,
    )
