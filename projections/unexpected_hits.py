"""Callbacks that came to the gateway while workers execute the runs; Postgres alone has them."""

from datetime import datetime

import msgspec

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement

__all__ = ["Hits", "hits_of", "record_hits"]


class Hits(msgspec.Struct, frozen=True):
    """How many there were ever, how many in the last 15 minutes, whole ones, and the last."""

    lifetime: int
    last_15m: int
    last_at: datetime | None


async def record_hits(reader: PooledReader, project: str, hits: int, at: datetime) -> None:
    """Records hits.

    Errors: StoreUnavailable, here and below.
    """
    given = {"project_id": project, "hits": hits, "at": at}
    await reader.writes(statement("record_unexpected_hits"), given)


async def hits_of(reader: PooledReader, project: str, at: datetime) -> Hits:
    """The hits of a project, as of a moment."""
    rows = await reader.answers(statement("unexpected_hits"), project_id=project, at=at)
    return msgspec.convert(rows[0], Hits)
