"""What a reader made from a schema reads is what fastavro reads."""

import copy
import json
import struct
from functools import partial
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.schemas.avro_schemas import NEWEST, schema_text
from headwater.schemas.codec import decode, decode_row, encode, encode_row
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.history import HistoryAppended, LogEvent
from headwater.schemas.readers import composing_reader_of, fields_reader_of, number, reader_of
from headwater.schemas.records import RECORD_TYPES, Record, Stamp
from headwater.schemas.tables import DAILY_SUMMARY, TABLES, Row, Table
from tests.property.fastavro_twin import plain, plain_row, read, same, written
from tests.property.structs import LONGS, rows, structs

SCHEMAS = {name: json.loads(schema_text(version)) for name, version in NEWEST.items()}
RECORD = HistoryAppended(
    workflow="w", instance_id="i", run_number=0, sequence=1, epoch=2, cause=3, at_ms=4, events=()
)
READERS = {name: reader_of(SCHEMAS[name], kind) for name, kind in RECORD_TYPES.items()}


def older(schema: Any, draw: st.DrawFn) -> Any:  # noqa: ANN401, JSON
    """A schema as it was before some of its fields that have defaults."""
    if isinstance(schema, list):
        return [older(branch, draw) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    schema = copy.copy(schema)
    if schema["type"] == "array":
        schema["items"] = older(schema["items"], draw)
    else:
        # A record that is defined within a field is named elsewhere: the field has to stay.
        schema["fields"] = [
            field | {"type": older(field["type"], draw)}
            for field in schema["fields"]
            if "default" not in field or "fields" in json.dumps(field) or draw(st.booleans())
        ]
    return schema


@pytest.mark.parametrize("name", RECORD_TYPES)
def test_every_record_is_read_as_fastavro_wrote_it(name: str):
    @given(record=structs(RECORD_TYPES[name]))
    @settings(max_examples=30, deadline=None)
    def check(record: Record) -> None:
        data = written(SCHEMAS[name], plain(record))
        assert READERS[name](data, 0) == (record, len(data))

    check()


@pytest.mark.parametrize("kind", get_args(LogEvent), ids=lambda kind: kind.__name__)
def test_every_event_is_read_as_fastavro_wrote_it(kind: type[msgspec.Struct]):
    @given(events=st.lists(structs(kind), max_size=3))
    @settings(max_examples=30, deadline=None)
    def check(events: list[LogEvent]) -> None:
        record = msgspec.structs.replace(RECORD, events=tuple(events))
        data = written(SCHEMAS["history_appended"], plain(record))
        assert READERS["history_appended"](data, 0) == (record, len(data))

    check()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_row_is_read_as_fastavro_wrote_it(table: Table):
    @given(row=rows(table))
    @settings(max_examples=30, deadline=None)
    def check(row: Row) -> None:
        expected = plain_row(table, row)
        data = encode_row(table, row)[:5] + written(SCHEMAS[table.schema], expected)
        assert decode_row(table, data) == row

    check()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_texts_and_doubles_may_be_read_as_the_bytes_that_lie_there(table: Table):
    columns = (*table.key, *table.columns)
    types = {c.name: bytes if c.type in (str, float) else c.type for c in columns}
    names = ", ".join(f"{{{column.name}}}" for column in columns)
    made = composing_reader_of(
        SCHEMAS[table.schema],
        {**types, "stamps": tuple[Stamp, ...], "stamp_of": bytes},
        f"({names}, {{never_declared}}, mine)",
        {"mine": 7},
    )

    @given(row=rows(table))
    @settings(max_examples=30, deadline=None)
    def check(row: Row) -> None:
        data = written(SCHEMAS[table.schema], plain_row(table, row))
        (*result, never, mine), end = made(data, 0)
        assert (never, mine, end) == (None, 7, len(data))
        raw = {str: lambda text: text.encode(), float: partial(struct.pack, "<d")}
        assert result == [
            raw[type(value)](value) if type(value) in raw else value
            for value in (*row.key, *row.values)
        ]

    check()


@pytest.mark.parametrize("name", RECORD_TYPES)
def test_every_older_version_is_read_as_by_fastavro(name: str):
    @given(record=structs(RECORD_TYPES[name]), data=st.data())
    @settings(max_examples=20, deadline=None)
    def check(record: Record, data: st.DataObject) -> None:
        schema = data.draw(st.composite(lambda draw: older(SCHEMAS[name], draw))())
        value = written(schema, plain(record))
        result, end = reader_of(schema, RECORD_TYPES[name])(value, 0)
        assert end == len(value)
        assert same(result, read(value, schema, SCHEMAS[name]))

    check()


@given(row=rows(DAILY_SUMMARY), columns=st.integers(0, len(DAILY_SUMMARY.columns)))
@settings(max_examples=20, deadline=None)
def test_an_older_row_says_nothing_of_the_columns_that_came_after_it(row: Row, columns: int):
    schema = copy.copy(SCHEMAS["daily_summary"])
    first_new = len(DAILY_SUMMARY.key) + columns
    schema["fields"] = schema["fields"][:first_new] + schema["fields"][-3:]
    data = written(schema, plain_row(DAILY_SUMMARY, row))
    types = {field["name"]: object for field in schema["fields"]}
    (*values, _, _, _), end = fields_reader_of(schema, types, DAILY_SUMMARY.field_names)(data, 0)
    assert end == len(data)
    assert values[:first_new] == [*row.key, *row.values[:columns]]
    assert set(values[first_new:]) <= {None}


@given(value=LONGS)
@example(0)
@example(-1)
@example(63)
@example(64)
@example(-65)
@example(8_191)
@example(8_192)
@example(-8_193)
@example(2**63 - 1)
@example(-(2**63))
def test_every_number_is_read_as_fastavro_wrote_it(value: int):
    data = written("long", value)
    assert number(data, 0) == (value, len(data))


def test_an_array_may_come_in_blocks_that_say_their_size():
    record = HistoryAppended(
        workflow="", instance_id="", run_number=0, sequence=0, epoch=0, cause=0, at_ms=0, events=()
    )
    schema = {"type": "array", "items": "string"}
    blocks = b"\x02\x02a" + b"\x03\x08\x02b\x02c" + b"\x00"
    assert read(blocks, schema, schema) == ["a", "b", "c"]
    assert reader_of(schema, tuple[str, ...])(blocks, 0) == (("a", "b", "c"), len(blocks))
    assert decode(encode(record), HistoryAppended) == record


@given(record=structs(HistoryAppended), data=st.data())
@settings(max_examples=100, deadline=None)
def test_bytes_that_were_harmed_are_refused_or_read_as_by_fastavro(
    record: HistoryAppended, data: st.DataObject
):
    harmed = bytearray(encode(record))
    at = data.draw(st.integers(5, len(harmed) - 1))
    harmed[at:] = data.draw(st.binary(max_size=3)) + harmed[at + 1 :]
    try:
        result = decode(bytes(harmed), HistoryAppended)
    except (UndecodableRecord, UnknownSchema):
        return
    schema = SCHEMAS["history_appended"]
    assert same(result, read(bytes(harmed[5:]), schema, schema))
