"""What can be asked of the projections: named SQL in, typed rows out.

A `Reader` never waits long for a Postgres that is away: it answers StoreUnavailable within about
two seconds, and works again by itself when Postgres does.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from headwater.projections.errors import InvalidCursor, RecordRefused, store_edge
from headwater.projections.postgres.cursors import pack, unpack
from headwater.projections.postgres.pooled import Pooled
from headwater.projections.postgres.statements import filled, read_columns, statement
from headwater.schemas.tables import TABLES

__all__ = [
    "PAGE_MAX",
    "DeadLetter",
    "DeadLetterPage",
    "DeadLetterWhole",
    "Hop",
    "Outcome",
    "OutcomeCount",
    "Position",
    "ProjectionError",
    "Reader",
    "Row",
    "Trace",
    "bounded",
]

#: A page of anything; more would hold a whole answer in memory twice.
PAGE_MAX: Final = 10_000
#: Requests that read at the same time; the embedded server takes 50 connections in all.
_CONNECTIONS_MAX: Final = 8
#: How long a request waits for a connection, and so how soon it says that Postgres is away.
_CONNECT_TIMEOUT_S: Final = 2.0
#: After this the pool gives up connecting until somebody asks again; its pauses would grow.
_RECONNECT_TIMEOUT_S: Final = 3.0
#: A frozen server does not even refuse; statement_timeout ends slow queries at 5 s.
_ANSWER_TIMEOUT_S: Final = 8.0

Row: TypeAlias = dict[str, Any]

_PREVIEWS: Final = {
    table.name: filled(
        "preview_rows", table=sql.Identifier(table.name), columns=read_columns(table)
    )
    for table in TABLES
}
_TRACES_BY_LEVEL: Final = {
    level: filled("traces_by_level", level=sql.Literal(level)) for level in ("info", "error")
}
_TRACES_BY_USER_LEVEL: Final = {
    level: filled("traces_by_user_level", level=sql.Literal(level)) for level in _TRACES_BY_LEVEL
}


class OutcomeCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many deliveries came to the same end."""

    status: str
    reason: str
    deliveries: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a delivery."""

    event_id: str
    request_id: str
    source: str
    type: str
    subject: str
    user_id: str | None
    status: str
    reason: str
    rows: int
    partition: int
    offset: int
    received_at: datetime
    admitted_at: datetime
    parked_at: datetime | None
    released_at: datetime | None
    at: datetime
    stage: str
    position: str


class Hop(msgspec.Struct, frozen=True):
    """One stage of a delivery's journey.

    Shape:  stage is one of received, admitted, duplicate, parked, released, normalized, dead.
    Units:  at_ms in Unix milliseconds; position as topic/partition@offset, empty when not known.
    """

    stage: str
    at_ms: int
    position: str
    detail: str


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery's journey, or that of a copy that was dropped."""

    request_id: str
    event_id: str
    user_id: str | None
    level: str
    hops: tuple[Hop, ...]
    started_at: datetime
    ended_at: datetime


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be processed, and why; partition and offset name it."""

    partition: int
    offset: int
    event_id: str | None
    request_id: str | None
    original_topic: str | None
    original_partition: int | None
    original_offset: int | None
    reason: str
    message: str | None
    stage: str | None
    dead_at: datetime
    replayed_at: datetime | None


class DeadLetterWhole(DeadLetter, frozen=True, kw_only=True):
    """A dead letter with its bytes and headers."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | None], ...]


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, newest first; `cursor` continues with older ones, None when there are none."""

    rows: tuple[DeadLetter, ...]
    cursor: str | None


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a projection has applied a partition."""

    projection: str
    topic: str
    partition: int
    next_offset: int
    applied_at: datetime | None


class ProjectionError(msgspec.Struct, frozen=True, kw_only=True):
    """A record that the projector could not apply."""

    topic: str
    partition: int
    offset: int
    error: str
    value: bytes | None
    at: datetime


class _Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    dead_at: datetime
    partition: int
    offset: int


