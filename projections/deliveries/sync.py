"""Sync: rows of the projection tables that changed since a cursor, and deleted rows.

Every row stores the transaction that last wrote it (`changed_in`). Transactions do not end in the
order in which they began, so reading "changed_in greater than the last one seen" would skip a row
of a transaction that began earlier and ended later. A page therefore ends at the horizon: the
oldest transaction that was open when the page was read. No new rows can appear below it. The cost:
an open transaction anywhere in the same Postgres server that has written something delays the
changes after its start. The projector's own transactions end within 20 s.

A row that changes again moves forward and is returned again. A cursor can be used any number of
times. Transaction numbers have no meaning in another database, so a cursor names its own.

Deletions are stored for 30 days. A page returns those below the horizon before any row, because a
row may have been deleted and inserted again. An older cursor has expired.

Epochs: a server that crashed, or a promoted replica, may have lost the last transactions, and
reuses their numbers for other rows. So a projector begins an epoch with each connection, in a
transaction of its own before any rows. Rows that it writes then have later numbers, and so do lost
rows, which are read from Kafka again. A cursor of an earlier epoch is moved back to the start of
the next one, so it returns again what was lost.
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
from headwater.projections.postgres.connections import PAGE_MAX, PooledReader, Row
from headwater.projections.postgres.cursors import pack, unpack, valid_cursor
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

#: Sorts before every key: a constraint ensures that the first column of a key is not empty.
_LOWEST: Final = {"text": "", "date": "-infinity", "timestamptz": "-infinity"}
_BEGINNING: Final = "-infinity"
#: Convert the key of a deleted row from JSON to the types of a row.
_READ: Final[dict[str, Callable[[str], object]]] = {
    "text": str,
    "date": date.fromisoformat,
    "timestamptz": datetime.fromisoformat,
}
#: Tables with sync.
SYNCED: Final = tuple(TABLE_BY_NAME)
_DELETIONS: Final = "deletions"
#: Key of a deletion of all rows of a wiped user: the user's digest.
_WIPED: Final = "user_sha256"
_DELETED: Final = statement(_DELETIONS)
#: Before the first deletion of a transaction.
_NO_DELETION: Final = ("", "null")
_KEY_LENGTHS: Final = {_DELETIONS: 2} | {table.name: len(table.key) for table in ALL_TABLES}
#: Characters of text on a page; a single row of sleep data may have 10 MiB.
PAGE_CHARS_MAX: Final = 4 * 1024 * 1024


def _described(table: Table) -> str:
    """Describe a table in one line: its key, its columns, and its purpose."""
    summary = (inspect.getdoc(table.kind) or "").partition("\n")[0]
    return f"`{table.name}` ({', '.join((*table.key_names, *table.column_names))}): {summary}"


class SyncPage(msgspec.Struct, frozen=True, kw_only=True):
    """Changed rows by table, oldest change first, and before them deleted rows.

    A deleted row has its key and `"deleted": true`. Instead of a key it may have `user_sha256`: all
    rows of that wiped user in the table are deleted. Pass `cursor` to the next call: at once while
    `has_more`, otherwise at any time within 30 days.
    """

    tables: Annotated[
        dict[str, list[Row]],
        msgspec.Meta(description=" ".join(["Rows by table.", *map(_described, ALL_TABLES)])),
    ]
    cursor: str
    has_more: bool


class _Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Position after the row with this key that this transaction wrote."""

    changed_in: str
    key: tuple[str, ...]


class _Cursor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    database: str
    #: Empty before the first epoch.
    epoch: str
    user_id: str | None = None
    #: Only rows of this table.
    table: str | None = None
    #: Only rows written since then; ignored after the first pass.
    since: str = _BEGINNING
    #: Positions by table, including `deletions`.
    at: dict[str, _Position]


class _DatabaseState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the database, as returned by the query `horizon`."""

    database: str
    horizon: str
    deletions_pruned: str
    epoch: str
    epoch_known: bool
    next_epoch_began: str | None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the projector.

    Attributes:
        offsets: Grows with every record that is applied.
        horizon: Every transaction before it has ended.
        next_transaction: After all transactions that had begun.
    """

    offsets: int
    horizon: str
    next_transaction: str


