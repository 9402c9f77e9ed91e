"""Sync: the rows of the projection tables that changed since a cursor.

Theory of operation: every row names the transaction that wrote it last (`changed_in`). Transactions
end in another order than they began, so "changed_in greater than the last I saw" would skip a row
whose transaction began earlier and ended later. A page therefore ends at the horizon: the oldest
transaction still open when the page was made. Below it nothing new can appear. The price: a
transaction left open anywhere in the same Postgres server that has written something holds back
what changed after it began; the projector's own end within 20 s.

A row that changes again moves forward and is seen again; a cursor may be used any number of times.
Transaction numbers mean nothing in another database, so a cursor names its own. A row that was
deleted is not reported.
"""

from datetime import date, datetime
from typing import Final, Literal

import msgspec
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow

from headwater.projections.errors import CursorExpired, InvalidCursor, RecordRefused
from headwater.projections.postgres.cursors import pack, unpack
from headwater.projections.postgres.reader import PAGE_MAX, PooledReader, Row
from headwater.projections.postgres.statements import (
    filled,
    key_columns,
    listed,
    read_columns,
    statement,
)
from headwater.schemas.tables import TABLES, Table

__all__ = ["SyncPage", "changes"]

#: Sorts before every key: the first column of a key is never empty, a constraint sees to it.
_LOWEST: Final = {"text": "", "date": "-infinity", "timestamptz": "-infinity"}
_BEGINNING: Final = "-infinity"
_KEY_LENGTHS: Final = {table.name: len(table.key) for table in TABLES}


class SyncPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that changed, by table, oldest change first.

    Shape:  give `cursor` to the next call: at once while has_more, else whenever you like.
    """

    tables: dict[str, list[Row]]
    cursor: str
    has_more: bool


class _Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """After the row of this key that this transaction wrote."""

    changed_in: str
    key: tuple[str, ...]


class _Cursor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    database: str
    user_id: str | None = None
    #: Only rows written since then, until the first pass is through.
    since: str = _BEGINNING
    at: dict[str, _Position] = {}


def _changes_query(table: Table, query: str) -> bytes:
    key = key_columns(table)
    after = [
        sql.SQL("{}::{}").format(sql.Placeholder(f"key_{at}"), sql.SQL(column.type))
        for at, column in enumerate(key)
    ]
    return filled(
        query,
        table=sql.Identifier(table.name),
        columns=read_columns(table),
        key=listed([column.identifier for column in key]),
        after=listed(list(after)),
    )


_CHANGES: Final = {table.name: _changes_query(table, "changes") for table in TABLES}
_CHANGES_OF_USER: Final = {table.name: _changes_query(table, "changes_of_user") for table in TABLES}


async def changes(
    reader: PooledReader,
    *,
    after: str | None,
    since: datetime | None = None,
    limit: int,
    user_id: str | None = None,
) -> SyncPage:
    """Reads the next page of what changed.

    Shape:  at most `limit` rows in all. Without `after` everything, or what was written since
            `since`, which counts only then. With `user_id` the rows of that user alone.
    Errors: InvalidCursor, CursorExpired, StoreUnavailable; ValueError for a limit out of range.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"expected a limit of 1 to {PAGE_MAX}, found {limit}")
    try:
        async with reader.connection() as connection:
            database, horizon = await _horizon(connection)
            if after is not None:
                cursor = _checked(unpack(after, _Cursor), database, horizon, user_id)
            else:
                begin = _BEGINNING if since is None else since.isoformat()
                cursor = _Cursor(database=database, user_id=user_id, since=begin)
            return await _page(connection, cursor, horizon, limit)
    except RecordRefused as error:
        raise InvalidCursor(
            "expected a cursor from an earlier page, found other values in it; start without one"
        ) from error


async def _horizon(connection: AsyncConnection[DictRow]) -> tuple[str, str]:
    found = await connection.execute(statement("horizon"))
    row = await found.fetchone()
    assert row is not None, "migrations name the database"  # noqa: S101
    return row["database"], row["horizon"]


def _checked(cursor: _Cursor, database: str, horizon: str, user_id: str | None) -> _Cursor:
    if cursor.user_id != user_id:
        raise InvalidCursor("expected a cursor of the same user; start without one")
    positions = cursor.at.values()
    if not all(_is_transaction(position.changed_in) for position in positions):
        raise InvalidCursor("expected a cursor from an earlier page; start without one")
    if any(len(p.key) != _KEY_LENGTHS.get(name) for name, p in cursor.at.items()):
        raise InvalidCursor("expected a cursor of the present tables; start without one")
    went_back = any(int(position.changed_in) > int(horizon) for position in positions)
    if cursor.database != database or went_back:
        raise CursorExpired(
            f"expected a cursor of database {database}, found one of {cursor.database} or of a "
            "later state; usual cause: the projections were rebuilt. Start without one"
        )
    return cursor


def _is_transaction(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


async def _page(
    connection: AsyncConnection[DictRow], cursor: _Cursor, horizon: str, limit: int
) -> SyncPage:
    tables: dict[str, list[Row]] = {}
    at = dict(cursor.at)
    left, has_more = limit, False
    for table in TABLES:
        tables[table.name] = []
        if has_more:
            continue
        # One more than fits tells whether anything is left.
        found = await _read(connection, table, cursor, horizon, left + 1)
        has_more = len(found) > left
        rows = found[:left]
        left -= len(rows)
        if not has_more:
            at[table.name] = _Position(horizon, _lowest_key(table))
        elif rows:
            at[table.name] = _after(table, rows[-1])
        tables[table.name] = [_without_bookkeeping(row) for row in rows]
    since = cursor.since if has_more else _BEGINNING
    next_cursor = msgspec.structs.replace(cursor, at=at, since=since)
    return SyncPage(tables=tables, cursor=pack(next_cursor), has_more=has_more)


async def _read(
    connection: AsyncConnection[DictRow], table: Table, cursor: _Cursor, horizon: str, limit: int
) -> list[Row]:
    position = cursor.at.get(table.name) or _Position("0", _lowest_key(table))
    parameters = {
        **{f"key_{at}": text for at, text in enumerate(position.key)},
        "changed_in": position.changed_in,
        "horizon": horizon,
        "since": cursor.since,
        "user_id": cursor.user_id,
        "limit": limit,
    }
    queries = _CHANGES if cursor.user_id is None else _CHANGES_OF_USER
    found = await connection.execute(queries[table.name], parameters)
    return await found.fetchall()


def _lowest_key(table: Table) -> tuple[str, ...]:
    return tuple(_LOWEST[column.type] for column in key_columns(table))


def _after(table: Table, row: Row) -> _Position:
    values = (row[column.name] for column in key_columns(table))
    return _Position(
        row["written_in"],
        tuple(v.isoformat() if isinstance(v, date) else str(v) for v in values),
    )


def _without_bookkeeping(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "written_in"}
