"""Queries of the audit log."""

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from headwater.projections.audit.chain import Entry
from headwater.projections.audit.plan import AUDIT
from headwater.projections.postgres.cursors import pack, unpack
from headwater.projections.postgres.reader import PooledReader, Row, bounded
from headwater.projections.postgres.statements import statement
from headwater.projections.projector.offsets import next_offsets
from headwater.schemas.topics import AUDIT as TOPIC

__all__ = ["OFFSET_TOP", "AuditFilter", "Chained", "between", "newest", "next_offset"]

#: After all offsets.
OFFSET_TOP: Final = 2**63 - 1
_OFFSET: Final[Any] = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_TOP)]


class Chained(msgspec.Struct, frozen=True):
    """An entry with the hash of its row."""

    entry: Entry
    hash: bytes


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of entries; None has no effect."""

    action: str | None = None
    result: str | None = None
    key_id: str | None = None
    run_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def newest(
    reader: PooledReader, filters: AuditFilter, *, limit: int, cursor: str | None = None
) -> tuple[list[Chained], str | None]:
    """Return entries, newest first, and the cursor of the next page or None.

    Raises:
        InvalidCursor: The cursor cannot be read.
        StoreUnavailable: Postgres does not answer.
    """
    limit = bounded(limit)
    before: int = OFFSET_TOP if cursor is None else unpack(cursor, _OFFSET)
    parameters = msgspec.structs.asdict(filters) | {"before": before, "limit": limit + 1}
    rows = await reader.answers(statement("audit_logs"), **parameters)
    entries = [_chained(row) for row in rows[:limit]]
    return entries, pack(entries[-1].entry.offset) if len(rows) > limit else None


async def between(
    reader: PooledReader, first: int, last: int = OFFSET_TOP, *, limit: int | None = None
) -> list[Chained]:
    """Return entries in the order of the log, both ends included.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"first": first, "last": last, "limit": limit}
    rows = await reader.answers(statement("audit_logs_between"), **parameters)
    return [_chained(row) for row in rows]


async def next_offset(reader: PooledReader) -> int:
    """Return the next offset of the log to project.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    return (await next_offsets(reader, AUDIT.name, TOPIC)).get(0, 0)


def _chained(row: Row) -> Chained:
    digest: bytes = row.pop("hash")
    return Chained(msgspec.convert(row, Entry), digest)
