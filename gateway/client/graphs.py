"""Graphs that are deployed, as a program deploys and reads them."""

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
    """What has a definition, as a GraphWorkflow does."""

    def to_dict(self) -> dict[str, Any]:
        """The definition."""


class Graphs:
    """The graphs of a server. Each answer is as of now, whoever deployed."""

    def __init__(self, session: "Session") -> None:
        self._session = session

    async def deploy(self, definition: Mapping[str, Any] | Deployable, after: str) -> GraphVersion:
        """Deploys a definition."""
        document = definition if isinstance(definition, Mapping) else definition.to_dict()
        tag = {"if-match": f'"{after}"'} if after else {}
        # Whoever sends it again deploys the same, unless another version came between.
        repeat = Repeat.UNSAFE if after else Repeat.SAFE
        name = document.get("name")
        if not isinstance(name, str):
            raise ValueError(f"expected a definition with a name, found {name!r}")  # noqa: TRY004
        body = json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        answer = await self._session.transport.send(
            Request(
                method="PUT",
                path=self._session.beside("graphs", name),
                repeat=repeat,
                body=body,
                headers=tag,
            )
        )
        return value_of(answer, GraphVersion)

    async def newest(self) -> list[GraphVersion]:
        """The newest version of each graph."""
        return (await self._get(GraphList, "graphs")).graphs

    async def versions(self, name: str) -> list[GraphVersion]:
        """The versions of a graph, the newest first."""
        return (await self._get(GraphVersions, "graphs", name, "versions")).versions

    async def definition(self, name: str, version: int | None) -> GraphDefinition:
        """A version of a graph, or its newest."""
        number = () if version is None else ("versions", str(version))
        return await self._get(GraphDefinition, "graphs", name, *number)

    async def _get(self, kind: type[T], *segments: str) -> T:
        where = self._session.beside(*segments)
        request = Request(method="GET", path=where, repeat=Repeat.READ)
        return value_of(await self._session.transport.send(request), kind)
