"""Values that other programs encoded with a schema registry."""

import asyncio
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import httpx2
import pytest

from headwater.streams.kafka.schema_registry import (
    AvroUnreadable,
    RegistryUnavailable,
    SchemaRegistry,
)

ORDER: dict[str, Any] = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "total",
         "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "raw", "type": "bytes"},
    ],
}  # fmt: skip
CUSTOMER = {"type": "record", "name": "Customer", "fields": [{"name": "name", "type": "string"}]}
VALUE = {
    "id": 7, "note": None, "at": datetime(2026, 7, 1, tzinfo=UTC), "total": Decimal("1.50"),
    "raw": b"\x00\x01",
}  # fmt: skip
SCHEMAS = {
    "/schemas/ids/1": {"schema": json.dumps(ORDER)},
    "/schemas/ids/2": {
        "schema": json.dumps({"type": "array", "items": "Customer"}),
        "references": [{"name": "Customer", "subject": "customer", "version": 3}],
    },
    "/subjects/customer/versions/3": {"schema": json.dumps(CUSTOMER)},
    "/schemas/ids/3": {"schema": "syntax = 'proto3'", "schemaType": "PROTOBUF"},
    "/schemas/ids/4": {"schema": '{"type": "what"}'},
    "/schemas/ids/5": {"schema": '"string"'},
}


def encoded(number: int, schema: Any, value: object) -> bytes:  # noqa: ANN401 (as fastavro has it)
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


class Registry:
    def __init__(self) -> None:
        self.requested: list[str] = []
        self.status = 200
        self.missing: list[str] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requested.append(request.url.path)
        if self.status != 200:
            return httpx2.Response(self.status)
        path = request.url.path
        found = None if path in self.missing else SCHEMAS.get(path)
        return httpx2.Response(404 if found is None else 200, json=found or {"error_code": 40403})


def decoded(value: bytes, registry: Registry | None = None) -> object:
    transport = httpx2.MockTransport(registry or Registry())
    client = SchemaRegistry("", httpx2.AsyncClient(base_url="http://registry", transport=transport))

    async def read() -> object:
        await client.load([value, value])
        await client.load([value])
        try:
            return json.loads(client.decode(value))
        finally:
            await client.stop()

    return asyncio.run(read())


def test_a_value_becomes_json_by_its_schema_which_is_read_once():
    registry = Registry()
    assert decoded(encoded(1, ORDER, VALUE), registry) == {
        "id": 7, "note": None, "at": "2026-07-01T00:00:00Z", "total": "1.50", "raw": "AAE=",
    }  # fmt: skip
    assert registry.requested == ["/schemas/ids/1"]


def test_a_schema_may_refer_to_others():
    value = encoded(2, {"type": "array", "items": CUSTOMER}, [{"name": "Amara"}])
    assert decoded(value) == [{"name": "Amara"}]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "a zero byte"),
        (b"{}", "a zero byte"),
        (b"\0\0\0\0\x01", "expected Avro of schema 1"),
        (encoded(1, ORDER, VALUE) + b"x", "1 bytes more"),
        (b"\0\0\0\0\x09rest", "found none with the id 9"),
        (b"\0\0\0\0\x03rest", "found PROTOBUF"),
        (b"\0\0\0\0\x04rest", "expected an Avro schema with the id 4"),
    ],
)
def test_a_value_that_cannot_be_read_says_why(value: bytes, problem: str):
    with pytest.raises(AvroUnreadable, match=problem):
        decoded(value)


def test_a_registry_that_does_not_answer_is_asked_again():
    registry = Registry()
    registry.status = 503
    with pytest.raises(RegistryUnavailable):
        decoded(encoded(1, ORDER, VALUE), registry)


@pytest.mark.parametrize(
    "late", [["/schemas/ids/2"], ["/subjects/customer/versions/3"]], ids=["schema", "reference"]
)
def test_a_schema_that_the_registry_did_not_have_is_requested_again_after_30_s(late: list[str]):
    registry, now_s = Registry(), 100.0
    registry.missing = late
    transport = httpx2.MockTransport(registry)
    client = SchemaRegistry(
        "",
        httpx2.AsyncClient(base_url="http://registry", transport=transport),
        monotonic=lambda: now_s,
    )
    value = encoded(2, {"type": "array", "items": CUSTOMER}, [{"name": "Amara"}])

    async def read() -> None:
        nonlocal now_s
        await client.load([value])
        registry.missing, requests = [], len(registry.requested)
        now_s += 29.9
        await client.load([value])
        assert len(registry.requested) == requests
        with pytest.raises(AvroUnreadable, match=r"found none|expected an Avro schema"):
            client.decode(value)
        now_s += 0.1
        await client.load([value])
        assert json.loads(client.decode(value)) == [{"name": "Amara"}]
        requests = len(registry.requested)
        now_s += 1_000
        await client.load([value])
        assert len(registry.requested) == requests, "a schema never changes"
        await client.stop()

    asyncio.run(read())


def test_a_schema_may_be_a_primitive_type():
    assert decoded(encoded(5, "string", "Amara")) == "Amara"
