"""Rebuilds as Postgres knows them: asked for, looked at, and moved on."""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from headwater.projections.postgres.reader import PooledReader, Row
from headwater.projections.postgres.statements import statement

__all__ = [
    "ASKED_FOR",
    "Example",
    "Rebuild",
    "Wipes",
    "ask",
    "begin",
    "find",
    "latest",
    "under_way",
    "wipes_known",
]

#: States in which somebody has to do something.
ASKED_FOR = ("building", "switching", "switching_back")


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A row that comes out otherwise: its columns with the value before, and the one after."""

    kind: str
    table: str
    key: dict[str, Any]
    columns: dict[str, tuple[Any, Any]]


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuild, whole."""

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
    """What changes with every wipe that Postgres hears of."""

    number: int
    latest: datetime | None


async def wipes_known(reader: PooledReader) -> Wipes:
    """Which wipes Postgres knows of.

    Errors: StoreUnavailable.
    """
    (row,) = await reader.answers(statement("wipes_known"))
    return Wipes(**row)


async def begin(
    reader: PooledReader, rebuild_id: str, projection: str, *, dry_run: bool
) -> Rebuild | None:
    """Asks for a rebuild; None while there is one of the projection under way.

    Errors: StoreUnavailable.
    """
    asked = {"id": rebuild_id, "projection": projection, "dry_run": dry_run}
    return _one(await reader.writes(statement("begin_rebuild"), asked))


async def find(reader: PooledReader, rebuild_id: str) -> Rebuild | None:
    """A rebuild.

    Errors: StoreUnavailable.
    """
    return _one(await reader.answers(statement("rebuild"), id=rebuild_id))


async def latest(reader: PooledReader, *, limit: int) -> list[Rebuild]:
    """Rebuilds, the newest first.

    Errors: StoreUnavailable.
    """
    rows = await reader.answers(statement("rebuilds"), limit=limit)
    return msgspec.convert(rows, list[Rebuild])


async def ask(
    reader: PooledReader, rebuild_id: str, state: str, *, after: tuple[str, ...]
) -> Rebuild | None:
    """Asks for the next move of a rebuild; None where it is in no state for that.

    Errors: StoreUnavailable.
    """
    asked = {"id": rebuild_id, "state": state, "after": list(after)}
    return _one(await reader.writes(statement("ask_rebuild"), asked))


async def under_way(reader: PooledReader) -> list[str]:
    """The rebuilds for which something is to be done.

    Errors: StoreUnavailable.
    """
    rows = await reader.answers(statement("rebuilds_under_way"), states=list(ASKED_FOR))
    return [row["id"] for row in rows]


def _one(rows: list[Row]) -> Rebuild | None:
    return msgspec.convert(rows[0], Rebuild) if rows else None
