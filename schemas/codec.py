"""Avro in the Confluent wire format, and the schema versions that may be written.

A record is a zero byte, the schema id as four bytes, and the Avro binary. Ids come from the
checked-in catalog. A record is read with the version that its id names, so every release reads
everything ever written. It is written with the newest version of its schema that all other members
read (`set_write_versions`); without other members, with the newest. Writers and readers are
generated from the schemas (`writers`, `readers`).

Every member announces what it reads; one of them, of any release, computes the common versions. So
announcements are plain data by schema name. A name that a member does not announce is a schema that
it cannot read: it is not written until that member is replaced.
"""

import contextlib
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar, cast, get_type_hints

import msgspec

from headwater.schemas.api_keys import (
    ApiKeyCreated,
    ApiKeyRecord,
    ApiKeyRevoked,
    ApiKeyRotated,
    ApiKeyUsed,
)
from headwater.schemas.avro_schemas import IDS
from headwater.schemas.avro_types import Annotation, Schema
from headwater.schemas.deployments import (
    DeploymentActivated,
    DeploymentCreated,
    DeploymentLoaded,
    DeploymentRecord,
    DeploymentRetired,
    EnvironmentReported,
    LoadRequested,
)
from headwater.schemas.endpoints import (
    EndpointCreated,
    EndpointDeleted,
    EndpointRecord,
    EndpointSecretSet,
    EndpointStateSet,
)
from headwater.schemas.errors import PARSE_ERRORS, NotYetReadable, UndecodableRecord, UnknownSchema
from headwater.schemas.installed_tables import ALL_TABLES, SCHEMA_IDS, schema_of_version
from headwater.schemas.readers import Reader, fields_reader_of, reader_of
from headwater.schemas.records import RECORD_TYPES, Record, Stamp
from headwater.schemas.row_states import UNSET, Stamps, decode_state, encode_state
from headwater.schemas.tables import Row, Table
from headwater.schemas.writers import Writer, fields_writer_of, writer_of


class Announcement(msgspec.Struct, frozen=True):
    """What a member reads: the newest version of every schema, by name."""

    member: str = ""
    reads: dict[str, int] = {}


class SchemaVersion(msgspec.Struct, frozen=True):
    """The version of a schema to write, and a member that reads no newer one, if any (`behind`)."""

    version: int
    behind: str = ""


def _versions() -> dict[str, list[int]]:
    versions: dict[str, list[int]] = {}
    for version in SCHEMA_IDS:
        name, _, number = version.rpartition(".")
        versions.setdefault(name, []).append(int(number))
    return versions


#: The newest version of every schema that this release reads, and writes if all others read it.
READABLE_VERSIONS: Final = {name: max(numbers) for name, numbers in _versions().items()}
NEWEST_VERSIONS: Final = {
    name: SchemaVersion(version) for name, version in READABLE_VERSIONS.items()
}
#: Versions that every release reads; to be written while the other members are not known.
OLDEST_VERSIONS: Final = {
    name: SchemaVersion(min(numbers), "a member that is not known yet" if len(numbers) > 1 else "")
    for name, numbers in _versions().items()
}


def common_versions(announcements: Sequence[Announcement]) -> dict[str, SchemaVersion]:
    """Return the newest version of every schema that all members read."""
    versions: dict[str, SchemaVersion] = {}
    names = {name for announcement in announcements for name in announcement.reads}
    for name in names:
        read = [(member.reads.get(name, 0), member.member) for member in announcements]
        (least, member_name), most = min(read), max(read)[0]
        versions[name] = SchemaVersion(least, member_name if least < most else "")
    return versions


def parse_announcement(data: bytes) -> Announcement:
    """Parse an announcement; invalid data announces nothing."""
    try:
        return msgspec.json.decode(data, type=Announcement)
    except PARSE_ERRORS:
        return Announcement(member="a member that announces nothing")


