"""A whole table or view, for a file: one statement, so all of it is as it was at one moment.

The rows come through a cursor on the server, a hundred at a time, so that memory is bounded
whatever the table holds and however slowly the file is written.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from headwater.projections.errors import ExportRefused, store_edge
from headwater.projections.postgres.schemas import own_dsn
from headwater.projections.postgres.statements import statement

_CONNECT_TIMEOUT_S: Final = 5
#: Rows at a time: a night of sleep may have megabytes of `raw`.
_ROWS: Final = 100
#: What only Headwater itself reads.
_BOOKKEEPING: Final = frozenset({"changed_in"})


class ExportColumn(NamedTuple):
    """A column of what is exported: its name, and its type as Postgres calls it."""

    name: str
    type: str


class Export(NamedTuple):
    """What is exported: its columns, and its rows in batches."""

    columns: tuple[ExportColumn, ...]
    batches: Iterator[Sequence[tuple[Any, ...]]]


@contextmanager
def exported(
    dsn: str, table: str, *, user_id: str | None = None, since: datetime | None = None
) -> Iterator[Export]:
    """Opens a table or view for reading from its first to its last row.

    Shape:  `user_id` and `since` (by `updated_at`) leave out other rows. A table's rows come in the
            order of its key.
    Errors: ExportRefused for what is not there or may not be read; StoreUnavailable.
    """
    with (
        store_edge(f"export {table}"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("export_session"))
        columns = _columns(connection, table)
        query, parameters = _query(connection, table, columns, user_id, since)
        with connection.cursor("export") as cursor:
            cursor.itersize = _ROWS
            cursor.execute(query, parameters)
            yield Export(columns, _batches(cursor))


def _batches(cursor: psycopg.ServerCursor[Any]) -> Iterator[Sequence[tuple[Any, ...]]]:
    while rows := cursor.fetchmany(_ROWS):
        yield rows


def _columns(connection: psycopg.Connection, table: str) -> tuple[ExportColumn, ...]:
    found = connection.execute(statement("export_columns"), {"name": table}).fetchall()
    if not found:
        readable = [name for (name,) in connection.execute(statement("export_tables")).fetchall()]
        raise ExportRefused(
            f"expected a table or view that may be read, one of {', '.join(readable) or 'none'}; "
            f"found {table!r}"
        )
    return tuple(ExportColumn(*column) for column in found if column[0] not in _BOOKKEEPING)


def _query(
    connection: psycopg.Connection,
    table: str,
    columns: tuple[ExportColumn, ...],
    user_id: str | None,
    since: datetime | None,
) -> tuple[sql.Composed, dict[str, object]]:
    names = [column.name for column in columns]
    conditions = []
    for column, operator, option, value in (
        ("user_id", "=", "--user", user_id),
        ("updated_at", ">=", "--since", since),
    ):
        if value is None:
            continue
        if column not in names:
            raise ExportRefused(
                f"{option}: expected a table with the column {column}, found {table}, which has "
                f"{', '.join(names)}"
            )
        conditions.append(
            sql.SQL("{} {} {}").format(
                sql.Identifier(column), sql.SQL(operator), sql.Placeholder(column)
            )
        )
    key = [name for (name,) in connection.execute(statement("export_key"), {"name": table})]
    query = sql.SQL("select {} from {}{}{}").format(
        sql.SQL(", ").join(map(_selected, columns)),
        sql.Identifier(table),
        sql.SQL(" where ") + sql.SQL(" and ").join(conditions) if conditions else sql.SQL(""),
        sql.SQL(" order by ") + sql.SQL(", ").join(map(sql.Identifier, key))
        if key
        else sql.SQL(""),
    )
    return query, {"user_id": user_id, "updated_at": since}


def _selected(column: ExportColumn) -> sql.Composed:
    """A column as it is exported: JSON byte for byte, ids as text."""
    as_text = column.type in ("json", "jsonb", "uuid")
    return sql.SQL("{}::text" if as_text else "{}").format(sql.Identifier(column.name))
