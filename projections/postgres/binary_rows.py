"""Rows as Postgres receives them: composites in binary, made straight from the bytes of records.

Theory of operation. All rows of a statement travel as one parameter: an array of a composite type,
which belongs to the session and so to the release that speaks. A record has nearly what Postgres
wants: texts as they are, doubles the other way round. So a reader that is made from the record's
schema (`schemas.readers`) joins the pieces of a row, and hardly any value exists in between.

Each value is its type's oid, its length and its bytes; NULL is the length -1. Postgres checks what
it receives as it checks any text: UTF-8, dates, JSON.

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

__all__ = ["BinaryRows", "BinaryRowsDumper", "RowType", "array_of", "number", "row_reader", "text"]

_OIDS: Final = {
    "boolean": 16,
    "bigint": 20,
    "text": 25,
    "json": 114,
    "double precision": 701,
    "timestamptz": 1184,
}
#: Lengths below this are kept as bytes, and so many moments: they come again and again.
_KEPT: Final = 4_096
#: Moments are microseconds since 2000; ours are milliseconds since 1970.
_EPOCH_MS: Final = 946_684_800_000

_head: Final = Struct(">ii").pack
_long: Final = Struct(">iiq").pack
_length: Final = Struct(">i").pack
#: Dimensions, whether there are NULLs, oid of the elements, how many, lowest subscript.
_array: Final = Struct(">iiiii").pack


class BinaryRows(bytes):
    """An array parameter, in binary; its statement says of which type."""


class BinaryRowsDumper(Dumper):
    """Gives BinaryRows to psycopg."""

    format = Format.BINARY
    oid = 0

    @override
    def dump(self, obj: BinaryRows) -> bytes:
        return obj


@dataclass(frozen=True, slots=True, kw_only=True)
class RowType:
    """The composite type of a table's rows on their way: `pg_temp.<name>`.

    Shape:  of its columns, days and those moments that are written as text are text here; the
            statement makes them what they are.
    """

    name: str
    columns: tuple[SqlColumn, ...]

    @property
    def creation(self) -> bytes:
        """The statement that makes it, for a session."""
        columns = [
            sql.SQL("{} {}").format(column.identifier, sql.SQL(_type(column.type)))
            for column in self.columns
        ]
        made = sql.SQL("create type pg_temp.{} as ({})")
        return made.format(sql.Identifier(self.name), listed(list(columns))).as_bytes(None)


def array_of(oid: int, rows: Sequence[bytes]) -> BinaryRows:
    """Rows, as `row_reader` makes them, as the parameter of a statement; oid is their type's."""
    return BinaryRows(_array(1, 0, oid, len(rows), 1) + b"".join(rows))


def row_reader(
    row: RowType,
    types: Mapping[str, Annotation],
    pieces: Mapping[str, str],
    names: Mapping[str, object],
) -> Callable[[Schema], Reader]:
    """What makes the readers of records as rows.

    Shape:  `types` are those of the record's fields, bytes for texts and doubles; `pieces` has the
            expression of each column of the row, of which `text` and `number` know the most usual.
    """
    count = _length(len(row.columns))
    joined = ", ".join(pieces[column.name] for column in row.columns)
    given = {"element": _element, "COUNT": count, **_NAMES, **names}
    return lambda schema: composing_reader_of(
        schema, types, f"element(b''.join((COUNT, {joined},)))", given
    )


def text(field: str, kind: str = "text") -> str:
    """The expression for a field that is text, and may be None."""
    value = f"{{{field}}}"
    return f"(NO_{kind} if {value} is None else {kind}[len({value})] + {value})"


def number(field: str, kind: str) -> str:
    """The expression for a field that is a number, a boolean or a moment, and may be None.

    Shape:  doubles are the bytes of the record; moments are Unix milliseconds, and 0 is none.
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
    """What stands before a value of a type, by the value's length."""

    def __init__(self, oid: int) -> None:
        self._oid = oid

    def __missing__(self, length: int) -> bytes:
        head = _head(self._oid, length)
        if length < _KEPT:
            self[length] = head
        return head


def _type(kind: str) -> Any:  # noqa: ANN401, LiteralString cannot be said of a declaration
    return kind


@lru_cache(_KEPT)
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
