"""Deployed graphs: deploy and read them."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headwater.gateway.client.answers import value_of
from headwater.gateway.client.requests import Request
from headwater.gateway.client.retries import Repeat
from headwater.schemas.graph_answers import (
    GraphDefinition,
    GraphList,
    GraphVersion,
    GraphVersions,
)

if TYPE_CHECKING:
    from headwater.gateway.client.session import Session

T = TypeVar("T")


class Deployable(Protocol):
    """Anything with a definition, for example a GraphWorkflow."""

    def to_dict(self) -> dict[str, Any]:
        """The definition."""


class Graphs:
    """Graphs of a server. Answers are current, also after other clients' deployments."""

    def __init__(self, session: "Session") -> None:
        self._session = session

    async def deploy(self, definition: Mapping[str, Any] | Deployable, after: str) -> GraphVersion:
        """Deploy a definition."""
        document = definition if isinstance(definition, Mapping) else definition.to_dict()
        tag = {"if-match": f'"{after}"'} if after else {}
        # Repeating it deploys the same version, unless another one was deployed in between.
        repeat = Repeat.UNSAFE if after else Repeat.SAFE
        name = document.get("name")
        if not isinstance(name, str):
            raise ValueError(f"expected a definition with a name, found {name!r}")  # noqa: TRY004
        body = json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        answer = await self._session.transport.send(
            Request(
                method="PUT",
                path=self._session.sibling_path("graphs", name),
                repeat=repeat,
                body=body,
                headers=tag,
            )
        )
        return value_of(answer, GraphVersion)

    async def newest(self) -> list[GraphVersion]:
        """Return the newest version of every graph."""
        return (await self._get(GraphList, "graphs")).graphs

    async def versions(self, name: str) -> list[GraphVersion]:
        """Return the versions of a graph, newest first."""
        return (await self._get(GraphVersions, "graphs", name, "versions")).versions

    async def definition(self, name: str, version: int | None) -> GraphDefinition:
        """Return a version of a graph, or its newest."""
        number = () if version is None else ("versions", str(version))
        return await self._get(GraphDefinition, "graphs", name, *number)

    async def _get(self, kind: type[T], *segments: str) -> T:
        where = self._session.sibling_path(*segments)
        request = Request(method="GET", path=where, repeat=Repeat.READ)
        return value_of(await self._session.transport.send(request), kind)
