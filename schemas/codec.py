"""Avro in the Confluent wire format: a zero byte, the schema id as four bytes, the Avro binary.

Ids come from the checked-in catalogue. A record is read with the version that its id names, so a
reader of today reads everything ever written. It is written with the newest version of its schema
that all others read (`write_forms`); by itself, a process writes the newest.
Writers and readers are made from the schemas (`writers`, `readers`).
"""

import contextlib
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar, cast, get_type_hints

import msgspec

from headwater.schemas.avro_types import Annotation, Schema
from headwater.schemas.catalogue import IDS
from headwater.schemas.errors import NotYetReadable, UndecodableRecord, UnknownSchema
from headwater.schemas.forms import NEWEST_FORMS, READS, Form
from headwater.schemas.installed_tables import ALL_TABLES, SCHEMA_IDS, schema_of_version
from headwater.schemas.readers import Reader, fields_reader_of, reader_of
from headwater.schemas.records import RECORD_TYPES, Record, Stamp
from headwater.schemas.tables import UNSET, Row, Stamps, Table
from headwater.schemas.writers import Writer, fields_writer_of, writer_of

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", bound=Record)

_MAGIC: Final = b"\x00"
_PREFIX_BYTES: Final = 5
_UNSET: Final = bytes([UNSET])
#: What a made writer or reader may raise.
_MISFITS: Final = (TypeError, ValueError, LookupError, AttributeError, OverflowError, struct.error)
_KINDS: Final = RECORD_TYPES | {table.schema: table.kind for table in ALL_TABLES}
_NAMES: Final[dict[type[msgspec.Struct], str]] = {kind: name for name, kind in _KINDS.items()}
_TABLES: Final = {table.schema: table for table in ALL_TABLES}
_VERSIONS: Final = {
    _MAGIC + number.to_bytes(4, "big"): version for version, number in SCHEMA_IDS.items()
}
_PREFIXES: Final = {version: prefix for prefix, version in _VERSIONS.items()}


class _OnDemand(dict[K, V]):
    """Makes what is asked for first, and keeps it: few programs meet every record."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self[key] = self._make(key)
        return value


@cache
def _make_writer(kind: type[msgspec.Struct], number: int) -> Writer:
    name = _NAMES[kind]
    version = f"{name}.{number}"
    schema, prefix = schema_of_version(version), _PREFIXES[version]
    if name not in _TABLES:
        return writer_of(schema, kind, prefix)
    table = _TABLES[name]
    write = fields_writer_of(schema, _types(table), prefix)
    width = len(schema["fields"]) - len(table.key) - len(msgspec.structs.fields(Stamps))
    return write if width == len(table.columns) else _narrower(write, len(table.key), width)


def _narrower(write: Writer, keys: int, width: int) -> Writer:
    """The writer of rows by an older schema, whose columns are the first ones of today's."""

    def write_first(*fields: Any) -> bytes:  # noqa: ANN401, what a row holds
        *values, stamps, stamp_of = fields
        if stamp_of[width:].strip(_UNSET):
            raise ValueError(f"expected columns behind the first {width} to be unset")
        return write(*values[: keys + width], stamps, stamp_of[:width])

    return write_first


def _make_reader(prefix: bytes) -> tuple[str, Reader]:
    """The name of what begins with a prefix, and what reads it."""
    version = _VERSIONS[prefix]
    name, schema = version.rpartition(".")[0], schema_of_version(version)
    if name in _TABLES:
        table = _TABLES[name]
        return name, fields_reader_of(schema, _types(table), table.field_names)
    return name, reader_of(schema, _KINDS[name])


def _types(table: Table) -> dict[str, Annotation]:
    """What a record of a table holds, by name."""
    # Type hints leave out what an annotation says for Postgres.
    return get_type_hints(table.kind) | get_type_hints(Stamps)