def parse_versions(data: bytes) -> Mapping[str, SchemaVersion] | None:
    """Parse the common versions; None if the data is invalid."""
    try:
        return msgspec.json.decode(data, type=dict[str, SchemaVersion])
    except PARSE_ERRORS:
        return None


# -- encoding and decoding

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", bound=Record)

_MAGIC: Final = b"\x00"
_PREFIX_BYTES: Final = 5
_UNSET: Final = bytes([UNSET])
#: Errors of generated writers and readers.
_CODEC_ERRORS: Final = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    OverflowError,
    struct.error,
)
_KINDS: Final = RECORD_TYPES | {table.schema: table.kind for table in ALL_TABLES}
_NAMES: Final[dict[type[msgspec.Struct], str]] = {kind: name for name, kind in _KINDS.items()}
_TABLES: Final = {table.schema: table for table in ALL_TABLES}
_VERSIONS: Final = {
    _MAGIC + number.to_bytes(4, "big"): version for version, number in SCHEMA_IDS.items()
}
_PREFIXES: Final = {version: prefix for prefix, version in _VERSIONS.items()}


class _Cache(dict[K, V]):
    """Creates values when they are first used: few programs use every record type."""

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
    """Return the writer of rows with an older schema, which has the first columns of today's."""

    def write_first(*fields: Any) -> bytes:  # noqa: ANN401, what a row holds
        *values, stamps, stamp_of, state = fields
        if stamp_of[width:].strip(_UNSET):
            raise ValueError(f"expected columns after the first {width} to be unset")
        return write(*values[: keys + width], stamps, stamp_of[:width], state)

    return write_first


def _make_reader(prefix: bytes) -> tuple[str, Reader]:
    """Return the schema name and the reader of records with a prefix."""
    version = _VERSIONS[prefix]
    name, schema = version.rpartition(".")[0], schema_of_version(version)
    if name in _TABLES:
        table = _TABLES[name]
        return name, fields_reader_of(schema, _types(table), table.field_names)
    return name, reader_of(schema, _KINDS[name])


def _types(table: Table) -> dict[str, Annotation]:
    """Return the types of the fields of a table's records, by name."""
    # Without the annotations for Postgres.
    return get_type_hints(table.kind) | get_type_hints(Stamps)


class _WriteState:
    """The versions that this process writes, and their writers: replaced as a whole."""

    def __init__(self, versions: Mapping[str, SchemaVersion]) -> None:
        self.versions = versions
        self.writers: Final = _Cache[type[msgspec.Struct], Writer](
            lambda kind: _make_writer(kind, versions[_NAMES[kind]].version)
        )


_READERS: Final = _Cache(_make_reader)
_write_state = _WriteState(NEWEST_VERSIONS)


def set_write_versions(versions: Mapping[str, SchemaVersion]) -> None:
    """Set which version of every schema to write from now on; others are not written."""
    global _write_state  # noqa: PLW0603, one for the process, and replaced at once for all threads
    if versions != _write_state.versions:
        _write_state = _WriteState(versions)


def write_versions() -> Mapping[str, SchemaVersion]:
    """Return the versions that are currently written; a new object whenever they change."""
    return _write_state.versions


def encode(record: Record) -> bytes:
    """Encode a record in the Confluent wire format.

    Raises:
        ValueError: Its schema cannot represent it, for example an unknown event.
        NotYetReadable: Only a newer version than the one that is written for other members can
            represent it.
    """
    try:
        return _write_state.writers[type(record)](record)
    except _CODEC_ERRORS as error:
        raise _encode_error(type(record), (record,), error) from error


def decode(data: bytes | None, kind: type[R]) -> R:
    """Decode a record of a known type.

    Raises:
        UndecodableRecord: The bytes are not such a record.
        UnknownSchema: The schema id is not in the catalog.
    """
    return cast("R", _read(data, _NAMES[kind]))