def _changes_query(table: Table, condition: sql.SQL) -> bytes:
    key = key_columns(table)
    after = [
        sql.SQL("{}::{}").format(sql.Placeholder(f"key_{number}"), sql.SQL(column.type))
        for number, column in enumerate(key)
    ]
    return filled(
        "changes",
        condition=condition,
        table=sql.Identifier(table.name),
        columns=read_columns(table),
        key=listed([column.identifier for column in key]),
        after=listed(list(after)),
    )


_CHANGES: Final = {table.name: _changes_query(table, sql.SQL("true")) for table in ALL_TABLES}
_CHANGES_OF_USER: Final = {
    table.name: _changes_query(table, sql.SQL("user_id = %(user_id)s")) for table in ALL_TABLES
}


#: Users of a change that are distinguished.
_USERS_MAX: Final = 1_000


def _users_changed_query() -> bytes:
    """Return the query of users with changed rows; of deletions, it returns null for any user."""
    part = sql.SQL(
        "select user_id from {}"
        " where changed_in >= %(since)s::xid8 and changed_in < %(before)s::xid8"
    )
    parts = [part.format(sql.Identifier(table.name)) for table in ALL_TABLES]
    deleted = sql.SQL(
        "select null from deletions"
        " where deleted_in >= %(since)s::xid8 and deleted_in < %(before)s::xid8"
    )
    union = sql.SQL(" union ").join([*parts, deleted])
    return (union + sql.SQL(" limit %(limit)s")).as_bytes(None)


_USERS_CHANGED: Final = _users_changed_query()


async def changes(
    reader: PooledReader,
    *,
    after: str | None,
    since: datetime | None = None,
    limit: int,
    user_id: str | None = None,
    table: str | None = None,
) -> SyncPage:
    """Read the next page of changes.

    Args:
        reader: Reads Postgres.
        after: Cursor of the previous page; None returns everything.
        since: Without `after`, only rows written since then.
        limit: Maximum number of rows; fewer if they are large (`PAGE_CHARS_MAX`).
        user_id: Only rows of this user.
        table: Only rows of this table, one of SYNCED.

    Raises:
        InvalidCursor: The cursor cannot be used.
        CursorExpired: The cursor is too old.
        StoreUnavailable: Postgres does not answer.
        ValueError: The limit is out of range, or there is no such table.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"expected a limit of 1 to {PAGE_MAX}, found {limit}")
    if table is not None and table not in TABLE_BY_NAME:
        raise ValueError(f"expected one of {', '.join(SYNCED)}, found {table!r}")
    previous = None if after is None else unpack(after, _Cursor)
    with valid_cursor():
        async with reader.connection() as connection:
            state = await _database_state(connection, previous.epoch if previous else "")
            if previous is not None:
                cursor = _checked(previous, state, user_id, table)
            else:
                cursor = _first(state, since, user_id, table)
            return await _page(connection, cursor, state.horizon, limit)


async def progress(reader: PooledReader) -> Progress:
    """Read how far the projector is with the synced tables.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    topics = [table.topic for table in ALL_TABLES]
    async with reader.connection() as connection:
        result = await connection.execute(statement("sync_progress"), {"topics": topics})
        return msgspec.convert(await result.fetchone(), Progress)


