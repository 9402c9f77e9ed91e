"""Read values that producers encoded with a Confluent-compatible schema registry.

Such a value begins with a zero byte and the id of its schema; the rest is Avro.
"""

import io
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import fastavro
import httpx2
import msgspec
from fastavro.schema import parse_schema

from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.clock import monotonic as seconds

log = logging.getLogger(__name__)

_MAGIC: Final = 0
_ID_BYTES: Final = 4
_PREFIX_BYTES: Final = 1 + _ID_BYTES
_TIMEOUT_S: Final = 10.0
#: How long a schema counts as unusable: a replica of the registry may receive it seconds later, and
#: an operator may correct the registry, or a proxy in front of it.
_UNUSABLE_S: Final = 30.0
#: References of a schema to others, and theirs.
_REFERENCES_MAX: Final = 100
_NOT_FOUND: Final = 404


class RegistryUnavailable(HeadwaterError):
    """The schema registry did not return a usable response; the request can be repeated."""

    disposition = Disposition.RETRY
    code = "registry_unavailable"


class AvroUnreadable(ValueError):
    """A value that is not Avro of the schema that it names."""


class _Reference(msgspec.Struct):
    subject: str
    version: int


class _Schema(msgspec.Struct):
    schema: str
    schemaType: str = "AVRO"  # noqa: N815 (as the registry names it)
    references: tuple[_Reference, ...] = ()


class _Unusable(NamedTuple):
    """Why values of a schema cannot be read, and until when it is not read again."""

    reason: str
    until_s: float


class SchemaRegistry:
    """Schemas by id; a usable one is read once, because an id never changes its meaning."""

    def __init__(
        self,
        url: str,
        client: httpx2.AsyncClient | None = None,
        monotonic: Callable[[], float] = seconds,
    ) -> None:
        """Prepare a client for the registry at a URL, which may contain user and password."""
        self._client = client or httpx2.AsyncClient(base_url=url, timeout=_TIMEOUT_S)
        self._monotonic = monotonic
        #: Parsed schemas by id, or instances of `_Unusable`.
        self._schemas: dict[int, Any] = {}

    async def stop(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    async def load(self, values: Iterable[bytes]) -> None:
        """Read the schemas of values that are not known yet, or have been unusable for 30 s.

        Raises:
            RegistryUnavailable: A schema could not be read.
        """
        for number in {schema_id for value in values if (schema_id := _id_of(value)) is not None}:
            schema = self._schemas.get(number)
            is_unusable = isinstance(schema, _Unusable) and self._monotonic() >= schema.until_s
            if schema is None or is_unusable:
                self._schemas[number] = await self._read(number)

    def decode(self, value: bytes) -> bytes:
        """Return a value as JSON; its schema is loaded.

        Bytes are in base64, decimals are texts, and times are RFC 3339.

        Raises:
            AvroUnreadable: It is not Avro of its schema.
        """
        number = _id_of(value)
        if number is None:
            raise AvroUnreadable(
                f"expected a zero byte, the id of a schema, and Avro; found {value[:8]!r}"
            )
        schema = self._schemas[number]
        if isinstance(schema, _Unusable):
            raise AvroUnreadable(schema.reason)
        stream = io.BytesIO(value[_PREFIX_BYTES:])
        try:
            decoded = fastavro.schemaless_reader(stream, schema, None)
            text = msgspec.json.encode(decoded)
        except Exception as error:  # fastavro raises whatever its decoding meets
            detail = f"expected Avro of schema {number}, found: {error!r:.200}"
            raise AvroUnreadable(detail) from error
        if rest := stream.read():
            raise AvroUnreadable(f"expected Avro of schema {number}, found {len(rest)} bytes more")
        return text

    async def _read(self, number: int) -> Any:  # noqa: ANN401 (as fastavro parses it)
        """Return a parsed schema, or why there is none."""
        try:
            return await self._parsed(number)
        except AvroUnreadable as error:
            return _Unusable(str(error), self._monotonic() + _UNUSABLE_S)

    async def _parsed(self, number: int) -> Any:  # noqa: ANN401 (as fastavro parses it)
        schema = await self._get(f"/schemas/ids/{number}")
        if schema is None:
            raise AvroUnreadable(
                f"expected a schema of the registry, found none with the id {number}"
            )
        if schema.schemaType != "AVRO":
            raise AvroUnreadable(
                f"expected an Avro schema, found {schema.schemaType} with the id {number}"
            )
        named: dict[str, Any] = {}
        try:
            await self._add_references(schema, named)
            parsed = msgspec.json.decode(schema.schema)
            # A parsed schema that is not a record does not contain what it refers to.
            return parse_schema(parsed, named, expand=bool(named))
        except RegistryUnavailable:
            raise
        except Exception as error:  # fastavro raises whatever parsing meets
            raise AvroUnreadable(
                f"expected an Avro schema with the id {number}, found: {error!r:.200}"
            ) from error

    async def _add_references(self, schema: _Schema, named: dict[str, Any], seen: int = 0) -> None:
        for reference in schema.references:
            if seen >= _REFERENCES_MAX:
                raise AvroUnreadable(f"expected at most {_REFERENCES_MAX} references")
            path = f"/subjects/{reference.subject}/versions/{reference.version}"
            other = await self._get(path)
            if other is None:
                raise AvroUnreadable(f"expected {path} in the registry, found none")
            await self._add_references(other, named, seen + 1)
            parse_schema(msgspec.json.decode(other.schema), named)

    async def _get(self, path: str) -> _Schema | None:
        try:
            response = await self._client.get(path)
            if response.status_code == _NOT_FOUND:
                return None
            response.raise_for_status()
            return msgspec.json.decode(response.content, type=_Schema)
        except (httpx2.HTTPError, msgspec.MsgspecError) as error:
            raise RegistryUnavailable(
                f"expected {path} of the schema registry, found: {error!r:.200}"
            ) from error


def _id_of(value: bytes) -> int | None:
    """Return the id of a value's schema; None if it has none."""
    if len(value) < _PREFIX_BYTES or value[0] != _MAGIC:
        return None
    return int.from_bytes(value[1:_PREFIX_BYTES], "big")
