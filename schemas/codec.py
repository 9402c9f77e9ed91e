"""Avro in the Confluent wire format: a zero byte, the schema id as four bytes, the Avro binary.

The only module that imports fastavro. Ids come from the checked-in `avro/ids.json`; a record is
written with the newest version of its schema and read with the version that its id names, so a
reader of today reads everything ever written.
"""

import json
from io import BytesIO
from operator import itemgetter
from typing import Any, Final, TypeVar, cast

import fastavro
import msgspec

from headwater.schemas.catalogue import IDS, NEWEST, schema_text
from headwater.schemas.conversions import Conversion, from_plain, to_plain
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.records import RECORD_TYPES, Record, Stamp
from headwater.schemas.tables import TABLES, UNSET, Row, Table
from headwater.schemas.writers import Writer, writer_of

R = TypeVar("R", bound=Record)

_MAGIC: Final = b"\x00"
_PREFIX_BYTES: Final = 5
_PARSED: Final[dict[int, Any]] = {
    number: fastavro.parse_schema(json.loads(schema_text(version)))
    for version, number in IDS.items()
}
_NAME_OF: Final[dict[int, str]] = {
    number: version.rsplit(".", 1)[0] for version, number in IDS.items()
}
_NEWEST: Final[dict[str, int]] = {name: IDS[version] for name, version in NEWEST.items()}
_PREFIX: Final[dict[str, bytes]] = {
    name: _MAGIC + number.to_bytes(4, "big") for name, number in _NEWEST.items()
}
_NAME_BY_TYPE: Final[dict[type[msgspec.Struct], str]] = {
    kind: name for name, kind in RECORD_TYPES.items()
}
_WRITERS: Final[dict[type[msgspec.Struct], Writer]] = {
    kind: writer_of(json.loads(schema_text(NEWEST[name])), kind, _PREFIX[name])
    for name, kind in RECORD_TYPES.items()
}
_TO_PLAIN: Final[dict[type[msgspec.Struct], Conversion]] = {
    kind: to_plain(kind) for kind in RECORD_TYPES.values()
}
_FROM_PLAIN: Final[dict[type[msgspec.Struct], Conversion]] = {
    kind: from_plain(kind) for kind in RECORD_TYPES.values()
}
_ROW_VALUES: Final = {
    table.name: itemgetter(*table.key_names, *table.column_names) for table in TABLES
}


def _write(name: str, fields: dict[str, Any]) -> bytes:
    out = BytesIO()
    out.write(_PREFIX[name])
    fastavro.schemaless_writer(out, _PARSED[_NEWEST[name]], fields)
    return out.getvalue()


def _read(data: bytes | None) -> tuple[str, dict[str, Any]]:
    if data is None:
        raise UndecodableRecord("expected a record, found a tombstone")
    if len(data) < _PREFIX_BYTES or data[:1] != _MAGIC:
        raise UndecodableRecord(
            f"expected the Confluent wire format (a zero byte and a schema id), "
            f"found {len(data)} bytes that start with {data[:8].hex() or 'nothing'}"
        )
    number = int.from_bytes(data[1:_PREFIX_BYTES], "big")
    schema = _PARSED.get(number)
    if schema is None:
        raise UnknownSchema(
            f"expected a schema id of the catalogue (1 to {max(_PARSED)}), found {number}; "
            "usual cause: a producer that is newer than this reader"
        )
    name = _NAME_OF[number]
    newest = _PARSED[_NEWEST[name]]
    stream = BytesIO(data)
    stream.seek(_PREFIX_BYTES)
    try:
        fields = fastavro.schemaless_reader(
            stream,
            schema,
            None if schema is newest else newest,
            # Rows have no union of records, and their many nullable columns would be slower.
            return_record_name=name in RECORD_TYPES,
        )
    except (EOFError, ValueError, IndexError, TypeError, UnicodeDecodeError, OverflowError) as why:
        raise UndecodableRecord(
            f"expected a {name} (schema id {number}), found {len(data)} other bytes: {why}"
        ) from why
    if stream.tell() != len(data):
        raise UndecodableRecord(
            f"expected a {name} of {stream.tell()} bytes, found {len(data)} bytes"
        )
    return name, cast("dict[str, Any]", fields)


def encode(record: Record) -> bytes:
    """Encodes a record.

    Shape:  any member of `schemas.records.Record` -> bytes in the Confluent wire format.
    Errors: TypeError, ValueError or OverflowError, for what its schema cannot hold, such as an
            event that the catalogue does not know.
    """
    kind = type(record)
    try:
        return _WRITERS[kind](record)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
        # The library says what is wrong, or takes it after all.
        return _write(_NAME_BY_TYPE[kind], _TO_PLAIN[kind](record))


def decode(data: bytes | None, kind: type[R]) -> R:
    """Decodes a record of a known type.

    Errors: UndecodableRecord, UnknownSchema.
    """
    name, fields = _read(data)
    if name != _NAME_BY_TYPE[kind]:
        raise UndecodableRecord(f"expected a {_NAME_BY_TYPE[kind]}, found a {name}")
    try:
        return cast("R", _FROM_PLAIN[kind](fields))
    except ValueError as why:
        raise UndecodableRecord(f"expected a {name}, found another value: {why}") from why


def encode_row(table: Table, row: Row) -> bytes:
    """Encodes a row of a projection table, every distinct stamp once."""
    # By identity: the columns that a delivery set share its stamp, and hashing one is slow.
    at_of: dict[int, int] = {}
    stamps: list[dict[str, Any]] = []
    stamp_of = bytearray()
    for stamp in row.stamps:
        if stamp is None:
            stamp_of.append(UNSET)
            continue
        at = at_of.get(id(stamp))
        if at is None:
            at = at_of[id(stamp)] = len(stamps)
            stamps.append(msgspec.structs.asdict(stamp))
        stamp_of.append(at)
    fields: dict[str, Any] = dict(zip(table.key_names, row.key, strict=True))
    fields.update(zip(table.column_names, row.values, strict=True))
    fields["stamps"] = stamps
    fields["stamp_of"] = bytes(stamp_of)
    return _write(table.schema, fields)


def decode_row(table: Table, data: bytes | None) -> Row:
    """Decodes a row of a projection table.

    Errors: UndecodableRecord, UnknownSchema.
    """
    fields = decode_fields(table, data)
    stamps = [Stamp(**stamp) for stamp in fields["stamps"]]
    stamp_of = [None if at == UNSET else stamps[at] for at in fields["stamp_of"]]
    # Columns are only ever added behind the others: an older row has nothing to say of the newest.
    stamp_of += [None] * (len(table.columns) - len(stamp_of))
    values = _ROW_VALUES[table.name](fields)
    width = len(table.key)
    return Row(values[:width], values[width:], tuple(stamp_of))


def decode_fields(table: Table, data: bytes | None) -> dict[str, Any]:
    """Decodes a row of a projection table to its bare fields, for readers that only pass it on.

    Shape:  key and columns by name, `stamps` as dicts, `stamp_of` as bytes (UNSET for no stamp).
    Errors: UndecodableRecord, UnknownSchema.
    """
    name, fields = _read(data)
    if name != table.schema:
        raise UndecodableRecord(f"expected a row of {table.name}, found a {name}")
    return fields
