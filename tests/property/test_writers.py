"""What a writer made from a schema writes is what fastavro writes, byte for byte."""

import json
import re
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.schemas.avro_schemas import IDS, NEWEST, schema_text
from headwater.schemas.codec import encode, encode_row
from headwater.schemas.history import Command, EntryOpened, HistoryAppended, LogEvent
from headwater.schemas.records import RECORD_TYPES, Record
from headwater.schemas.statuses import EntryKind
from headwater.schemas.tables import DAILY_SUMMARY, TABLES, Row, Table
from headwater.schemas.writers import number, writer_of
from tests.property.fastavro_twin import plain, plain_row, written
from tests.property.structs import LONGS, rows, structs

SCHEMAS = {name: json.loads(schema_text(version)) for name, version in NEWEST.items()}
NAMES = {kind: name for name, kind in RECORD_TYPES.items()}
RECORD = HistoryAppended(
    workflow="w", instance_id="i", run_number=0, sequence=1, epoch=2, cause=3, at_ms=4, events=()
)


def prefix(name: str) -> bytes:
    return b"\0" + IDS[NEWEST[name]].to_bytes(4, "big")


def assert_same(record: Record) -> None:
    name = NAMES[type(record)]
    assert encode(record) == prefix(name) + written(SCHEMAS[name], plain(record))


@pytest.mark.parametrize("kind", RECORD_TYPES.values(), ids=RECORD_TYPES)
def test_every_record_is_written_as_by_fastavro(kind: type[Record]):
    @given(record=structs(kind))
    @settings(max_examples=30, deadline=None)
    def check(record: Record) -> None:
        assert_same(record)

    check()


@pytest.mark.parametrize("kind", get_args(LogEvent), ids=lambda kind: kind.__name__)
def test_every_event_is_written_as_by_fastavro(kind: type[msgspec.Struct]):
    @given(events=st.lists(structs(kind), max_size=3))
    @settings(max_examples=20, deadline=None)
    def check(events: list[LogEvent]) -> None:
        assert_same(msgspec.structs.replace(RECORD, events=tuple(events)))

    check()


@pytest.mark.parametrize("kind", get_args(Command), ids=lambda kind: kind.__name__)
def test_every_command_is_written_as_by_fastavro(kind: type[msgspec.Struct]):
    @given(record=structs(RECORD_TYPES["command_sent"]), command=structs(kind))
    @settings(max_examples=20, deadline=None)
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
    assert number(value) == written("long", value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_number_beyond_64_bits_is_refused(value: int):
    with pytest.raises(OverflowError, match=r"expected a number of 64 bits, found -?922"):
        number(value)


@pytest.mark.parametrize("size", [0, 63, 64, 8_191, 8_192, 100_000])
def test_text_of_any_length_is_written_as_by_fastavro(size: int):
    text = "ä" * size
    assert writer_of("string", str)(text) == written("string", text)


def test_every_kind_of_entry_is_written_as_by_fastavro():
    opened = tuple(EntryOpened("k", "n", kind, 1) for kind in EntryKind)
    assert_same(msgspec.structs.replace(RECORD, events=opened))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_row_is_written_as_by_fastavro(table: Table):
    @given(row=rows(table))
    @settings(max_examples=30, deadline=None)
    def check(row: Row) -> None:
        expected = written(SCHEMAS[table.schema], plain_row(table, row))
        assert encode_row(table, row) == prefix(table.schema) + expected

    check()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"workflow": None}, "'NoneType' object has no attribute 'encode'"),
        ({"workflow": "\ud800"}, "surrogates not allowed"),
        ({"sequence": "1"}, "not supported between instances of 'int' and 'str'"),
        ({"sequence": 2**63}, "expected a number of 64 bits"),
        ({"events": None}, "no len()"),
        ({"events": (RECORD,)}, "HistoryAppended"),
        ({"events": (EntryOpened("k", "n", EntryKind.DO, 1, limit=""),)}, "'int' and 'str'"),
    ],
    ids=["no text", "no Unicode", "no number", "too large", "no events", "no event", "no limit"],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], told: str):
    said = "expected a HistoryAppended that its schema can hold, found one that it cannot: "
    with pytest.raises(ValueError, match=re.escape(said) + ".*" + re.escape(told)):
        encode(msgspec.structs.replace(RECORD, **wrong))


def test_a_row_that_does_not_fit_is_refused():
    row = Row((), (), ())
    with pytest.raises(ValueError, match="expected a DailySummary that its schema can"):
        encode_row(DAILY_SUMMARY, row)


def test_what_is_no_record_is_refused():
    with pytest.raises(ValueError, match="expected a EntryOpened that its schema can hold"):
        encode(EntryOpened("k", "n", EntryKind.DO, 1))


def test_what_a_writer_writes_begins_with_its_prefix():
    assert writer_of("long", int, b"before")(1) == b"before\x02"


def test_a_type_that_nobody_uses_has_no_writer():
    with pytest.raises(KeyError, match="map"):
        writer_of({"type": "map", "values": "long"}, dict[str, int])
