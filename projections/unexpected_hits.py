"""Callbacks that the gateway receives although workers execute the runs; only in Postgres."""

from datetime import datetime

import msgspec

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement

__all__ = ["Hits", "hits_of", "record_hits"]


class Hits(msgspec.Struct, frozen=True):
    """Number of hits ever and in the last 15 whole minutes, and the time of the last."""

    lifetime: int
    last_15m: int
    last_at: datetime | None


async def record_hits(reader: PooledReader, project: str, hits: int, at: datetime) -> None:
    """Record hits.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"project_id": project, "hits": hits, "at": at}
    await reader.writes(statement("record_unexpected_hits"), parameters)


async def hits_of(reader: PooledReader, project: str, at: datetime) -> Hits:
    """Return the hits of a project at a time.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("unexpected_hits"), project_id=project, at=at)
    return msgspec.convert(rows[0], Hits)
