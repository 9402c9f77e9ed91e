"""How far a wipe is, and what it has removed, as its partitions say it."""

import msgspec

from headwater.processors.wipes import digest
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import names_user, statement
from headwater.schemas.installed_tables import ALL_TABLES

__all__ = ["Progress", "progress"]

#: What is counted beside the rows of tables.
_COUNTED = ("raw_events", "traces", "dead_letters", "effects", "waiting")


class Progress(msgspec.Struct, frozen=True):
    """How many partitions have begun a wipe and carried it out, and what they have removed."""

    begun: int
    done: int
    deleted: dict[str, int]


async def progress(reader: PooledReader, user_id: str, wipe_id: str) -> Progress:
    """How far a wipe is.

    Errors: StoreUnavailable.
    """
    query = statement("wipe")
    rows = await reader.answers(query, user_sha256=digest(user_id), wipe_id=wipe_id)
    names = [table.name for table in ALL_TABLES if names_user(table)]
    deleted = dict.fromkeys([*names, *_COUNTED], 0)
    for row in rows:
        for name, count in row["found"].items():
            deleted[name] = deleted.get(name, 0) + count
    return Progress(len(rows), sum(row["done_at"] is not None for row in rows), deleted)