def encode_row(table: Table, row: Row) -> bytes:
    """Encode a row of a projection table, with every distinct stamp once.

    Raises:
        ValueError: Its schema cannot represent it.
        NotYetReadable: As for `encode`.
    """
    stamps, stamp_of = _distinct_stamps(row.stamps)
    state = "" if row.state is None else encode_state(row.state)
    fields = (*row.key, *row.values, stamps, stamp_of, state)
    try:
        return _write_state.writers[table.kind](*fields)
    except _CODEC_ERRORS as error:
        raise _encode_error(table.kind, fields, error) from error


def _distinct_stamps(by_column: Sequence[Stamp | None]) -> tuple[list[Stamp], bytes]:
    """Return the distinct stamps of a row, and the index of the stamp of every column.

    Raises:
        ValueError: There are more stamps than a byte can index.
    """
    stamps: list[Stamp] = []
    stamp_of = bytearray()
    # By identity: the columns set by one delivery share its stamp, and hashing one is slow. Columns
    # with the same stamp are often adjacent as well.
    indexes: dict[int, int] = {}
    last, index = None, UNSET
    for stamp in by_column:
        if stamp is not last:
            last = stamp
            index = UNSET if stamp is None else indexes.setdefault(id(stamp), len(indexes))
            if index == len(stamps) and stamp is not None:
                stamps.append(stamp)
        stamp_of.append(index)
    if len(stamps) > UNSET:
        raise ValueError(f"expected at most {UNSET} stamps in a row, found {len(stamps)}")
    return stamps, bytes(stamp_of)


def decode_row(table: Table, data: bytes | None) -> Row:
    """Decode a row of a projection table.

    Raises:
        UndecodableRecord: The bytes are not such a row.
        UnknownSchema: The schema id is not in the catalog.
    """
    *values, stamps, stamp_of, state = _read(data, table.schema)
    # Columns are only appended, so an older row has no stamps of newer columns.
    stamp_of = stamp_of.ljust(len(table.columns), _UNSET)
    by_index: dict[int, Stamp | None] = dict(enumerate(stamps))
    by_index[UNSET] = None
    try:
        by_column = tuple(map(by_index.__getitem__, stamp_of))
    except KeyError as error:
        raise UndecodableRecord(
            f"expected a row of {table.name} with {len(stamps)} stamps, found {error} named"
        ) from error
    width = len(table.key)
    return Row(
        tuple(values[:width]),
        tuple(values[width:]),
        by_column,
        decode_state(state) if state else None,
    )


def reads(kind: type[msgspec.Struct], make: Callable[[Schema], Reader]) -> Callable[[bytes], Any]:
    """Return a reader of records of a kind, with a custom reader for every version.

    Args:
        kind: Struct of a record or of a table.
        make: Creates the reader of a schema version.

    Returns:
        A function that raises UndecodableRecord and UnknownSchema.
    """
    name = _NAMES[kind]

    def make_reader(prefix: bytes) -> tuple[str, Reader]:
        version = _VERSIONS[prefix]
        actual = version.rpartition(".")[0]
        return actual, make(schema_of_version(version)) if actual == name else _unread

    readers = _Cache(make_reader)
    return lambda data: _read(data, name, readers)


def record_name(data: bytes | None) -> str:
    """Return the name of the schema of encoded bytes; empty if there is none."""
    return _VERSIONS.get((data or b"")[:_PREFIX_BYTES], "").rpartition(".")[0]


def decode_problem(data: bytes | None, schema: str) -> str | None:
    """Return why bytes cannot be decoded as a record of a schema, or None if they can."""
    try:
        _read(data, schema)
    except (UndecodableRecord, UnknownSchema) as error:
        return error.message
    return None


def _unread(_: bytes, position: int) -> tuple[None, int]:
    return None, position