async def users_changed(reader: PooledReader, since: str, before: str) -> frozenset[str] | None:
    """Return whose rows some transactions have written or deleted.

    Args:
        reader: Reads Postgres.
        since: The first transaction.
        before: The transaction after the last one.

    Returns:
        The users; None if they may be all users: there are many, or a user was wiped.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"since": since, "before": before, "limit": _USERS_MAX + 1}
    rows = await reader.answers(_USERS_CHANGED, **parameters)
    users = frozenset(row["user_id"] for row in rows)
    return None if len(rows) > _USERS_MAX or None in users else users


async def _database_state(connection: AsyncConnection[DictRow], epoch: str) -> _DatabaseState:
    result = await connection.execute(statement("horizon"), {"epoch": epoch})
    return msgspec.convert(await result.fetchone(), _DatabaseState)


def _first(
    state: _DatabaseState, since: datetime | None, user_id: str | None, table: str | None
) -> _Cursor:
    """Return the cursor of a reader without one. Earlier deletions matter only with `since`."""
    begin = _BEGINNING if since is None else since.isoformat()
    deletions = _Position(state.horizon if since is None else "0", _NO_DELETION)
    return _Cursor(
        database=state.database, epoch=state.epoch, user_id=user_id, table=table,
        since=begin,
        at={_DELETIONS: deletions},
    )  # fmt: skip


def _checked(
    cursor: _Cursor, state: _DatabaseState, user_id: str | None, table: str | None
) -> _Cursor:
    """Return a cursor to continue from. One of an earlier epoch is moved back.

    Raises:
        InvalidCursor: The cursor cannot be used.
        CursorExpired: The cursor is too old.
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
    if cursor.database != state.database:
        raise CursorExpired(
            f"expected a cursor of database {state.database}, found one of {cursor.database}; "
            "usual cause: the projections were rebuilt. Start without one"
        )
    durable = min(int(state.horizon), int(state.next_epoch_began or state.horizon))
    at = {name: _back_to(durable, position, name) for name, position in cursor.at.items()}
    deletions = int(at[_DELETIONS].changed_in)
    pruned = 0 < deletions <= int(state.deletions_pruned)
    if pruned or not state.epoch_known:
        raise CursorExpired(
            f"expected a cursor of the last {SYNC_KEPT_DAYS} days, found an older one, or one of a "
            "Postgres that lost its last transactions: deletions since then are unknown. Start "
            "without one"
        )
    return msgspec.structs.replace(cursor, epoch=state.epoch, at=at)


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
    page_limit, has_more = _PageLimit(limit), False
    # Deletions first: a row may have been deleted and inserted again.
    for name in (_DELETIONS, *names):
        rows, has_more = await _read(connection, name, cursor, horizon, page_limit)
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


class _PageLimit:
    """Limits of a page: a number of rows and characters of text, but at least one row."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._size = 0

    def fits(self, row: Row) -> bool:
        """Count a row if it fits, and return whether it does."""
        size = sum(len(value) for value in row.values() if isinstance(value, str))
        if self.rows == 0 or (self._size and self._size + size > PAGE_CHARS_MAX):
            return False
        self.rows -= 1
        self._size += size
        return True


async def _read(
    connection: AsyncConnection[DictRow],
    name: str,
    cursor: _Cursor,
    horizon: str,
    page_limit: _PageLimit,
) -> tuple[list[Row], bool]:
    """Return the next rows of a table that fit, and whether there are more."""
    position = cursor.at.get(name) or _Position("0", _lowest(name))
    parameters = {
        **{f"key_{number}": text for number, text in enumerate(position.key)},
        "changed_in": position.changed_in,
        "horizon": horizon,
        "since": cursor.since,
        "user_id": cursor.user_id,
        "table": cursor.table,
        # One more row than fits shows whether there are more.
        "limit": page_limit.rows + 1,
    }
    queries = _CHANGES if cursor.user_id is None else _CHANGES_OF_USER
    query = _DELETED if name == _DELETIONS else queries[name]
    rows: list[Row] = []
    has_more = False
    # Row by row, so that rows beyond the limit are not fetched, however large they are.
    stream = cast("AsyncGenerator[Row]", connection.cursor().stream(query, parameters))
    async with aclosing(stream) as stream_rows:
        async for row in stream_rows:
            has_more = not page_limit.fits(row)
            if not has_more:
                rows.append(row)
            elif page_limit.rows:
                break  # This cancels the query, which still has rows.
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
    """Return the table of a row, and the row as readers receive it."""
    if name != _DELETIONS:
        return name, {column: value for column, value in row.items() if column != "written_in"}
    table = row["table_name"]
    if _WIPED in row["key"]:
        return table, {"deleted": True, **row["key"]}
    kinds = {column.name: column.type for column in key_columns(TABLE_BY_NAME[table])}
    key = {column: _READ[kinds[column]](text) for column, text in row["key"].items()}
    return table, {"deleted": True, **key}
