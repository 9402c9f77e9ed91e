"""The SQL of this package: files in `queries/`, with templates filled for projection tables.

A statement for projection tables is one template for all of them. Names and types come from the
declarations in `schemas.tables`, so a new table needs a migration but no SQL here. All rows of a
statement are one parameter: binary for large numbers of rows (ADR 0025), otherwise JSON.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from psycopg import sql

from headwater.schemas.tables import Column, Table, begins_with_user

_QUERIES: Final = files("headwater.projections").joinpath("queries")


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column of a projection table in Postgres."""

    name: str
    type: str

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name."""
        return sql.Identifier(self.name)

    @property
    def definition(self) -> sql.Composable:
        """The column in the row definition of json_to_recordset."""
        return sql.SQL("{} {}").format(self.identifier, _raw(self.type))

    @property
    def received(self) -> sql.Composable:
        """The column's value in the row `r` of a statement."""
        return sql.SQL("r.{}::{}").format(self.identifier, _raw(self.type))

    @property
    def named(self) -> sql.Composable:
        """Condition that the column of the row `t` equals the parameter of its name."""
        return sql.SQL("t.{} = {}").format(self.identifier, self.parameter)

    @property
    def parameter(self) -> sql.Composable:
        """The parameter of the column's name."""
        return sql.SQL("{}::{}").format(sql.Placeholder(self.name), _raw(self.type))

    @property
    def selected(self) -> sql.Composable:
        """The column as readers receive it."""
        if self.type == "json":  # decoding and encoding it would change its bytes
            return sql.SQL("{0}::text as {0}").format(self.identifier)
        return self.identifier


def key_columns(table: Table) -> tuple[SqlColumn, ...]:
    """Return the primary key of a projection table."""
    return _sql_columns(table.key)


def value_columns(table: Table) -> tuple[SqlColumn, ...]:
    """Return the other columns of a projection table that the projector writes."""
    times = (SqlColumn(column.name, "timestamptz") for column in table.times)
    return (*_sql_columns(table.columns), *times)


def read_columns(table: Table) -> sql.Composed:
    """Return the columns for readers: all except internal ones, with JSON as text."""
    generated = (SqlColumn(column.name, column.sql) for column in table.generated)
    columns = (*generated, *key_columns(table), *value_columns(table))
    return listed([column.selected for column in columns])


def statement(name: str) -> bytes:
    """Return a statement of `queries/`, where `-- name:` lines name them."""
    return _statements()[name]


@cache
def _statements() -> dict[str, bytes]:
    named: dict[str, bytes] = {}
    for file in _QUERIES.iterdir():
        _, *parts = re.split(rb"^-- name: (\w+)\n", file.read_bytes(), flags=re.MULTILINE)
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            named[name.decode()] = text.strip() + b"\n"
    return named


def filled(name: str, **parts: sql.Composable) -> bytes:
    """Return a statement with its `{names}` replaced."""
    return template(name).format(**parts).as_bytes(None)


def template(name: str) -> sql.SQL:
    """Return a statement as a template, or as a part of another one."""
    return _template(statement(name).decode())


def listed(parts: Sequence[sql.Composable]) -> sql.Composed:
    """Join parts of a statement with commas."""
    return sql.SQL(", ").join(parts)


def _sql_columns(columns: tuple[Column, ...]) -> tuple[SqlColumn, ...]:
    return tuple(SqlColumn(column.name, column.sql) for column in columns)


def _template(text: str) -> sql.SQL:
    # psycopg requires literal text; a file of the package is equally trusted.
    return sql.SQL(text)


_raw = _template


def names_user(table: Table) -> bool:
    """Whether the rows of a table name their user."""
    return begins_with_user(table) or "user_id" in table.column_names


def wiped_rows(table: Table) -> str:
    """Return the key in DELETES for rows of a table that a wipe has removed."""
    return f"{table.name} of the wiped"
