"""Export a whole table or view with one statement, so that it is consistent.

The rows come through a server-side cursor in batches of a hundred, so memory is bounded for any
size of the table and any speed of the file.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from headwater.projections.errors import ExportRefused, store_edge
from headwater.projections.postgres.connections import own_dsn
from headwater.projections.postgres.statements import statement

_CONNECT_TIMEOUT_S: Final = 5
#: Rows per batch; one row of sleep data may have megabytes of `raw`.
_ROWS: Final = 100
#: Internal columns.
_BOOKKEEPING: Final = frozenset({"changed_in"})


class ExportColumn(NamedTuple):
    """An exported column: its name and its Postgres type."""

    name: str
    type: str


class Export(NamedTuple):
    """An export: its columns, and its rows in batches."""

    columns: tuple[ExportColumn, ...]
    batches: Iterator[Sequence[tuple[Any, ...]]]


@contextmanager
def exported(
    dsn: str, table: str, *, user_id: str | None = None, since: datetime | None = None
) -> Iterator[Export]:
    """Open a table or view and yield all its rows.

    Args:
        dsn: The database.
        table: Table or view. Rows of a table are in the order of its key.
        user_id: Only rows of this user.
        since: Only rows with `updated_at` since then.

    Raises:
        ExportRefused: It does not exist or may not be read.
        StoreUnavailable: Postgres does not answer.
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
    columns = connection.execute(statement("export_columns"), {"name": table}).fetchall()
    if not columns:
        readable = [name for (name,) in connection.execute(statement("export_tables")).fetchall()]
        raise ExportRefused(
            f"expected a table or view that may be read, one of {', '.join(readable) or 'none'}; "
            f"found {table!r}"
        )
    return tuple(ExportColumn(*column) for column in columns if column[0] not in _BOOKKEEPING)


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
    """Return a column as it is exported: JSON unchanged, ids as text."""
    as_text = column.type in ("json", "jsonb", "uuid")
    return sql.SQL("{}::text" if as_text else "{}").format(sql.Identifier(column.name))
