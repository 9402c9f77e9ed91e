"""Progress of a wipe and what it has removed, as reported by partitions."""

import msgspec

from headwater.processors.wipes import digest
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import names_user, statement
from headwater.schemas.installed_tables import ALL_TABLES

__all__ = ["Progress", "progress"]

#: Counts in addition to the rows of tables.
_COUNTED = ("raw_events", "traces", "dead_letters", "effects", "waiting")


class Progress(msgspec.Struct, frozen=True):
    """Number of partitions that began and finished a wipe, and what they removed."""

    begun: int
    done: int
    deleted: dict[str, int]


async def progress(reader: PooledReader, user_id: str, wipe_id: str) -> Progress:
    """Return the progress of a wipe.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    query = statement("wipe")
    rows = await reader.answers(query, user_sha256=digest(user_id), wipe_id=wipe_id)
    names = [table.name for table in ALL_TABLES if names_user(table)]
    deleted = dict.fromkeys([*names, *_COUNTED], 0)
    for row in rows:
        for name, count in row["found"].items():
            deleted[name] = deleted.get(name, 0) + count
    return Progress(len(rows), sum(row["done_at"] is not None for row in rows), deleted)
