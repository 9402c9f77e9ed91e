"""Records and rows in the Confluent wire format, and bytes that are neither."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.schemas.avro_schemas import IDS
from headwater.schemas.codec import decode, decode_row, encode, encode_row
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.history import (
    NO_CAUSE,
    Child,
    EntryOpened,
    HistoryAppended,
    Post,
    PostsQueued,
    RunPaused,
    Sender,
    SendEvent,
    StartRun,
    StepCompleted,
)
from headwater.schemas.records import RECORD_TYPES, Record, Stamp, WebhookReceived, WebhooksClaimed
from headwater.schemas.statuses import EntryKind
from headwater.schemas.tables import DAILY_SUMMARY, TABLES, Row, Table
from tests.property.structs import TEXTS, rows, structs

CLAIMED = WebhooksClaimed([], [], [], 1)


@pytest.mark.parametrize("kind", RECORD_TYPES.values(), ids=RECORD_TYPES)
def test_every_record_is_read_as_it_was_written(kind: type[Record]):
    @settings(max_examples=40, deadline=None)
    @given(record=structs(kind))
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
    # Three empty arrays and a zigzag varint, nothing else.
    assert data[5:] == b"\x00\x00\x00\x02"


_STEP = StepCompleted("k", "n", 1, 2, 3, 4, 5, "{}")
_WAITS = EntryOpened("k", "n", EntryKind.WAIT, 1, event_types=("t",), child=Child("w", "i"))
_POST = Post(number=1, command=SendEvent("e", "t", "{}"))
_SENT = Sender("w", "i", 0, 1)
_STARTS = Post(number=2, command=StartRun("{}", sender=_SENT))
_APPENDED = HistoryAppended(
    workflow="w", instance_id="i", run_number=0, sequence=1, epoch=2, cause=NO_CAUSE, at_ms=4,
    events=(RunPaused(), _STEP, _WAITS, PostsQueued((_POST,))),
)  # fmt: skip
_WRITTEN = (
    b"\x02w\x02i\x00\x02\x04\x01\x08"
    b"\x08"  # four events
    b"\x04"  # the third branch, no fields
    b"\x1c\x02k\x02n\x02\x04\x06\x08\x0a\x04{}\x00"
    b"\x20\x02k\x02n\x1cwait_for_event\x02\x00\x02\x02\x02t\x00\x00\x02\x02w\x02i\x00"
    b"\x14\x02\x02\x00\x00\x04\x02e\x02t\x04{}\x00"
)


def test_an_event_is_written_as_the_number_of_its_branch_and_its_fields():
    # The log is read for ever: bytes that were written once must never mean something else.
    nothing_more_no_topic_no_order_no_trace = b"\x00\x00\x00\x00\x00\x00\x01\x00"
    end_of_the_posts_and_the_events = b"\x00\x00"
    assert encode(_APPENDED) == (
        b"\x00\x00\x00\x00\x07"
        + _WRITTEN
        + nothing_more_no_topic_no_order_no_trace
        + end_of_the_posts_and_the_events
    )


def test_who_sent_a_start_is_written_behind_its_parent():
    record = msgspec.structs.replace(_APPENDED, events=(PostsQueued((_STARTS,)),))
    sent, no_topic_no_order_no_trace = b"\x02\x02w\x02i\x00\x02", b"\x00\x00\x00\x01\x00"
    nothing_more = b"\x00\x00\x00\x00\x00\x00"
    post = b"\x04\x00\x00\x02\x04{}\x00" + sent + nothing_more + no_topic_no_order_no_trace
    assert encode(record).endswith(b"\x02\x14\x02" + post + b"\x00\x00")
    assert decode(encode(record), HistoryAppended) == record


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
        (b"\x00" + (max(IDS.values()) + 1).to_bytes(4, "big") + b"\x0e\x02", UnknownSchema),
        (encode(CLAIMED)[:-1], UndecodableRecord),
        (encode(CLAIMED) + b"\x00", UndecodableRecord),
        (encode(CLAIMED)[:5] + b"\xff" * 4, UndecodableRecord),
        (encode(CLAIMED)[:4] + b"\x01\x0e\x02", UndecodableRecord),
    ],
    ids=[
        "tombstone", "empty", "too short", "JSON", "another magic byte", "schema 0",
        "a schema that will never be", "a schema to come", "cut off", "too long",
        "an endless number", "another record's bytes",
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
    with pytest.raises(UndecodableRecord, match="expected a daily_summary, found a terra"):
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
