"""What can be asked of the audit log."""

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

__all__ = ["OFFSET_TOP", "Chained", "Wanted", "between", "newest", "next_offset"]

#: Beyond all offsets.
OFFSET_TOP: Final = 2**63 - 1
_OFFSET: Final[Any] = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_TOP)]


class Chained(msgspec.Struct, frozen=True):
    """An entry with the hash of its row."""

    entry: Entry
    hash: bytes


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries; None lets everything pass."""

    action: str | None = None
    result: str | None = None
    key_id: str | None = None
    run_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def newest(
    reader: PooledReader, wanted: Wanted, *, limit: int, cursor: str | None = None
) -> tuple[list[Chained], str | None]:
    """Entries, the newest first, and the cursor of the next page; None where there is none.

    Errors: InvalidCursor; StoreUnavailable, here and below.
    """
    limit = bounded(limit)
    before: int = OFFSET_TOP if cursor is None else unpack(cursor, _OFFSET)
    asked = msgspec.structs.asdict(wanted) | {"before": before, "limit": limit + 1}
    rows = await reader.answers(statement("audit_logs"), **asked)
    found = [_chained(row) for row in rows[:limit]]
    return found, pack(found[-1].entry.offset) if len(rows) > limit else None


async def between(
    reader: PooledReader, first: int, last: int = OFFSET_TOP, *, limit: int | None = None
) -> list[Chained]:
    """Entries in the order of the log, both ends included."""
    asked = {"first": first, "last": last, "limit": limit}
    return [_chained(row) for row in await reader.answers(statement("audit_logs_between"), **asked)]


async def next_offset(reader: PooledReader) -> int:
    """Up to where the log has rows."""
    return (await next_offsets(reader, AUDIT.name, TOPIC)).get(0, 0)


def _chained(row: Row) -> Chained:
    held: bytes = row.pop("hash")
    return Chained(msgspec.convert(row, Entry), held)
