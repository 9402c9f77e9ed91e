"""Rows in the binary format of Postgres composites, built directly from the bytes of records.

All rows of a statement are one parameter: an array of a composite type, which belongs to the
session and so to the release that uses it. A record already has nearly the format of Postgres:
texts are equal, doubles have reversed bytes. So a reader compiled from the record's schema
(`schemas.readers`) joins the pieces of a row, with hardly any intermediate values.

Each value is its type's OID, its length and its bytes; NULL has the length -1. Postgres validates
binary input like text: UTF-8, dates, JSON.

Source: `record_recv` and `array_recv` of Postgres 18; ADR 0025.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.pq import Format
from typing_extensions import override

from headwater.projections.postgres.statements import SqlColumn, listed
from headwater.schemas.avro_types import Annotation, Schema
from headwater.schemas.readers import Reader, composing_reader_of

_OIDS: Final = {
    "boolean": 16,
    "bigint": 20,
    "text": 25,
    "json": 114,
    "double precision": 701,
    "timestamptz": 1184,
}
#: Number of cached headers (by length) and of cached times, which repeat often.
_CACHED: Final = 4_096
#: Postgres counts microseconds since 2000; records have milliseconds since 1970.
_EPOCH_MS: Final = 946_684_800_000

_head: Final = Struct(">ii").pack
_long: Final = Struct(">iiq").pack
_length: Final = Struct(">i").pack
#: Dimensions, whether there are NULLs, OID of the elements, their number, lowest subscript.
_array: Final = Struct(">iiiii").pack


class BinaryRows(bytes):
    """An array parameter in binary; the statement casts it to its type."""


class BinaryRowsDumper(Dumper):
    """Passes BinaryRows to psycopg unchanged."""

    format = Format.BINARY
    oid = 0

    @override
    def dump(self, obj: BinaryRows) -> bytes:
        return obj


@dataclass(frozen=True, slots=True, kw_only=True)
class RowType:
    """The composite type for transferring a table's rows: `pg_temp.<name>`.

    Days, and times that are text in records, are text here; the statement converts them.
    """

    name: str
    columns: tuple[SqlColumn, ...]

    @property
    def creation(self) -> bytes:
        """The statement that creates it in a session."""
        columns = [
            sql.SQL("{} {}").format(column.identifier, sql.SQL(_type(column.type)))
            for column in self.columns
        ]
        create = sql.SQL("create type pg_temp.{} as ({})")
        return create.format(sql.Identifier(self.name), listed(list(columns))).as_bytes(None)


def array_of(oid: int, rows: Sequence[bytes]) -> BinaryRows:
    """Return rows built by `row_reader` as a parameter; `oid` is that of their type."""
    return BinaryRows(_array(1, 0, oid, len(rows), 1) + b"".join(rows))


def row_reader(
    row: RowType,
    types: Mapping[str, Annotation],
    pieces: Mapping[str, str],
    names: Mapping[str, object],
) -> Callable[[Schema], Reader]:
    """Return a factory of readers that convert records to rows.

    Args:
        row: Type of the rows.
        types: Types of the record's fields: bytes for texts and doubles.
        pieces: Expression of each column of the row; see `text` and `number`.
        names: Names that the expressions use.
    """
    count = _length(len(row.columns))
    joined = ", ".join(pieces[column.name] for column in row.columns)
    globals_ = {"element": _element, "COUNT": count, **_NAMES, **names}
    return lambda schema: composing_reader_of(
        schema, types, f"element(b''.join((COUNT, {joined},)))", globals_
    )


def text(field: str, kind: str = "text") -> str:
    """Return the expression for a field that is text or None."""
    value = f"{{{field}}}"
    return f"(NO_{kind} if {value} is None else {kind}[len({value})] + {value})"


def number(field: str, kind: str) -> str:
    """Return the expression for a number, boolean or time, or None.

    Doubles are bytes of the record; times are Unix milliseconds, where 0 means none.
    """
    value = f"{{{field}}}"
    match kind:
        case "double precision":
            return f"(NO_double if {value} is None else DOUBLE + {value}[::-1])"
        case "boolean":
            return f"(NO_boolean if {value} is None else TRUE if {value} else FALSE)"
        case "timestamptz":
            return f"moment({value})"
        case _:
            return f"(NO_bigint if {value} is None else long({_OIDS['bigint']}, 8, {value}))"


class _Heads(dict[int, bytes]):
    """Headers of values of a type, by the value's length."""

    def __init__(self, oid: int) -> None:
        self._oid = oid

    def __missing__(self, length: int) -> bytes:
        head = _head(self._oid, length)
        if length < _CACHED:
            self[length] = head
        return head


def _type(kind: str) -> Any:  # noqa: ANN401, a declaration cannot be typed as LiteralString
    return kind


@lru_cache(_CACHED)
def _moment(at_ms: int) -> bytes:
    if not at_ms:
        return _no("timestamptz")
    return _long(_OIDS["timestamptz"], 8, (at_ms - _EPOCH_MS) * 1_000)


def _element(row: bytes) -> bytes:
    return _length(len(row)) + row


def _no(kind: str) -> bytes:
    return _head(_OIDS[kind], -1)


_NAMES: Final[dict[str, Any]] = {
    "text": _Heads(_OIDS["text"]),
    "json": _Heads(_OIDS["json"]),
    "long": _long,
    "moment": _moment,
    "DOUBLE": _head(_OIDS["double precision"], 8),
    "TRUE": _head(_OIDS["boolean"], 1) + b"\1",
    "FALSE": _head(_OIDS["boolean"], 1) + b"\0",
    **{f"NO_{kind.partition(' ')[0]}": _no(kind) for kind in _OIDS},
}
