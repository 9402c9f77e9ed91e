"""Sync: the rows of the projection tables that changed since a cursor, and those that were deleted.

Theory of operation: every row names the transaction that wrote it last (`changed_in`). Transactions
end in another order than they began, so "changed_in greater than the last I saw" would skip a row
whose transaction began earlier and ended later. A page therefore ends at the horizon: the oldest
transaction still open when the page was made. Below it nothing new can appear. The price: a
transaction left open anywhere in the same Postgres server that has written something holds back
what changed after it began; the projector's own end within 20 s.

A row that changes again moves forward and is seen again; a cursor may be used any number of times.
Transaction numbers mean nothing in another database, so a cursor names its own.

Deletions are kept beside the rows for 30 days. Those up to the horizon come before any row of a
page: a row that was deleted and came back is deleted first. A cursor that is older has expired.

Epochs. A server that crashed, or a replica that took over, may have lost the end of what was
written, and gives the lost transaction numbers to other rows. So a projector begins an epoch with
each of its connections, in a transaction of its own before any rows. What it writes then is later
than that; what was lost is read from Kafka again, and so is later, too. A cursor of an earlier
epoch goes back to where the next one began: whatever it had seen and was lost, it sees again.
"""

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import date, datetime
from typing import Annotated, Final, Literal, cast

import msgspec
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow

from headwater.projections.errors import CursorExpired, InvalidCursor
from headwater.projections.postgres.cursors import pack, unpack, valid_cursor
from headwater.projections.postgres.reader import PAGE_MAX, PooledReader, Row
from headwater.projections.postgres.statements import (
    filled,
    key_columns,
    listed,
    read_columns,
    statement,
)
from headwater.projections.projector.store import SYNC_KEPT_DAYS
from headwater.schemas.installed_tables import ALL_TABLES, TABLE_BY_NAME
from headwater.schemas.tables import Table

__all__ = ["SYNCED", "SyncPage", "changes"]

#: Sorts before every key: the first column of a key is never empty, a constraint sees to it.
_LOWEST: Final = {"text": "", "date": "-infinity", "timestamptz": "-infinity"}
_BEGINNING: Final = "-infinity"
#: What the columns of a deleted row's key are, made of their JSON: the same as in a row.
_READ: Final[dict[str, Callable[[str], object]]] = {
    "text": str,
    "date": date.fromisoformat,
    "timestamptz": datetime.fromisoformat,
}
#: The tables whose rows are read here.
SYNCED: Final = tuple(TABLE_BY_NAME)
_DELETIONS: Final = "deletions"
#: Of all rows of a user who was wiped: the digest stands for the user.
_WIPED: Final = "user_sha256"
_DELETED: Final = statement(_DELETIONS)
#: After no deletion of a transaction.
_NO_DELETION: Final = ("", "null")
_KEY_LENGTHS: Final = {_DELETIONS: 2} | {table.name: len(table.key) for table in ALL_TABLES}
#: Characters of text in a page: a night may have 10 MiB of them.
PAGE_CHARS_MAX: Final = 4 * 1024 * 1024


def _described(table: Table) -> str:
    """A table in a line: its key, its columns, and what it is."""
    what = (inspect.getdoc(table.kind) or "").partition("\n")[0]
    return f"`{table.name}` ({', '.join((*table.key_names, *table.column_names))}): {what}"


class SyncPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that changed, by table, oldest change first; before them those that were deleted.

    Shape:  a row that was deleted is its key and `"deleted": true`. In the place of a key may be
            `user_sha256`: all rows of that user in the table are deleted, who was wiped. Give
            `cursor` to the next call: at once while has_more, else whenever you like, within 30
            days.
    """

    tables: Annotated[
        dict[str, list[Row]],
        msgspec.Meta(description=" ".join(["Rows by table.", *map(_described, ALL_TABLES)])),
    ]
    cursor: str
    has_more: bool


class _Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """After the row of this key that this transaction wrote."""

    changed_in: str
    key: tuple[str, ...]


class _Cursor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    database: str
    #: Empty before the first one.
    epoch: str
    user_id: str | None = None
    #: Only rows of this table.
    table: str | None = None
    #: Only rows written since then, until the first pass is through.
    since: str = _BEGINNING
    #: By table, `deletions` among them.
    at: dict[str, _Position]


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """How Postgres stands, as the query `horizon` has it."""

    database: str
    horizon: str
    deletions_pruned: str
    epoch: str
    epoch_known: bool
    next_epoch_began: str | None


def _changes_query(table: Table, asked: sql.SQL) -> bytes:
    key = key_columns(table)
    after = [
        sql.SQL("{}::{}").format(sql.Placeholder(f"key_{at}"), sql.SQL(column.type))
        for at, column in enumerate(key)
    ]
    return filled(
        "changes",
        asked=asked,
        table=sql.Identifier(table.name),
        columns=read_columns(table),
        key=listed([column.identifier for column in key]),
        after=listed(list(after)),
    )


_CHANGES: Final = {table.name: _changes_query(table, sql.SQL("true")) for table in ALL_TABLES}
_CHANGES_OF_USER: Final = {
    table.name: _changes_query(table, sql.SQL("user_id = %(user_id)s")) for table in ALL_TABLES
}


async def changes(
    reader: PooledReader,
    *,
    after: str | None,
    since: datetime | None = None,
    limit: int,
    user_id: str | None = None,
    table: str | None = None,
) -> SyncPage:
    """Reads the next page of what changed.

    Shape:  at most `limit` rows in all, of large ones fewer (`PAGE_CHARS_MAX`). Without `after`
            everything, or what was written since `since`, which counts only then. With `user_id`
            the rows of that user alone, with `table`, one of SYNCED, those of that table.
    Errors: InvalidCursor, CursorExpired, StoreUnavailable; ValueError for a limit out of range, or
            another table.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"expected a limit of 1 to {PAGE_MAX}, found {limit}")
    if table is not None and table not in TABLE_BY_NAME:
        raise ValueError(f"expected one of {', '.join(SYNCED)}, found {table!r}")
    given = None if after is None else unpack(after, _Cursor)
    with valid_cursor():
        async with reader.connection() as connection:
            place = await _place(connection, given.epoch if given else "")
            if given is not None:
                cursor = _checked(given, place, user_id, table)
            else:
                cursor = _first(place, since, user_id, table)
            return await _page(connection, cursor, place.horizon, limit)


async def _place(connection: AsyncConnection[DictRow], epoch: str) -> _Place:
    found = await connection.execute(statement("horizon"), {"epoch": epoch})
    return msgspec.convert(await found.fetchone(), _Place)


def _first(
    place: _Place, since: datetime | None, user_id: str | None, table: str | None
) -> _Cursor:
    """Where a reader begins that has nothing yet: what was deleted before concerns only `since`."""
    begin = _BEGINNING if since is None else since.isoformat()
    deletions = _Position(place.horizon if since is None else "0", _NO_DELETION)
    return _Cursor(
        database=place.database, epoch=place.epoch, user_id=user_id, table=table,
        since=begin,
        at={_DELETIONS: deletions},
    )  # fmt: skip


def _checked(cursor: _Cursor, place: _Place, user_id: str | None, table: str | None) -> _Cursor:
    """A cursor that may be read on from; one of an earlier epoch goes back.

    Errors: InvalidCursor, CursorExpired.
    """
    if (cursor.user_id, cursor.table) != (user_id, table):
        raise InvalidCursor("expected a cursor of the same user and table; start without one")
    positions = cursor.at.values()
    if not all(_is_transaction(position.changed_in) for position in positions):
        raise InvalidCursor("expected a cursor from an earlier page; start without one")
    if any(len(p.key) != _KEY_LENGTHS.get(name) for name, p in cursor.at.items()):
        raise InvalidCursor("expected a cursor of the present tables; start without one")
    if _DELETIONS not in cursor.at:
        raise InvalidCursor("expected a cursor from an earlier page; start without one")
    if cursor.database != place.database:
        raise CursorExpired(
            f"expected a cursor of database {place.database}, found one of {cursor.database}; "
            "usual cause: the projections were rebuilt. Start without one"
        )
    durable = min(int(place.horizon), int(place.next_epoch_began or place.horizon))
    at = {name: _back_to(durable, position, name) for name, position in cursor.at.items()}
    deletions = int(at[_DELETIONS].changed_in)
    pruned = 0 < deletions <= int(place.deletions_pruned)
    if pruned or not place.epoch_known:
        raise CursorExpired(
            f"expected a cursor of the last {SYNC_KEPT_DAYS} days, found an older one, or one of a "
            "Postgres that was lost with its end: it cannot be told what was deleted since. Start "
            "without one"
        )
    return msgspec.structs.replace(cursor, epoch=place.epoch, at=at)


