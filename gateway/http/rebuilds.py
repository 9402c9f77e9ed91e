"""What operators do with projections: make them again, look at the difference, switch, and back."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody, QueryParameter

from headwater.gateway.http.openapi import problem_responses
from headwater.gateway.http.problems import Problem
from headwater.projections.postgres.reader import PAGE_MAX, PooledReader
from headwater.projections.rebuilds.rebuilds import (
    Example,
    Rebuild,
    begin,
    find,
    latest,
    request_state,
)

_SHOWN_CHARS: Final = 64
_PAGE_DEFAULT: Final = 50
#: How long a switch is waited for before it is answered as it stands.
_SWITCHED_WITHIN_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.1

Limit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many, at most.")]


class RebuildOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which projection to make again: a table, by its name, or workflows."""

    projection: Annotated[str, msgspec.Meta(min_length=1, max_length=_SHOWN_CHARS)]
    dry_run: bool = False


class RebuildProgress(msgspec.Struct, frozen=True):
    """How many records were read, and how many there are."""

    applied: int
    total: int


class RebuildDifference(msgspec.Struct, frozen=True):
    """How many rows come out otherwise, with some of each kind."""

    added: int
    removed: int
    changed: int
    examples: tuple[Example, ...]


class RebuildState(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuild.

    Shape:  state is building, compared, switching, switched, switching_back, switched_back or
            failed; error says why it failed.
    """

    id: str
    projection: str
    version: int
    state: str
    dry_run: bool
    progress: RebuildProgress
    difference: RebuildDifference
    error: str


class Rebuilds(msgspec.Struct, frozen=True):
    """Rebuilds, the newest first."""

    rebuilds: list[RebuildState]


_COMPARED: Final = (
    "The rows of a table are compared with its topic, so a row that somebody changed in Postgres "
    "by hand is no difference."
)


def rebuild_routes(
    reader: PooledReader, projections: Iterable[str], new_id: Callable[[], str]
) -> list[HTTPRouteHandler]:
    """The routes under /admin/rebuilds."""
    known = tuple(projections)
    problems = problem_responses("not_found", "not_compared", "store_unavailable")

    @post(
        "/rebuilds",
        audit="rebuilds.begin",
        status_code=202,
        summary="Make a projection again, from the first offset on",
        description=f"One of: {', '.join(known)}. The projector carries it out beside the one that "
        f"goes on serving, and compares the two. {_COMPARED} A dry run is never switched to.",
        responses=problem_responses("rebuild_under_way", "store_unavailable"),
    )
    async def rebuild(data: JSONBody[RebuildOrder]) -> RebuildState:
        if data.projection not in known:
            detail = f"projection: expected one of {', '.join(known)}, found {data.projection!a}"
            raise Problem("invalid_parameter", detail, field="projection")
        begun = await begin(reader, new_id(), data.projection, dry_run=data.dry_run)
        if begun is None:
            detail = f"expected no other rebuild of {data.projection} under way, found one"
            raise Problem("rebuild_under_way", detail)
        return _state(begun)

    @get("/rebuilds", summary="Rebuilds, newest first", responses=problem_responses())
    async def listing(limit: Limit = _PAGE_DEFAULT) -> Rebuilds:
        return Rebuilds([_state(each) for each in await latest(reader, limit=limit)])

    @get(
        "/rebuilds/{rebuild_id:str}",
        summary="How far a rebuild is, and what would change",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def look(rebuild_id: FromPath[str]) -> RebuildState:
        return _state(await _found(reader, rebuild_id))

    @post(
        "/rebuilds/{rebuild_id:str}/switch",
        audit="rebuilds.switch",
        status_code=200,
        summary="Put the rows that differ in the place of the old ones, all at once",
        responses=problems,
    )
    async def switch(rebuild_id: FromPath[str]) -> RebuildState:
        return await _move(reader, rebuild_id, "switching", ("compared", "switched_back"))

    @post(
        "/rebuilds/{rebuild_id:str}/back",
        audit="rebuilds.switch_back",
        status_code=200,
        summary="Put the old rows back, all at once",
        description="What later deliveries have said of them stays.",
        responses=problems,
    )
    async def back(rebuild_id: FromPath[str]) -> RebuildState:
        return await _move(reader, rebuild_id, "switching_back", ("switched",))

    return [rebuild, listing, look, switch, back]


async def _found(reader: PooledReader, rebuild_id: str) -> Rebuild:
    found = await find(reader, rebuild_id)
    if found is None:
        raise Problem("not_found", f"There is no rebuild {rebuild_id[:_SHOWN_CHARS]}.")
    return found


async def _move(
    reader: PooledReader, rebuild_id: str, state: str, after: tuple[str, ...]
) -> RebuildState:
    """Asks for a move, and waits for it, but not for long."""
    found = await _found(reader, rebuild_id)
    moved = await request_state(reader, rebuild_id, state, after=after)
    if moved is None:
        expected = " or ".join(after)
        more = ", a dry run" if found.dry_run else ""
        raise Problem(
            "not_compared",
            f"expected a rebuild that is {expected}, and no other of {found.projection} under way, "
            f"found it {found.state}{more}",
        )
    deadline_s = asyncio.get_running_loop().time() + _SWITCHED_WITHIN_S
    while moved.state == state and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(_LOOK_EVERY_S)
        moved = await _found(reader, rebuild_id)
    return _state(moved)


def _state(found: Rebuild) -> RebuildState:
    return RebuildState(
        id=found.id,
        projection=found.projection,
        version=found.version,
        state=found.state,
        dry_run=found.dry_run,
        progress=RebuildProgress(found.applied, found.total),
        difference=RebuildDifference(found.added, found.removed, found.changed, found.examples),
        error=found.error,
    )
