"""Quality of the data: by week, and whether connections still receive data.

The views `data_quality`, `rejected_values`, `skipped_deliveries` and `connection_activity` have the
same numbers.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime
from heapq import nsmallest
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
#: Connections that are read at once: some 0.1 s.
_PAGE: Final = 2_000


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
        silent_after_days: Days after which it is silent, a setting of its source.
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
    silent_after_days: int
    failing_since: datetime | None
    source: str


class ConnectionCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of active connections of a provider in a state."""

    provider: str
    state: str
    connections: int


class ConnectionStates(msgspec.Struct, frozen=True, kw_only=True):
    """Active connections by provider and state, and those that receive no data.

    Attributes:
        connections: Their numbers.
        not_receiving: At most 100 of those without data, silent for longest first.
        counted_at: When counting began; None if they are being counted for the first time.
    """

    connections: list[ConnectionCount] = []
    not_receiving: list[ConnectionActivity] = []
    counted_at: datetime | None = None


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Quality by week, newest first, and active connections that receive no data.

    The fields after `skipped` are those of `ConnectionStates`.
    """

    weeks: list[QualityOfWeek]
    rejected_values: list[RejectedValues]
    skipped: list[SkippedDeliveries]
    connections: list[ConnectionCount]
    not_receiving: list[ConnectionActivity]
    connections_counted_at: datetime | None


async def quality(
    reader: PooledReader, states: ConnectionStates, *, weeks: int, source: str | None = None
) -> Quality:
    """Return the quality of the latest weeks, this one included.

    Args:
        reader: Reads Postgres.
        states: States of connections, which are those of all sources.
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
    skipped = await reader.answers(
        statement("skipped_deliveries"), weeks=weeks, source=source, limit=_FIELDS_MAX
    )
    return Quality(
        weeks=msgspec.convert(rows, list[QualityOfWeek]),
        rejected_values=msgspec.convert(values, list[RejectedValues]),
        skipped=msgspec.convert(skipped, list[SkippedDeliveries]),
        connections=states.connections,
        not_receiving=states.not_receiving,
        connections_counted_at=states.counted_at,
    )


# -- connections


async def connection_states(reader: PooledReader, *, page: int = _PAGE) -> ConnectionStates:
    """Count the active connections by provider and state.

    They are read page by page, so no statement takes long, however many there are.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    counts: Counter[tuple[str, str]] = Counter()
    silent: list[ConnectionActivity] = []
    after: str | None = ""
    counted_at: datetime | None = None
    while after is not None:
        (row,) = await reader.answers(
            statement("connection_states"), after=after, connections=page, listed=_CONNECTIONS_MAX
        )
        for count in msgspec.convert(row["connections"], list[ConnectionCount]):
            counts[count.provider, count.state] += count.connections
        silent += msgspec.convert(row["not_receiving"], list[ConnectionActivity])
        silent = nsmallest(_CONNECTIONS_MAX, silent, key=_longest_first)
        counted_at = counted_at or row["counted_at"]
        after = row["last"]
    return ConnectionStates(
        connections=[
            ConnectionCount(provider=provider, state=state, connections=number)
            for (provider, state), number in sorted(counts.items())
        ],
        not_receiving=silent,
        counted_at=counted_at,
    )


def _longest_first(connection: ConnectionActivity) -> tuple[int, str]:
    return -connection.silent_days, connection.terra_user_id


async def activity_of(reader: PooledReader, user_id: str) -> tuple[ConnectionActivity, ...]:
    """Return what came last of a user's active connections.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("connection_activity_of_user"), user_id=user_id)
    return msgspec.convert(rows, tuple[ConnectionActivity, ...])


async def store_silence_limits(
    reader: PooledReader, limits: Mapping[str, Mapping[str, int]]
) -> None:
    """Store after how many days connections are silent; `connection_activity` reads it.

    Args:
        reader: Writes Postgres.
        limits: By source, the days by maker or `default`.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = [
        {"source": source, "provider": maker, "days": days}
        for source, by_maker in limits.items()
        for maker, days in by_maker.items()
    ]
    await reader.writes(
        statement("store_silence_limits"), {"limits": msgspec.json.encode(rows).decode()}
    )
