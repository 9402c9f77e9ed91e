"""What fastavro writes and reads, which is what the made writers and readers are held to."""

import json
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeAlias

import fastavro
import msgspec

from headwater.schemas.tables import UNSET, Row, Table

#: What fastavro takes and gives: JSON with bytes, and structs in it where they come from ours.
Plain: TypeAlias = Any


def plain(value: Plain) -> Plain:
    """A value as fastavro takes it; `-type` says which branch of a union a record is."""
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return {"-type": f"headwater.{type(value).__name__}"} | fields
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def plain_row(table: Table, row: Row) -> dict[str, Any]:
    """A row as fastavro takes it."""
    stamps = list({id(stamp): stamp for stamp in row.stamps if stamp is not None}.values())
    names = (*table.key_names, *table.column_names)
    return dict(zip(names, (*row.key, *row.values), strict=True)) | {
        "stamps": plain(stamps),
        "stamp_of": bytes(
            UNSET if held is None else next(at for at, stamp in enumerate(stamps) if stamp is held)
            for held in row.stamps
        ),
    }


@lru_cache(100)
def _parsed(schema: str) -> object:
    """A schema as fastavro has it, which takes longer than to write or read a value."""
    return fastavro.parse_schema(json.loads(schema))


def written(schema: object, value: Plain) -> bytes:
    """A plain value by a schema."""
    out = BytesIO()
    fastavro.schemaless_writer(out, _parsed(json.dumps(schema)), value)
    return out.getvalue()


def read(data: bytes, schema: object, newest: object) -> Plain:
    """What some bytes of one schema are by the newest; a record in a union comes with its name.

    Errors: whatever fastavro raises; EOFError too if it leaves bytes over.
    """
    stream = BytesIO(data)
    schemas = _parsed(json.dumps(schema)), _parsed(json.dumps(newest))
    value = fastavro.schemaless_reader(stream, *schemas, return_record_name=True)
    if stream.tell() != len(data):
        raise EOFError(f"read {stream.tell()} of {len(data)} bytes")
    return value


def same(value: Plain, found: Plain) -> bool:
    """Tells whether a struct, or what is within one, is what fastavro has read."""
    if isinstance(found, tuple):
        name, fields = found
        return name == f"headwater.{type(value).__name__}" and same(value, fields)
    if isinstance(found, dict):
        return set(found) == set(value.__struct_fields__) and all(
            same(getattr(value, name), found[name]) for name in found
        )
    if isinstance(found, list):
        return len(found) == len(value) and all(map(same, value, found))
    return value == found
