"""Create and extend the tables of installed packages, according to their declarations.

Headwater's own tables are created by migrations. A package has none: its tables are created from
their declarations when the projector starts. Columns are only ever added, as everywhere.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import psycopg
from psycopg import errors, sql

from headwater.projections.errors import TableUnfit, store_edge
from headwater.projections.postgres.schemas import own_dsn
from headwater.projections.postgres.statements import key_columns, statement, value_columns
from headwater.projections.postgres.table_ddl import BOOKKEEPING, column_comments, ddl_of
from headwater.schemas.installed_tables import INSTALLED
from headwater.schemas.tables import Table

_CONNECT_TIMEOUT_S: Final = 5
#: Postgres's names of types that declarations name differently.
_POSTGRES_NAMES: Final = {"timestamptz": "timestamp with time zone"}


def make_tables(
    dsn: str, report: Callable[[str], None], tables: Sequence[Table] = INSTALLED
) -> None:
    """Create missing tables and add missing columns.

    Raises:
        TableUnfit: An existing table does not fit its declaration.
        StoreUnavailable: Postgres does not answer.
    """
    if not tables:
        return
    with (
        store_edge("make the tables of installed packages"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("lock_migrations"))
        connection.execute(statement("create_schemas"))
        for table in tables:
            with _permitted(table):
                _make(connection, table, report)


@contextlib.contextmanager
def _permitted(table: Table) -> Iterator[None]:
    """Translate a missing privilege.

    Raises:
        TableUnfit: The login may not make or widen the table.
    """
    try:
        yield
    except errors.InsufficientPrivilege as error:
        raise TableUnfit(
            f"expected the table {table.name} as its package declares it, found that this login "
            f"may not change it ({error.diag.message_primary}); run `headwater migrate`"
        ) from error


def _make(connection: psycopg.Connection, table: Table, report: Callable[[str], None]) -> None:
    cursor = connection.execute(statement("columns_of_table"), {"name": table.name})
    present: dict[str, str] = dict(cursor.fetchall())
    if not present:
        report(f"Postgres: making the table {table.name}")
        connection.execute(ddl_of(table).encode())
    else:
        _widen(connection, table, present, report)


def _widen(
    connection: psycopg.Connection,
    table: Table,
    present: dict[str, str],
    report: Callable[[str], None],
) -> None:
    declared = {column.name: column.type for column in value_columns(table)}
    fixed = {column.name: column.type for column in key_columns(table)}
    fixed |= {name: definition.split()[0] for name, definition, _ in BOOKKEEPING}
    for name, type_ in (fixed | declared).items():
        expected_type, actual_type = _POSTGRES_NAMES.get(type_, type_), present.get(name)
        if actual_type is None and name in declared:
            report(f"Postgres: adding the column {name} to {table.name}")
            add = sql.SQL("alter table {} add column {} {}").format(
                sql.Identifier(table.name), sql.Identifier(name), sql.SQL(expected_type)
            )
            connection.execute(add)
        elif actual_type != expected_type:
            raise TableUnfit(
                f"expected the column {name} of {table.name} to be {expected_type}, found "
                f"{actual_type or 'none'}; usual causes: a table of another program, or a column "
                "whose type was changed (declare one of another name instead)"
            )
    owned = connection.execute(statement("owns_table"), {"name": table.name}).fetchone()
    if owned == (True,):
        # A projector with its own role leaves comments to `headwater migrate`.
        connection.execute("\n".join(column_comments(table)).encode())