class Reader(Pooled[AsyncConnection[DictRow]]):
    """Reads the projections through a pool of connections.

    Errors: StoreUnavailable from every method but `open` and `close`.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__(
            AsyncConnectionPool(
                dsn,
                connection_class=AsyncConnection[DictRow],
                kwargs={
                    "autocommit": True,
                    "row_factory": dict_row,
                    "connect_timeout": int(_CONNECT_TIMEOUT_S),
                    "application_name": "headwater-reader",
                },
                min_size=1,
                max_size=_CONNECTIONS_MAX,
                timeout=_CONNECT_TIMEOUT_S,
                reconnect_timeout=_RECONNECT_TIMEOUT_S,
                configure=_configure,
                check=AsyncConnectionPool.check_connection,
                open=False,
            )
        )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        """A connection for several queries, its errors translated."""
        with store_edge("answer a query"):
            async with asyncio.timeout(_ANSWER_TIMEOUT_S), self._pool.connection() as connection:
                yield connection

    async def outcome_counts(self) -> list[OutcomeCount]:
        """How many deliveries came to which end."""
        return msgspec.convert(await self._rows("outcome_counts"), list[OutcomeCount])

    async def outcome(self, event_id: str) -> Outcome | None:
        """What became of a delivery; None when it is not known (yet)."""
        rows = await self._rows("outcome", event_id=event_id)
        return msgspec.convert(rows[0], Outcome) if rows else None

    async def traces(
        self,
        *,
        request_id: str | None = None,
        user_id: str | None = None,
        level: str | None = None,
        limit: int,
    ) -> list[Trace]:
        """Journeys, the newest first; `request_id` names one and makes the rest superfluous."""
        limit = bounded(limit)
        query = _traces_query(request_id, user_id, level)
        if query is None:
            return []
        rows = await self.answers(query, request_id=request_id, user_id=user_id, limit=limit)
        return msgspec.convert(rows, list[Trace])

    async def dead_letters(self, *, limit: int, after: str | None = None) -> DeadLetterPage:
        """Dead letters, newest first.

        Errors: InvalidCursor.
        """
        limit = bounded(limit)
        place = None if after is None else unpack(after, _Place)
        try:
            rows = await self._rows(
                "dead_letters",
                dead_at="infinity" if place is None else place.dead_at,
                partition=0 if place is None else place.partition,
                offset=0 if place is None else place.offset,
                limit=limit + 1,
            )
        except RecordRefused as error:
            raise InvalidCursor(
                "expected a cursor from an earlier page, found one out of range; start without one"
            ) from error
        page = msgspec.convert(rows[:limit], tuple[DeadLetter, ...])
        more = len(rows) > limit
        last = _Place(page[-1].dead_at, page[-1].partition, page[-1].offset) if more else None
        return DeadLetterPage(rows=page, cursor=pack(last) if last else None)

    async def dead_letter(self, partition: int, offset: int) -> DeadLetterWhole | None:
        """One dead letter with its bytes; None when there is none at that position."""
        rows = await self._rows("dead_letter", partition=partition, offset=offset)
        return msgspec.convert(rows[0], DeadLetterWhole) if rows else None

    async def pending_dead_letters(
        self, *, limit: int, after: tuple[int, int] = (-1, -1)
    ) -> list[DeadLetter]:
        """Dead letters that were never replayed, by position, after a (partition, offset)."""
        rows = await self._rows(
            "pending_dead_letters", partition=after[0], offset=after[1], limit=bounded(limit)
        )
        return msgspec.convert(rows, list[DeadLetter])

    async def projection_positions(self) -> list[Position]:
        """How far every projection is."""
        return msgspec.convert(await self._rows("projection_positions"), list[Position])

    async def projection_errors(self, *, limit: int) -> list[ProjectionError]:
        """Records that the projector could not apply, newest first."""
        rows = await self._rows("projection_errors", limit=bounded(limit))
        return msgspec.convert(rows, list[ProjectionError])

    async def preview(self, table: str, *, limit: int) -> list[Row]:
        """The rows of a projection table that changed last, to look at.

        Errors: ValueError for another table.
        """
        if table not in _PREVIEWS:
            raise ValueError(f"expected one of {', '.join(_PREVIEWS)}, found {table}")
        async with self.connection() as connection:
            cursor = await connection.execute(_PREVIEWS[table], {"limit": bounded(limit)})
            return await cursor.fetchall()

    async def _rows(self, query: str, **parameters: object) -> list[Row]:
        return await self.answers(statement(query), **parameters)

    async def answers(self, query: bytes, **parameters: object) -> list[Row]:
        """The rows of a query; none where a parameter is nothing that Postgres could hold."""
        if not all(_storable(value) for value in parameters.values()):
            return []
        async with self.connection() as connection:
            cursor = await connection.execute(query, parameters)
            return await cursor.fetchall()


def _traces_query(request_id: str | None, user_id: str | None, level: str | None) -> bytes | None:
    """The query for what is asked; None for a level that there is not."""
    if request_id is not None:
        return statement("traces_by_request")
    if level is not None:
        return (_TRACES_BY_LEVEL if user_id is None else _TRACES_BY_USER_LEVEL).get(level)
    return statement("traces_newest" if user_id is None else "traces_by_user")


def bounded(limit: int) -> int:
    """A number of rows to ask for.

    Errors: ValueError beyond 1 to PAGE_MAX.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"expected a limit of 1 to {PAGE_MAX}, found {limit}")
    return limit


def _storable(value: object) -> bool:
    """Tells whether Postgres could hold a value at all; what it cannot hold, nothing equals."""
    if not isinstance(value, str):
        return True
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


async def _configure(connection: AsyncConnection[DictRow]) -> None:
    await connection.execute(statement("reader_session"))
