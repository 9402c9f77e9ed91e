"""Rebuilds in Postgres: request them, read them, and request their next state."""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from headwater.projections.postgres.reader import PooledReader, Row
from headwater.projections.postgres.statements import statement

__all__ = [
    "PENDING_STATES",
    "Example",
    "Rebuild",
    "Wipes",
    "begin",
    "find",
    "latest",
    "request_state",
    "under_way",
    "wipes_known",
]

#: States in which work is pending.
PENDING_STATES = ("building", "switching", "switching_back")


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A row that differs: its columns with the values before and after."""

    kind: str
    table: str
    key: dict[str, Any]
    columns: dict[str, tuple[Any, Any]]


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuild with all details."""

    id: str
    projection: str
    version: int
    dry_run: bool
    state: str
    applied: int
    total: int
    added: int
    removed: int
    changed: int
    examples: tuple[Example, ...]
    ends: tuple[int, ...]
    sent: int
    error: str
    created_at: datetime


class Wipes(NamedTuple):
    """Changes with every wipe that Postgres receives."""

    number: int
    latest: datetime | None


async def wipes_known(reader: PooledReader) -> Wipes:
    """Return which wipes Postgres has received.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    (row,) = await reader.answers(statement("wipes_known"))
    return Wipes(**row)


async def begin(
    reader: PooledReader, rebuild_id: str, projection: str, *, dry_run: bool
) -> Rebuild | None:
    """Request a rebuild; None if one of this projection is in progress.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"id": rebuild_id, "projection": projection, "dry_run": dry_run}
    return _one(await reader.writes(statement("begin_rebuild"), parameters))


async def find(reader: PooledReader, rebuild_id: str) -> Rebuild | None:
    """Return a rebuild.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    return _one(await reader.answers(statement("rebuild"), id=rebuild_id))


async def latest(reader: PooledReader, *, limit: int) -> list[Rebuild]:
    """Return rebuilds, newest first.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("rebuilds"), limit=limit)
    return msgspec.convert(rows, list[Rebuild])


async def request_state(
    reader: PooledReader, rebuild_id: str, state: str, *, after: tuple[str, ...]
) -> Rebuild | None:
    """Request the next state of a rebuild; None if its current state does not allow that.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"id": rebuild_id, "state": state, "after": list(after)}
    return _one(await reader.writes(statement("request_rebuild_state"), parameters))


async def under_way(reader: PooledReader) -> list[str]:
    """Return the rebuilds with pending work.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("rebuilds_under_way"), states=list(PENDING_STATES))
    return [row["id"] for row in rows]


def _one(rows: list[Row]) -> Rebuild | None:
    return msgspec.convert(rows[0], Rebuild) if rows else None
