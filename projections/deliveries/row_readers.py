"""Convert records of this projection to binary rows of Postgres.

A row of a projection table has the columns of its record, followed by `column_sources`, which names
the delivery that set each column, and by the times that come from a delivery. Outcomes, duplicates
and answers are rows as they are; their Unix milliseconds, in fields named `…_ms`, become
timestamps.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache, partial
from struct import pack
from typing import Final, TypeAlias

import msgspec
import orjson

from headwater.projections.postgres.binary_rows import RowType, number, row_reader, text
from headwater.projections.postgres.statements import SqlColumn
from headwater.schemas.avro_types import Annotation, Schema
from headwater.schemas.codec import reads
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.readers import Reader
from headwater.schemas.records import DuplicateDropped, OutcomeRecorded, RequestAnswered, Stamp
from headwater.schemas.row_states import UNSET
from headwater.schemas.tables import Column, Table, Value

#: Converts a record's value to a row.
RowReader: TypeAlias = Callable[[bytes], bytes]

#: Cached column lists of rows; a shape is the assignment of columns to deliveries.
_SHAPES_MAX: Final = 4_096
#: Cached texts of times: senders sign whole seconds, so many deliveries share one.
_MOMENTS_MAX: Final = 4_096
#: Postgres types in which records have their values; other types are transferred as text.
_UNCONVERTED: Final = frozenset({"bigint", "double precision", "boolean", "json"})
_AVRO: Final[dict[type, type]] = {str: bytes, float: bytes}


# --- rows of projection tables ------------------------------------------------------------------


def table_row(table: Table) -> RowType:
    """Return the transfer format of a projection table's rows."""
    columns = [_transfer_column(column) for column in (*table.key, *table.columns)]
    times = [SqlColumn(time.name, "timestamptz") for time in table.times]
    sources = SqlColumn("column_sources", "json")
    return RowType(name=f"{table.name}_row", columns=(*columns, *times, sources))


def _transfer_column(column: Column) -> SqlColumn:
    return SqlColumn(column.name, column.sql if column.sql in _UNCONVERTED else "text")


def table_row_reader(table: Table) -> Callable[[Schema], Reader]:
    """Return a factory of readers for a projection table's rows."""
    columns = (*table.key, *table.columns)
    types: dict[str, Annotation] = {c.name: _AVRO.get(c.type, c.type) for c in columns}
    types |= {"stamps": tuple[Stamp, ...], "stamp_of": bytes}
    pieces = {column.name: _piece(column) for column in map(_transfer_column, columns)}
    for time in table.times:
        is_set = f"{{{time.column}}} == {_raw(time.value)!r}"
        index = table.index[time.column]
        pieces[time.name] = f"moment(sent_at({{stamps}}, {{stamp_of}}, {index}) if {is_set} else 0)"
    pieces["column_sources"] = "json[len(s := sources({stamps}, {stamp_of}))] + s"
    names = {"sources": partial(_sources, table), "sent_at": _sent_at}
    return row_reader(table_row(table), types, pieces, names)


def _piece(column: SqlColumn) -> str:
    if column.type in ("text", "json"):
        return text(column.name, column.type)
    return number(column.name, column.type)


def _raw(value: Value) -> Value | bytes:
    """Return a value as it is read: texts and doubles are bytes."""
    match value:
        case str():
            return value.encode()
        case float():
            return pack("<d", value)
        case _:
            return value


def _sources(table: Table, stamps: tuple[Stamp, ...], stamp_of: bytes) -> bytes:
    deliveries = ",".join(map(_delivery, stamps))
    return f'{{"deliveries":[{deliveries}],"columns":{_shape(table, stamp_of)}}}'.encode()


def _delivery(stamp: Stamp) -> str:
    event_id = stamp.event_id
    # Headwater's own ids have only letters and digits.
    quoted = f'"{event_id}"' if event_id.isalnum() else orjson.dumps(event_id).decode()
    sent_at = _moment(stamp.sent_at_ms)
    # Version 1, of normalizers that never changed, is omitted.
    version = f',"version":{stamp.version}' if stamp.version != 1 else ""
    return f'{{"event_id":{quoted},"position":"{stamp.position}","sent_at":"{sent_at}"{version}}}'


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(table: Table, stamp_of: bytes) -> str:
    """Return the columns' JSON, cached: most rows of a source have one of a few shapes."""
    # Columns are only appended, so an older row has fewer.
    columns = dict(zip(table.column_names, stamp_of, strict=False))
    return orjson.dumps({name: index for name, index in columns.items() if index != UNSET}).decode()


def _sent_at(stamps: tuple[Stamp, ...], stamp_of: bytes, index: int) -> int:
    """Return when the delivery that set a column was signed; 0 if none has set it."""
    if index >= len(stamp_of) or stamp_of[index] == UNSET:
        return 0
    return stamps[stamp_of[index]].sent_at_ms


@lru_cache(maxsize=_MOMENTS_MAX)
def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


# --- outcomes, duplicates, answers ---------------------------------------------------------------


def _record_row(table: str, kind: type[msgspec.Struct]) -> RowType:
    return RowType(name=f"{table}_row", columns=tuple(_columns(kind).values()))


def _columns(kind: type[msgspec.Struct]) -> dict[str, SqlColumn]:
    """Return the columns of a record type that is stored as a row, by field."""
    return {
        field.name: SqlColumn(field.name.removesuffix("_ms"), "timestamptz")
        if field.name.endswith("_ms")
        else SqlColumn(field.name, "bigint" if field.type is int else "text")
        for field in msgspec.structs.fields(kind)
    }


def _record_reader(table: str, kind: type[msgspec.Struct]) -> RowReader:
    columns = _columns(kind)
    types = {name: bytes if column.type == "text" else int for name, column in columns.items()}
    pieces = {
        column.name: text(name) if column.type == "text" else number(name, column.type)
        for name, column in columns.items()
    }
    return reads(kind, row_reader(ROW_TYPES[table], types, pieces, {}))


_RECORDS: Final[dict[str, type[msgspec.Struct]]] = {
    "webhook_outcomes": OutcomeRecorded,
    "duplicates": DuplicateDropped,
    "request_answers": RequestAnswered,
}

#: Transfer formats of rows, by table.
ROW_TYPES: Final = {
    **{table.name: table_row(table) for table in ALL_TABLES},
    **{table: _record_row(table, kind) for table, kind in _RECORDS.items()},
}
#: Converters of records to rows, by table.
ROW_READERS: Final[dict[str, RowReader]] = {
    **{table.name: reads(table.kind, table_row_reader(table)) for table in ALL_TABLES},
    **{table: _record_reader(table, kind) for table, kind in _RECORDS.items()},
}
