"""Records and rows in the Confluent wire format, and bytes that are neither."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.catalogue import IDS
from schemas.codec import decode, decode_row, encode, encode_row
from schemas.errors import UndecodableRecord, UnknownSchema
from schemas.records import RECORD_TYPES, Record, Stamp, WebhookReceived, WebhooksClaimed
from schemas.tables import DAILY_SUMMARY, TABLES, Column, Row, Table

CLAIMED = WebhooksClaimed([], [], 1)

#: Text that UTF-8 can hold.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
STAMPS = st.builds(Stamp, INTS, LONGS, LONGS, TEXTS, INTS, LONGS)

_BY_ANNOTATION: dict[object, st.SearchStrategy[Any]] = {
    str: TEXTS,
    str | None: st.none() | TEXTS,
    bytes: st.binary(max_size=40),
    int: LONGS,
    list[str]: st.lists(TEXTS, max_size=3),
    list[int]: st.lists(LONGS, max_size=3),
    Stamp: STAMPS,
}
#: Fields of Avro type int, whose range is narrower than that of a long.
_INTS = {"partition", "rows"}
_BY_COLUMN: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "long": LONGS,
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
}


def instances(kind: type[Record]) -> st.SearchStrategy[Record]:
    fields = {
        field.name: INTS if field.name in _INTS else _BY_ANNOTATION[field.type]
        for field in msgspec.structs.fields(kind)
    }
    return st.builds(kind, **fields)


@st.composite
def rows(draw: st.DrawFn, table: Table) -> Row:
    def cell(column: Column) -> tuple[Any, Stamp | None]:
        if draw(st.booleans()):
            return None, None
        return draw(_BY_COLUMN[column.type]), draw(st.sampled_from(known))

    known = draw(st.lists(STAMPS, min_size=1, max_size=4))
    cells = [cell(column) for column in table.columns]
    return Row(
        tuple(draw(TEXTS) for _ in table.key),
        tuple(value for value, _ in cells),
        tuple(stamp for _, stamp in cells),
    )


@pytest.mark.parametrize("kind", RECORD_TYPES.values(), ids=RECORD_TYPES)
def test_every_record_is_read_as_it_was_written(kind: type[Record]):
    @settings(max_examples=40, deadline=None)
    @given(record=instances(kind))
    def check(record: Record) -> None:
        assert decode(encode(record), kind) == record

    check()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_row_is_read_as_it_was_written(table: Table):
    @settings(max_examples=40, deadline=None)
    @given(row=rows(table))
    def check(row: Row) -> None:
        assert decode_row(table, encode_row(table, row)) == row

    check()


def test_all_records_are_tried():
    assert set(get_args(Record)) == set(RECORD_TYPES.values())


def test_a_record_starts_with_a_zero_byte_and_its_schema_id():
    data = encode(CLAIMED)
    assert data[:1] == b"\x00"
    assert int.from_bytes(data[1:5], "big") == IDS["webhooks_claimed.1"]
    assert data[5:] == b"\x00\x00\x02"  # two empty arrays and a zigzag varint, nothing else


def test_a_row_names_every_stamp_once():
    stamp = Stamp(0, 1, 2, "e" * 32, 0, 3)
    other = Stamp(1, 1, 2, "e" * 32, 0, 3)
    width = len(DAILY_SUMMARY.columns)
    key = ("u", "s", "2026-07-01")
    one = Row(key, (None,) * width, (stamp,) * width)
    two = Row(key, (None,) * width, (other, *(stamp,) * (width - 1)))
    assert encode_row(DAILY_SUMMARY, one).count(b"e" * 32) == 1
    assert encode_row(DAILY_SUMMARY, two).count(b"e" * 32) == 2


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (None, UndecodableRecord),
        (b"", UndecodableRecord),
        (b"\x00\x00\x00", UndecodableRecord),
        (b"{}", UndecodableRecord),
        (b"\x01" + encode(CLAIMED)[1:], UndecodableRecord),
        (b"\x00\x00\x00\x00\x00\x0e\x02", UnknownSchema),
        (b"\x00\x7f\xff\xff\xff\x0e\x02", UnknownSchema),
        (encode(CLAIMED)[:-1], UndecodableRecord),
        (encode(CLAIMED) + b"\x00", UndecodableRecord),
        (encode(CLAIMED)[:5] + b"\xff" * 4, UndecodableRecord),
        (encode(CLAIMED)[:4] + b"\x01\x0e\x02", UndecodableRecord),
    ],
    ids=[
        "tombstone", "empty", "too short", "JSON", "another magic byte", "schema 0",
        "a schema to come", "cut off", "too long", "an endless number", "another record's bytes",
    ],
)  # fmt: skip
def test_bytes_that_are_no_record_are_named_as_what_they_are(
    data: bytes | None, error: type[Exception]
):
    with pytest.raises(error, match=r"expected .* found ") as caught:
        decode(data, WebhooksClaimed)
    assert type(caught.value) is error


def test_text_that_is_no_utf_8_is_undecodable():
    record = WebhookReceived(
        event_id="XX", request_id="", source="", type="", subject="", sent_at_ms=0,
        updated_at_ms=0, received_at_ms=0, body=b"",
    )  # fmt: skip
    data = encode(record).replace(b"XX", b"\xff\xfe")
    with pytest.raises(UndecodableRecord):
        decode(data, WebhookReceived)


def test_another_record_is_undecodable():
    with pytest.raises(UndecodableRecord, match="expected a webhook_received, found a webhooks_cl"):
        decode(encode(CLAIMED), WebhookReceived)


def test_another_tables_row_and_a_record_are_no_row():
    table = TABLES[0]
    width = len(table.columns)
    data = encode_row(table, Row(("k",) * len(table.key), (None,) * width, (None,) * width))
    with pytest.raises(UndecodableRecord, match=f"expected a row of {DAILY_SUMMARY.name}"):
        decode_row(DAILY_SUMMARY, data)
    with pytest.raises(UndecodableRecord, match="found a webhooks_claimed"):
        decode_row(DAILY_SUMMARY, encode(CLAIMED))


@given(data=st.binary(max_size=60) | st.binary(max_size=60).map(encode(CLAIMED)[:5].__add__))
@settings(max_examples=200, deadline=None)
def test_no_bytes_whatever_raise_anything_else(data: bytes):
    for kind in RECORD_TYPES.values():
        try:
            assert isinstance(decode(data, kind), kind)
        except (UndecodableRecord, UnknownSchema):
            continue


@given(
    first=st.lists(TEXTS, min_size=3, max_size=3), second=st.lists(TEXTS, min_size=3, max_size=3)
)
@settings(max_examples=50, deadline=None)
def test_two_rows_have_one_record_key_only_if_their_keys_are_equal(
    first: list[str], second: list[str]
):
    keys = DAILY_SUMMARY.row_key(tuple(first)), DAILY_SUMMARY.row_key(tuple(second))
    assert (keys[0] == keys[1]) is (first == second)
    assert msgspec.json.decode(keys[0]) == first