class _Written:
    """The forms that this process writes, and their writers: replaced as a whole."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self.forms = forms
        self.writers: Final = _OnDemand[type[msgspec.Struct], Writer](
            lambda kind: _make_writer(kind, forms[_NAMES[kind]].version)
        )


_READERS: Final = _OnDemand(_make_reader)
_written = _Written(NEWEST_FORMS)


def write_forms(forms: Mapping[str, Form]) -> None:
    """Says which version of each schema to write from now on; of others, none is."""
    global _written  # noqa: PLW0603, one for the process, and replaced at once for all threads
    if forms != _written.forms:
        _written = _Written(forms)


def written_forms() -> Mapping[str, Form]:
    """The versions that are written now; another object whenever they change."""
    return _written.forms


def encode(record: Record) -> bytes:
    """Encodes a record.

    Shape:  any member of `schemas.records.Record` -> bytes in the Confluent wire format.
    Errors: ValueError for what its schema cannot hold, such as an event that it does not know;
            NotYetReadable for what only the older version cannot that is written for others.
    """
    try:
        return _written.writers[type(record)](record)
    except _MISFITS as why:
        raise _misfit(type(record), (record,), why) from why


def decode(data: bytes | None, kind: type[R]) -> R:
    """Decodes a record of a known type.

    Errors: UndecodableRecord, UnknownSchema.
    """
    return cast("R", _read(data, _NAMES[kind]))


def encode_row(table: Table, row: Row) -> bytes:
    """Encodes a row of a projection table, every distinct stamp once.

    Errors: ValueError for what its schema cannot hold; NotYetReadable as `encode`.
    """
    stamps, stamp_of = _stamps_apart(row.stamps)
    fields = (*row.key, *row.values, stamps, stamp_of)
    try:
        return _written.writers[table.kind](*fields)
    except _MISFITS as why:
        raise _misfit(table.kind, fields, why) from why


def _stamps_apart(by_column: Sequence[Stamp | None]) -> tuple[list[Stamp], bytes]:
    """The distinct stamps of a row, and for each column which of them it has.

    Errors: ValueError for more than a byte can tell apart.
    """
    stamps: list[Stamp] = []
    stamp_of = bytearray()
    # By identity: the columns that a delivery set share its stamp, and hashing one is slow. They
    # often stand side by side, too.
    places: dict[int, int] = {}
    last, place = None, UNSET
    for stamp in by_column:
        if stamp is not last:
            last = stamp
            place = UNSET if stamp is None else places.setdefault(id(stamp), len(places))
            if place == len(stamps) and stamp is not None:
                stamps.append(stamp)
        stamp_of.append(place)
    if len(stamps) > UNSET:
        raise ValueError(f"expected at most {UNSET} stamps in a row, found {len(stamps)}")
    return stamps, bytes(stamp_of)


def decode_row(table: Table, data: bytes | None) -> Row:
    """Decodes a row of a projection table.

    Errors: UndecodableRecord, UnknownSchema.
    """
    *values, stamps, stamp_of = _read(data, table.schema)
    # Columns are only ever added behind the others: an older row has nothing to say of the newest.
    stamp_of = stamp_of.ljust(len(table.columns), _UNSET)
    held: dict[int, Stamp | None] = dict(enumerate(stamps))
    held[UNSET] = None
    try:
        held_by = tuple(map(held.__getitem__, stamp_of))
    except KeyError as why:
        raise UndecodableRecord(
            f"expected a row of {table.name} with {len(stamps)} stamps, found {why} named"
        ) from why
    width = len(table.key)
    return Row(tuple(values[:width]), tuple(values[width:]), held_by)


def reads(kind: type[msgspec.Struct], make: Callable[[Schema], Reader]) -> Callable[[bytes], Any]:
    """What reads records of a kind, with a reader of the caller's own for each version of it.

    Shape:  `kind` is a record's, or the one that a table is declared by.
    Errors: UndecodableRecord, UnknownSchema of what reads.
    """
    name = _NAMES[kind]

    def made(prefix: bytes) -> tuple[str, Reader]:
        version = _VERSIONS[prefix]
        found = version.rpartition(".")[0]
        return found, make(schema_of_version(version)) if found == name else _unread

    readers = _OnDemand(made)
    return lambda data: _read(data, name, readers)


def record_name(data: bytes | None) -> str:
    """The name of the schema that bytes are written by; empty if there is none."""
    return _VERSIONS.get((data or b"")[:_PREFIX_BYTES], "").rpartition(".")[0]


def decode_problem(data: bytes | None, schema: str) -> str | None:
    """What keeps bytes from being read as a record of a schema, if anything does."""
    try:
        _read(data, schema)
    except (UndecodableRecord, UnknownSchema) as error:
        return error.message
    return None


def _unread(_: bytes, at: int) -> tuple[None, int]:
    return None, at


def _read(
    data: bytes | None, name: str, readers: Mapping[bytes, tuple[str, Reader]] = _READERS
) -> Any:  # noqa: ANN401, the name says what
    if data is None:
        raise UndecodableRecord("expected a record, found a tombstone")
    try:
        found, read = readers[data[:_PREFIX_BYTES]]
    except KeyError:
        raise _unknown(data) from None
    if found != name:
        raise UndecodableRecord(f"expected a {name}, found a {found}")
    try:
        value, end = read(data, _PREFIX_BYTES)
    except _MISFITS as why:
        raise UndecodableRecord(f"expected a {name}, found {len(data)} other bytes: {why}") from why
    if end != len(data):
        raise UndecodableRecord(f"expected a {name} of {end} bytes, found {len(data)} bytes")
    return value


def _unknown(data: bytes) -> UndecodableRecord | UnknownSchema:
    """Says what bytes are that no reader is for."""
    if len(data) < _PREFIX_BYTES or data[:1] != _MAGIC:
        return UndecodableRecord(
            f"expected the Confluent wire format (a zero byte and a schema id), "
            f"found {len(data)} bytes that start with {data[:8].hex() or 'nothing'}"
        )
    return UnknownSchema(
        f"expected a schema id of the catalogue (1 to {max(IDS.values())}), "
        f"found {int.from_bytes(data[1:_PREFIX_BYTES], 'big')}"
    )


def _misfit(
    kind: type[msgspec.Struct], fields: tuple[Any, ...], why: Exception
) -> ValueError | NotYetReadable:
    """Says whether no schema can hold a value, or only the one that is written for now."""
    name = _NAMES.get(kind, "")
    newest = READS.get(name, 0)
    form = _written.forms.get(name, Form(0))
    with contextlib.suppress(*_MISFITS):
        if form.version < newest:
            _make_writer(kind, newest)(*fields)
            return NotYetReadable(
                f"expected all members to read version {newest} of {name}, found that "
                f"{form.behind or 'one'} reads {form.version or 'none'}; replace it"
            )
    return ValueError(
        f"expected a {kind.__name__} that its schema can hold, found one that it cannot: {why!r}"
    )
