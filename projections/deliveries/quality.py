"""Quality of the data: by week, and whether connections still receive data.

The views `data_quality`, `rejected_values`, `skipped_deliveries` and `connection_activity` have the
same numbers.
"""

from collections.abc import Mapping
from datetime import date, datetime
from types import MappingProxyType
from typing import Final

import msgspec

from headwater.projections.postgres.connections import PooledReader
from headwater.projections.postgres.statements import statement

#: Weeks that may be read at once: their deliveries are counted one by one.
WEEKS_MAX: Final = 53
#: Fields and types that are returned, those with the most values of each week first.
_FIELDS_MAX: Final = 1_000
#: Connections that are listed, those that are silent for longest first.
_CONNECTIONS_MAX: Final = 100
_DEFAULTS: Final[Mapping[str, int]] = MappingProxyType({})


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


class SkippedDeliveries(msgspec.Struct, frozen=True, kw_only=True):
    """How many deliveries of a type were skipped in a week for a reason."""

    week: date
    source: str
    provider: str
    type: str
    reason: str
    number: int


class ConnectionActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What came last of an active connection.

    Attributes:
        state: `receiving`, `silent` (no data for some days), or `failing` (Terra has reported an
            error since the last data, so the user may have to connect again).
        last_delivery_at: When the last delivery with data was received.
        last_day: The newest day with data.
        silent_days: Days since then, or since the connection was opened.
        failing_since: When Terra reported the error.
    """

    terra_user_id: str
    user_id: str
    provider: str
    state: str
    connected_at: datetime | None
    last_delivery_at: datetime | None
    last_day: date | None
    silent_days: int
    failing_since: datetime | None


class ConnectionCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of active connections of a provider in a state."""

    provider: str
    state: str
    connections: int


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Quality by week, newest first, and active connections that receive no data.

    `not_receiving` lists at most 100 connections, those that are silent for longest first.
    """

    weeks: list[QualityOfWeek]
    rejected_values: list[RejectedValues]
    skipped: list[SkippedDeliveries]
    connections: list[ConnectionCount]
    not_receiving: list[ConnectionActivity]


async def quality(
    reader: PooledReader,
    *,
    weeks: int,
    source: str | None = None,
    silent_after_days: Mapping[str, int] = _DEFAULTS,
) -> Quality:
    """Return the quality of the latest weeks, this one included.

    Args:
        reader: Reads Postgres.
        weeks: Number of weeks, at most `WEEKS_MAX`.
        source: Only of this source; connections are those of all sources.
        silent_after_days: See `Provider`.

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
    skipped = await reader.answers(
        statement("skipped_deliveries"), weeks=weeks, source=source, limit=_FIELDS_MAX
    )
    silent = await reader.answers(
        statement("connections_not_receiving"),
        silent_after_days=_json(silent_after_days),
        limit=_CONNECTIONS_MAX,
    )
    return Quality(
        weeks=msgspec.convert(rows, list[QualityOfWeek]),
        rejected_values=msgspec.convert(values, list[RejectedValues]),
        skipped=msgspec.convert(skipped, list[SkippedDeliveries]),
        connections=await connection_counts(reader, silent_after_days),
        not_receiving=msgspec.convert(silent, list[ConnectionActivity]),
    )


async def connection_counts(
    reader: PooledReader, silent_after_days: Mapping[str, int] = _DEFAULTS
) -> list[ConnectionCount]:
    """Return the number of active connections by provider and state.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(
        statement("connection_counts"), silent_after_days=_json(silent_after_days)
    )
    return msgspec.convert(rows, list[ConnectionCount])


async def activity_of(
    reader: PooledReader, user_id: str, silent_after_days: Mapping[str, int] = _DEFAULTS
) -> tuple[ConnectionActivity, ...]:
    """Return what came last of a user's active connections.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(
        statement("connection_activity_of_user"),
        user_id=user_id,
        silent_after_days=_json(silent_after_days),
    )
    return msgspec.convert(rows, tuple[ConnectionActivity, ...])


def _json(days: Mapping[str, int]) -> str:
    return msgspec.json.encode(dict(days)).decode()