def _read(
    data: bytes | None, name: str, readers: Mapping[bytes, tuple[str, Reader]] = _READERS
) -> Any:  # noqa: ANN401, the name determines the type
    if data is None:
        raise UndecodableRecord("expected a record, found a tombstone")
    try:
        actual, read = readers[data[:_PREFIX_BYTES]]
    except KeyError:
        raise _unknown(data) from None
    if actual != name:
        raise UndecodableRecord(f"expected a {name}, found a {actual}")
    try:
        value, end = read(data, _PREFIX_BYTES)
    except _CODEC_ERRORS as error:
        raise UndecodableRecord(
            f"expected a {name}, found {len(data)} other bytes: {error}"
        ) from error
    if end != len(data):
        raise UndecodableRecord(f"expected a {name} of {end} bytes, found {len(data)} bytes")
    return value


def _unknown(data: bytes) -> UndecodableRecord | UnknownSchema:
    """Return the error for bytes with a prefix that no reader has."""
    if len(data) < _PREFIX_BYTES or data[:1] != _MAGIC:
        return UndecodableRecord(
            f"expected the Confluent wire format (a zero byte and a schema id), "
            f"found {len(data)} bytes that start with {data[:8].hex() or 'nothing'}"
        )
    return UnknownSchema(
        f"expected a schema id of the catalog (1 to {max(IDS.values())}), "
        f"found {int.from_bytes(data[1:_PREFIX_BYTES], 'big')}"
    )


def _encode_error(
    kind: type[msgspec.Struct], fields: tuple[Any, ...], error: Exception
) -> ValueError | NotYetReadable:
    """Return whether no version can represent a value, or only one that is not written yet."""
    name = _NAMES.get(kind, "")
    newest = READABLE_VERSIONS.get(name, 0)
    version = _write_state.versions.get(name, SchemaVersion(0))
    with contextlib.suppress(*_CODEC_ERRORS):
        if version.version < newest:
            _make_writer(kind, newest)(*fields)
            return NotYetReadable(
                f"expected all members to read version {newest} of {name}, found that "
                f"{version.behind or 'one'} reads {version.version or 'none'}; replace it"
            )
    return ValueError(
        f"expected a {kind.__name__} that its schema can hold, found one that it cannot: {error!r}"
    )


_KEY_RECORDS: Final[dict[str, type[ApiKeyRecord]]] = {
    "api_key_created": ApiKeyCreated,
    "api_key_rotated": ApiKeyRotated,
    "api_key_revoked": ApiKeyRevoked,
    "api_key_used": ApiKeyUsed,
}


def read_api_key_record(value: bytes | None) -> ApiKeyRecord:
    """Decode a record of the topic of API keys.

    Raises:
        UndecodableRecord: The bytes are not such a record.
        UnknownSchema: The schema id is not in the catalog.
    """
    return decode(value, _KEY_RECORDS.get(record_name(value) or "", ApiKeyCreated))


_ENDPOINT_RECORDS: Final[dict[str, type[EndpointRecord]]] = {
    "endpoint_secret_set": EndpointSecretSet,
    "endpoint_state_set": EndpointStateSet,
    "endpoint_deleted": EndpointDeleted,
}


def read_endpoint_record(value: bytes | None) -> EndpointRecord:
    """Decode a record of the topic of endpoints.

    Raises:
        UndecodableRecord: The bytes are not such a record.
        UnknownSchema: The schema id is not in the catalog.
    """
    return decode(value, _ENDPOINT_RECORDS.get(record_name(value), EndpointCreated))


def read_deployment_record(value: bytes | None) -> DeploymentRecord:
    """Decode a record of the topic.

    Raises:
        UndecodableRecord: The bytes are not such a record.
        UnknownSchema: The schema id is not in the catalog.
    """
    kinds: Mapping[str, type[DeploymentRecord]] = {
        "deployment_activated": DeploymentActivated,
        "deployment_loaded": DeploymentLoaded,
        "deployment_retired": DeploymentRetired,
        "environment_reported": EnvironmentReported,
        "load_requested": LoadRequested,
    }
    return decode(value, kinds.get(record_name(value), DeploymentCreated))