def _back_to(durable: int, position: _Position, name: str) -> _Position:
    if int(position.changed_in) <= durable:
        return position
    return _Position(str(durable), _lowest(name))


def _is_transaction(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


async def _page(
    connection: AsyncConnection[DictRow], cursor: _Cursor, horizon: str, limit: int
) -> SyncPage:
    names = SYNCED if cursor.table is None else (cursor.table,)
    tables: dict[str, list[Row]] = {name: [] for name in names}
    at = dict(cursor.at)
    room, has_more = _Room(limit), False
    # Deletions first: a row that came back after it was deleted is deleted, and then there.
    for name in (_DELETIONS, *names):
        rows, has_more = await _read(connection, name, cursor, horizon, room)
        if not has_more:
            at[name] = _Position(horizon, _lowest(name))
        elif rows:
            at[name] = _after(name, rows[-1])
        for row in rows:
            table, entry = _entry(name, row)
            tables.setdefault(table, []).append(entry)
        if has_more:
            break
    since = cursor.since if has_more else _BEGINNING
    next_cursor = msgspec.structs.replace(cursor, at=at, since=since)
    return SyncPage(tables=tables, cursor=pack(next_cursor), has_more=has_more)


class _Room:
    """What a page has room for: so many rows, and bytes of text, but always one row."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._size = 0

    def takes(self, row: Row) -> bool:
        """Takes a row in if there is room for it."""
        size = sum(len(value) for value in row.values() if isinstance(value, str))
        if self.rows == 0 or (self._size and self._size + size > PAGE_CHARS_MAX):
            return False
        self.rows -= 1
        self._size += size
        return True


async def _read(
    connection: AsyncConnection[DictRow], name: str, cursor: _Cursor, horizon: str, room: _Room
) -> tuple[list[Row], bool]:
    """The next rows of a table that there is room for, and whether there are more."""
    position = cursor.at.get(name) or _Position("0", _lowest(name))
    parameters = {
        **{f"key_{at}": text for at, text in enumerate(position.key)},
        "changed_in": position.changed_in,
        "horizon": horizon,
        "since": cursor.since,
        "user_id": cursor.user_id,
        "table": cursor.table,
        # One more than fits tells whether anything is left.
        "limit": room.rows + 1,
    }
    queries = _CHANGES if cursor.user_id is None else _CHANGES_OF_USER
    query = _DELETED if name == _DELETIONS else queries[name]
    rows: list[Row] = []
    has_more = False
    # Row by row: what there is no room for is not fetched, however large it is.
    stream = cast("AsyncGenerator[Row]", connection.cursor().stream(query, parameters))
    async with aclosing(stream) as found:
        async for row in found:
            has_more = not room.takes(row)
            if not has_more:
                rows.append(row)
            elif room.rows:
                break  # The query is cancelled; one that has given all its rows need not be.
    return rows, has_more


def _lowest(name: str) -> tuple[str, ...]:
    if name == _DELETIONS:
        return _NO_DELETION
    return tuple(_LOWEST[column.type] for column in key_columns(TABLE_BY_NAME[name]))


def _after(name: str, row: Row) -> _Position:
    if name == _DELETIONS:
        key = msgspec.json.encode(row["key"]).decode()
        return _Position(row["written_in"], (row["table_name"], key))
    values = (row[column.name] for column in key_columns(TABLE_BY_NAME[name]))
    return _Position(
        row["written_in"],
        tuple(v.isoformat() if isinstance(v, date) else str(v) for v in values),
    )


def _entry(name: str, row: Row) -> tuple[str, Row]:
    """The table of a row, and the row as readers get it."""
    if name != _DELETIONS:
        return name, {column: value for column, value in row.items() if column != "written_in"}
    of = row["table_name"]
    if _WIPED in row["key"]:
        return of, {"deleted": True, **row["key"]}
    kinds = {column.name: column.type for column in key_columns(TABLE_BY_NAME[of])}
    key = {column: _READ[kinds[column]](text) for column, text in row["key"].items()}
    return of, {"deleted": True, **key}
