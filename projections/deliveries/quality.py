"""Quality of the data by week, as the views `data_quality` and `rejected_values` have it."""

from datetime import date
from typing import Final

import msgspec

from headwater.projections.postgres.connections import PooledReader
from headwater.projections.postgres.statements import statement

#: Weeks that may be read at once: their deliveries are counted one by one.
WEEKS_MAX: Final = 53
#: Fields that are returned, those with the most values of each week first.
_FIELDS_MAX: Final = 1_000


class QualityOfWeek(msgspec.Struct, frozen=True, kw_only=True):
    """What came in a week from a source and provider, what was not usable, and what is missing."""

    week: date
    source: str
    provider: str
    deliveries: int
    processed: int
    skipped: int
    parked: int
    dead: int
    duplicates: int
    rows: int
    rejected_records: int
    rejected_values: int
    late_days: int
    missing_days: int


class RejectedValues(msgspec.Struct, frozen=True, kw_only=True):
    """How many values of a field were dropped in a week for a reason."""

    week: date
    source: str
    provider: str
    field: str
    reason: str
    number: int


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Quality by week, newest first."""

    weeks: list[QualityOfWeek]
    rejected_values: list[RejectedValues]


async def quality(reader: PooledReader, *, weeks: int, source: str | None = None) -> Quality:
    """Return the quality of the latest weeks, this one included.

    Args:
        reader: Reads Postgres.
        weeks: Number of weeks, at most `WEEKS_MAX`.
        source: Only of this source.

    Raises:
        StoreUnavailable: Postgres does not answer.
        ValueError: The number of weeks is out of range.
    """
    if not 1 <= weeks <= WEEKS_MAX:
        raise ValueError(f"expected 1 to {WEEKS_MAX} weeks, found {weeks}")
    rows = await reader.answers(statement("data_quality"), weeks=weeks, source=source)
    values = await reader.answers(
        statement("rejected_values"), weeks=weeks, source=source, limit=_FIELDS_MAX
    )
    return Quality(
        weeks=msgspec.convert(rows, list[QualityOfWeek]),
        rejected_values=msgspec.convert(values, list[RejectedValues]),
    )
