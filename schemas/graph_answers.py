"""Answers about deployed graphs: their versions, and their definitions."""

from datetime import datetime
from typing import Annotated, Any

from headwater.schemas.answers import Answer, means


class GraphVersion(Answer, frozen=True, kw_only=True):
    """A version of a graph."""

    name: str
    version: Annotated[int, means("Gapless from 1.")]
    digest: Annotated[str, means("SHA-256 of the definition: the same for the same content.")]
    deployed_at: datetime
    app: Annotated[
        str | None,
        means("The app that declares it; absent if it was deployed over HTTP."),
    ] = None


class GraphDefinition(GraphVersion, frozen=True, kw_only=True):
    """A version of a graph with its definition."""

    definition: Annotated[Any, means("The definition, without its defaults.")]


class GraphList(Answer, frozen=True, kw_only=True):
    """The newest version of every graph."""

    graphs: list[GraphVersion]


class GraphVersions(Answer, frozen=True, kw_only=True):
    """The versions of a graph, the newest first."""

    versions: list[GraphVersion]
