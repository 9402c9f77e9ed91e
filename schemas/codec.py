"""Avro in the Confluent wire format: a zero byte, the schema id as four bytes, the Avro binary.

Ids come from the checked-in catalogue. A record is written with the newest version of its schema
and read with the version that its id names, so a reader of today reads everything ever written.
Writers and readers are made from the schemas (`writers`, `readers`).
"""

import json
import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast, get_type_hints

import msgspec

from headwater.schemas.avro_types import Annotation
from headwater.schemas.catalogue import IDS, NEWEST, schema_text
from headwater.schemas.errors import NewerSchema, UndecodableRecord, UnknownSchema
from headwater.schemas.newer import is_newer, why_newer
from headwater.schemas.readers import Reader, fields_reader_of, reader_of
from headwater.schemas.records import RECORD_TYPES, Record, Stamp
from headwater.schemas.tables import TABLES, UNSET, Row, Stamps, Table
from headwater.schemas.writers import Writer, fields_writer_of, writer_of

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", bound=Record)

_MAGIC: Final = b"\x00"
_PREFIX_BYTES: Final = 5
_UNSET: Final = bytes([UNSET])
_NO_STAMP: Final = id(None)
#: What a made writer or reader may raise.
_MISFITS: Final = (TypeError, ValueError, LookupError, AttributeError, OverflowError, struct.error)
_KINDS: Final = RECORD_TYPES | {table.schema: table.kind for table in TABLES}
_NAMES: Final[dict[type[msgspec.Struct], str]] = {kind: name for name, kind in _KINDS.items()}
_TABLES: Final = {table.schema: table for table in TABLES}
_VERSIONS: Final = {_MAGIC + number.to_bytes(4, "big"): version for version, number in IDS.items()}
_PREFIXES: Final = {version: prefix for prefix, version in _VERSIONS.items()}


class _OnDemand(dict[K, V]):
    """Makes what is asked for first, and keeps it: few programs meet every record."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self[key] = self._make(key)
        return value


def _make_writer(kind: type[msgspec.Struct]) -> Writer:
    name = _NAMES[kind]
    version = NEWEST[name]
    schema, prefix = json.loads(schema_text(version)), _PREFIXES[version]
    if name in _TABLES:
        return fields_writer_of(schema, _types(_TABLES[name]), prefix)
    return writer_of(schema, kind, prefix)


def _make_reader(prefix: bytes) -> tuple[str, Reader]:
    """The name of what begins with a prefix, and what reads it."""
    version = _VERSIONS[prefix]
    name, schema = version.rpartition(".")[0], json.loads(schema_text(version))
    if name in _TABLES:
        table = _TABLES[name]
        return name, fields_reader_of(schema, _types(table), table.field_names)
    return name, reader_of(schema, _KINDS[name])


def _types(table: Table) -> dict[str, Annotation]:
    """What a record of a table holds, by name."""
    # Type hints leave out what an annotation says for Postgres.
    return get_type_hints(table.kind) | get_type_hints(Stamps)


_WRITERS: Final = _OnDemand(_make_writer)
_READERS: Final = _OnDemand(_make_reader)


def encode(record: Record) -> bytes:
    """Encodes a record.

    Shape:  any member of `schemas.records.Record` -> bytes in the Confluent wire format.
    Errors: ValueError for what its schema cannot hold, such as an event that it does not know.
    """
    try:
        return _WRITERS[type(record)](record)
    except _MISFITS as why:
        raise _misfit(type(record).__name__, why) from why


def decode(data: bytes | None, kind: type[R]) -> R:
    """Decodes a record of a known type.

    Errors: UndecodableRecord, UnknownSchema, NewerSchema.
    """
    return cast("R", _read(data, _NAMES[kind]))


def encode_row(table: Table, row: Row) -> bytes:
    """Encodes a row of a projection table, every distinct stamp once.

    Errors: ValueError for what its schema cannot hold.
    """
    # By identity: the columns that a delivery set share its stamp, and hashing one is slow.
    identities = tuple(map(id, row.stamps))
    stamps = dict(zip(identities, row.stamps, strict=True))
    stamps.pop(_NO_STAMP, None)
    places = dict(zip(stamps, range(UNSET), strict=False))
    places[_NO_STAMP] = UNSET
    try:
        stamp_of = bytes(map(places.__getitem__, identities))
        return _WRITERS[table.kind](*row.key, *row.values, [*stamps.values()], stamp_of)
    except _MISFITS as why:
        raise _misfit(f"row of {table.name}", why) from why


def decode_row(table: Table, data: bytes | None) -> Row:
    """Decodes a row of a projection table.

    Errors: UndecodableRecord, UnknownSchema, NewerSchema.
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


def decode_fields(table: Table, data: bytes | None) -> dict[str, Any]:
    """Decodes a row of a projection table to its bare fields, for readers that only pass it on.

    Shape:  key and columns by name, `stamps` a tuple, `stamp_of` as bytes (UNSET for no stamp).
    Errors: UndecodableRecord, UnknownSchema, NewerSchema.
    """
    return dict(zip(table.field_names, _read(data, table.schema), strict=True))


def _read(data: bytes | None, name: str) -> Any:  # noqa: ANN401, the name says what
    if data is None:
        raise UndecodableRecord("expected a record, found a tombstone")
    try:
        found, read = _READERS[data[:_PREFIX_BYTES]]
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


def _unknown(data: bytes) -> UndecodableRecord | UnknownSchema | NewerSchema:
    """Says what bytes are that no reader is for."""
    if len(data) < _PREFIX_BYTES or data[:1] != _MAGIC:
        return UndecodableRecord(
            f"expected the Confluent wire format (a zero byte and a schema id), "
            f"found {len(data)} bytes that start with {data[:8].hex() or 'nothing'}"
        )
    if is_newer(data):
        return NewerSchema(why_newer(data))
    return UnknownSchema(
        f"expected a schema id of the catalogue (1 to {max(IDS.values())}), "
        f"found {int.from_bytes(data[1:_PREFIX_BYTES], 'big')}"
    )


def _misfit(what: str, why: Exception) -> ValueError:
    return ValueError(
        f"expected a {what} that its schema can hold, found one that it cannot: {why!r}"
    )
