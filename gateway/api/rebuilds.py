"""Operator routes for rebuilds of projections: start, compare, switch and switch back."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody

from headwater.gateway.api.audit import attempt
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.operations import operation_routes, poll_until
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import LIMIT_DEFAULT, Limit
from headwater.gateway.api.request_scope import AnyRequest
from headwater.processors.api_keys import Scope
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.rebuilds.rebuilds import (
    Example,
    Rebuild,
    begin,
    find,
    latest,
    request_state,
)

_SHOWN_CHARS: Final = 64
_POLL_EVERY_S: Final = 0.1
#: A response waits up to 20 s for a switch.
_POLLS: Final = 200


class RebuildOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The projection to rebuild: the name of a table, or workflows.

    With `verify`, its rows in Postgres are only compared with its topic in Kafka.
    """

    projection: Annotated[str, msgspec.Meta(min_length=1, max_length=_SHOWN_CHARS)]
    dry_run: bool = False
    verify: bool = False


class RebuildProgress(msgspec.Struct, frozen=True):
    """Number of records that were read, and of all records."""

    applied: int
    total: int


class RebuildDifference(msgspec.Struct, frozen=True):
    """Number of rows that differ, with examples of each kind.

    `added` are rows that are missing in Postgres, `removed` rows that should not be there. The
    columns of examples have the value in Postgres and the right one.
    """

    added: int
    removed: int
    changed: int
    examples: tuple[Example, ...]


class RebuildState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a rebuild, or of a verification, which has no version.

    `state` is building, compared, switching, switched, switching_back, switched_back or failed, and
    verified for a verification that is complete; `error` states why it failed.
    """

    id: str
    projection: str
    version: int | None
    state: str
    dry_run: bool
    progress: RebuildProgress
    difference: RebuildDifference
    error: str
    created_at: datetime


class Rebuilds(msgspec.Struct, frozen=True):
    """Rebuilds and verifications, newest first, and all projections that can be rebuilt."""

    rebuilds: list[RebuildState]
    projections: tuple[str, ...]


_COMPARED: Final = (
    "A switch makes the rows of Postgres equal to the rebuilt ones, also rows that were changed, "
    "lost or invented there. A verification only compares, with the topic of the table or of the "
    "workflows, which is cheap: it finds what went wrong on the way to Postgres, or in it."
)
_LISTED: Final = problem_responses()
_SWITCH_PROBLEMS: Final = problem_responses(
    "not_found", "not_compared", "nothing_to_switch", "store_unavailable"
)


def rebuild_routes(
    reader: PooledReader, projections: Iterable[str], new_id: Callable[[], str]
) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/rebuilds."""
    known = tuple(projections)

    async def rebuild(request: AnyRequest, data: JSONBody[RebuildOrder]) -> RebuildState:
        return await _begin(request, reader, new_id(), data, known)

    @get("/rebuilds", scope=Scope.SYSTEM_READ, summary="Rebuilds, newest first", responses=_LISTED)
    async def listing(limit: Limit = LIMIT_DEFAULT) -> Rebuilds:
        rows = await latest(reader, limit=limit)
        return Rebuilds([_state(row) for row in rows], known)

    async def look(rebuild_id: FromPath[str]) -> RebuildState:
        return _state(await _get(reader, rebuild_id))

    @post(
        "/rebuilds/{rebuild_id:str}/switch",
        scope=Scope.PROJECTIONS_WRITE,
        audit="rebuilds.switch",
        audits_attempt=True,
        status_code=200,
        summary="Replace the rows that differ, atomically",
        responses=_SWITCH_PROBLEMS,
    )
    async def switch(request: AnyRequest, rebuild_id: FromPath[str]) -> RebuildState:
        after = ("compared", "switched_back")
        return await _move(request, reader, rebuild_id, "switching", after)

    @post(
        "/rebuilds/{rebuild_id:str}/back",
        scope=Scope.PROJECTIONS_WRITE,
        audit="rebuilds.switch_back",
        audits_attempt=True,
        status_code=200,
        summary="Restore the old rows, atomically",
        description="Changes by later deliveries are kept.",
        responses=_SWITCH_PROBLEMS,
    )
    async def back(request: AnyRequest, rebuild_id: FromPath[str]) -> RebuildState:
        return await _move(request, reader, rebuild_id, "switching_back", ("switched",))

    routes = operation_routes(
        "/rebuilds",
        "rebuild",
        rebuild,
        look,
        looks_need=Scope.SYSTEM_READ,
        scope=Scope.PROJECTIONS_WRITE,
        audit="rebuilds.begin",
        audits_attempt=True,
        summary="Rebuild a projection from the first offset",
        description=f"One of: {', '.join(known)}. The projector builds it while the current one "
        f"continues to serve, and compares the two. A dry run cannot be switched to. {_COMPARED}",
        responses=problem_responses("rebuild_under_way", "store_unavailable"),
    )
    return [*routes, listing, switch, back]


async def _begin(
    request: AnyRequest,
    reader: PooledReader,
    rebuild_id: str,
    order: RebuildOrder,
    known: Sequence[str],
) -> RebuildState:
    projection = order.projection
    if projection not in known:
        detail = f"projection: expected one of {', '.join(known)}, found {projection!a}"
        raise Problem("invalid_parameter", detail, field="projection")
    await attempt(request, projection=projection, rebuild=rebuild_id, dry_run=order.dry_run)
    begun = await begin(reader, rebuild_id, projection, dry_run=order.dry_run, verify=order.verify)
    if begun is None:
        detail = f"Another rebuild of {projection} is under way; wait until it has ended."
        raise Problem("rebuild_under_way", detail)
    return _state(begun)


async def _get(reader: PooledReader, rebuild_id: str) -> Rebuild:
    row = await find(reader, rebuild_id)
    if row is None:
        raise Problem("not_found", f"There is no rebuild {rebuild_id[:_SHOWN_CHARS]}.")
    return row


async def _move(
    request: AnyRequest,
    reader: PooledReader,
    rebuild_id: str,
    state: str,
    after: tuple[str, ...],
) -> RebuildState:
    """Request a change of state, and wait for it for some seconds."""
    before = await _get(reader, rebuild_id)
    if before.is_verification:
        raise Problem(
            "nothing_to_switch",
            f"{rebuild_id} is a verification, which only compares; to repair rows, rebuild "
            f"{before.projection} and switch to that",
        )
    await attempt(request, projection=before.projection, rebuild=rebuild_id)
    moved = await request_state(reader, rebuild_id, state, after=after)
    if moved is None:
        expected = " or ".join(after)
        dry_run = ", a dry run" if before.dry_run else ""
        raise Problem(
            "not_compared",
            f"expected a rebuild that is {expected}, and no other rebuild of {before.projection} "
            f"under way, found it {before.state}{dry_run}",
        )
    moved = await poll_until(
        lambda row: row.state != state,
        lambda: _get(reader, rebuild_id),
        polls=_POLLS,
        every_s=_POLL_EVERY_S,
    )
    return _state(moved)


def _state(row: Rebuild) -> RebuildState:
    return RebuildState(
        id=row.id,
        projection=row.projection,
        version=row.version,
        state=row.state,
        dry_run=row.dry_run,
        progress=RebuildProgress(row.applied, row.total),
        difference=RebuildDifference(row.added, row.removed, row.changed, row.examples),
        error=row.error,
        created_at=row.created_at,
    )
