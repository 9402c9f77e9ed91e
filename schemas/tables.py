"""The projection tables: their keys, columns and row type.

An Avro file is the one description of a table. Fields marked `"key": true` form the primary key,
`stamps` and `stamp_of` are the bookkeeping, and every field between is a last-writer-wins column.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from headwater.schemas.catalogue import NEWEST, schema_text
from headwater.schemas.records import Stamp

Value: TypeAlias = str | int | float | bool | None

#: Value of a byte of `stamp_of` for a column that nobody has set. A row can therefore name at most
#: 255 deliveries, more than it has columns.
UNSET: Final = 255


class Row(msgspec.Struct, frozen=True):
    """A row of a projection table.

    Shape:  values and stamps have one entry a column, in the table's order; a column is unset
            exactly when both are None.
    """

    key: tuple[str, ...]
    values: tuple[Value, ...]
    stamps: tuple[Stamp | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its name, Avro type (string, long, double or boolean) and description."""

    name: str
    type: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A projection table: a compacted topic, and a Postgres table of the same columns."""

    name: str
    schema: str
    topic: str
    key: tuple[Column, ...]
    columns: tuple[Column, ...]
    index: dict[str, int]
    key_names: tuple[str, ...]
    column_names: tuple[str, ...]

    def row_key(self, key: tuple[str, ...]) -> bytes:
        """The record key of a row: a JSON array, so that no key can imitate another."""
        return msgspec.json.encode(key)


def _column(field: dict[str, Any]) -> Column:
    kind = field["type"]
    return Column(
        name=field["name"], type=kind if isinstance(kind, str) else kind[1], doc=field["doc"]
    )


def _load(name: str, schema: str, topic: str) -> Table:
    fields = json.loads(schema_text(NEWEST[schema]))["fields"]
    key = tuple(_column(field) for field in fields if field.get("key"))
    columns = tuple(_column(field) for field in fields[len(key) : -2])
    return Table(
        name=name,
        schema=schema,
        topic=topic,
        key=key,
        columns=columns,
        index={column.name: position for position, column in enumerate(columns)},
        key_names=tuple(column.name for column in key),
        column_names=tuple(column.name for column in columns),
    )


CONNECTIONS: Final = _load("terra_connections", "terra_connection", "connections")
DAILY_SUMMARY: Final = _load("daily_summary", "daily_summary", "daily-summary")
SLEEP_SESSIONS: Final = _load("sleep_sessions", "sleep_session", "sleep-sessions")

TABLES: Final = (CONNECTIONS, DAILY_SUMMARY, SLEEP_SESSIONS)
TABLE_BY_TOPIC: Final = {table.topic: table for table in TABLES}
