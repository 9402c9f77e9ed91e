"""What a writer made from a schema writes is what fastavro writes, byte for byte."""

import json
from io import BytesIO
from typing import Any, get_args

import fastavro
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.schemas.catalogue import NEWEST, schema_text
from headwater.schemas.codec import encode
from headwater.schemas.conversions import to_plain
from headwater.schemas.history import Command, EntryKind, EntryOpened, HistoryAppended, LogEvent
from headwater.schemas.records import RECORD_TYPES, Record
from headwater.schemas.writers import number, writer_of
from tests.property.structs import LONGS, structs

SCHEMAS = {kind: json.loads(schema_text(NEWEST[name])) for name, kind in RECORD_TYPES.items()}
WRITERS = {kind: writer_of(schema, kind) for kind, schema in SCHEMAS.items()}
RECORD = HistoryAppended(
    workflow="w", instance_id="i", run_number=0, sequence=1, epoch=2, cause=3, at_ms=4, events=()
)


def by_fastavro(schema: object, plain: object) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), plain)
    return out.getvalue()


def assert_same(record: Record) -> None:
    kind = type(record)
    assert WRITERS[kind](record) == by_fastavro(SCHEMAS[kind], to_plain(kind)(record))


@pytest.mark.parametrize("kind", RECORD_TYPES.values(), ids=RECORD_TYPES)
def test_every_record_is_written_as_by_fastavro(kind: type[Record]):
    @given(record=structs(kind))
    @settings(max_examples=100, deadline=None)
    def check(record: Record) -> None:
        assert_same(record)

    check()


@pytest.mark.parametrize("kind", get_args(LogEvent), ids=lambda kind: kind.__name__)
def test_every_event_is_written_as_by_fastavro(kind: type[msgspec.Struct]):
    @given(record=structs(HistoryAppended), events=st.lists(structs(kind), max_size=3))
    @settings(max_examples=40, deadline=None)
    def check(record: HistoryAppended, events: list[LogEvent]) -> None:
        assert_same(msgspec.structs.replace(record, events=(*events, *record.events)))

    check()


@pytest.mark.parametrize("kind", get_args(Command), ids=lambda kind: kind.__name__)
def test_every_command_is_written_as_by_fastavro(kind: type[msgspec.Struct]):
    @given(record=structs(RECORD_TYPES["command_sent"]), command=structs(kind))
    @settings(max_examples=40, deadline=None)
    def check(record: Record, command: Command) -> None:
        assert_same(msgspec.structs.replace(record, command=command))

    check()


@given(value=LONGS)
@example(0)
@example(-1)
@example(63)
@example(64)
@example(-64)
@example(-65)
@example(2**63 - 1)
@example(-(2**63))
def test_every_number_is_written_as_by_fastavro(value: int):
    assert number(value) == by_fastavro("long", value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_number_beyond_64_bits_is_refused(value: int):
    with pytest.raises(OverflowError, match=r"expected a number of 64 bits, found -?922"):
        number(value)


@pytest.mark.parametrize("size", [0, 63, 64, 8_191, 8_192, 100_000])
def test_text_of_any_length_is_written_as_by_fastavro(size: int):
    text = "ä" * size
    assert writer_of("string", str)(text) == by_fastavro("string", text)


def test_every_kind_of_entry_is_written_as_by_fastavro():
    opened = tuple(EntryOpened("k", "n", kind, 1) for kind in EntryKind)
    assert_same(msgspec.structs.replace(RECORD, events=opened))


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ({"workflow": None}, TypeError, "must be string on field workflow"),
        ({"workflow": "\ud800"}, UnicodeEncodeError, "surrogates not allowed"),
        ({"sequence": "1"}, TypeError, "an integer is required on field sequence"),
        ({"sequence": 2**63}, OverflowError, "too large"),
        ({"events": None}, TypeError, "not iterable"),
        ({"events": (EntryOpened("k", "n", EntryKind.DO, 1, limit=""),)}, ValueError, "limit"),
    ],
    ids=["no text", "no Unicode", "no number", "too large", "no events", "no branch"],
)
def test_fastavro_says_what_does_not_fit(wrong: dict[str, Any], error: type[Exception], told: str):
    with pytest.raises(error, match=told):
        encode(msgspec.structs.replace(RECORD, **wrong))


def test_what_a_writer_writes_begins_with_its_prefix():
    assert writer_of("long", int, b"before")(1) == b"before\x02"


def test_a_type_that_nobody_uses_has_no_writer():
    with pytest.raises(KeyError, match="map"):
        writer_of({"type": "map", "values": "long"}, dict[str, int])
