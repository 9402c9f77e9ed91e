"""Records of a later release: which they are, and how a wait for them is told."""

from dataclasses import dataclass

import pytest

from headwater.schemas.avro_schemas import IDS
from headwater.schemas.codec import encode
from headwater.schemas.newer import (
    RecordPosition,
    Waiting,
    is_newer,
    newer_schema_message,
    readable,
    skip,
)
from headwater.schemas.records import WebhooksClaimed

LATEST = max(IDS.values())
KNOWN = encode(WebhooksClaimed(["a"], [1], [1], 2))


def of_schema(number: int) -> bytes:
    """The beginning of a record with a schema id."""
    return b"\x00" + number.to_bytes(4, "big") + b"\x02"


@dataclass
class Record:
    """A record as Kafka gives it."""

    offset: int
    value: bytes | None
    topic: str = "events"
    key: bytes | None = None
    partition: int = 3


@pytest.mark.parametrize(
    ("value", "newer"),
    [
        (None, False), (b"", False), (b"\x00", False), (b"{}", False), (KNOWN, False),
        (of_schema(0), False), (of_schema(LATEST), False), (of_schema(LATEST + 1), True),
        (of_schema(LATEST + 1_000), True), (of_schema(LATEST + 1_001), False),
        (b"\x01\x00\x00\x00\xff", False),
        (b"\x00\x00\x00\xff", False),
    ],
)  # fmt: skip
def test_a_schema_id_beyond_the_catalogue_is_of_a_later_release(value: bytes | None, newer: bool):
    assert is_newer(Record(0, value)) is newer


@pytest.mark.parametrize(
    ("topic", "key", "newer"),
    [
        ("webhooks", b"0123456789abcdef" * 2, True), ("webhooks", b"order-1", False),
        ("webhooks", None, False), ("workflow-commands", b"order/order-1", True),
        ("workflow-commands", b"order", False), ("workflow-commands", b"a/b/c", False),
        ("workflow-history", b"anything", True),
    ],
)  # fmt: skip
def test_nobody_waits_for_records_whose_keys_are_not_ours(
    topic: str, key: bytes | None, newer: bool
):
    record = Record(0, of_schema(LATEST + 1), topic=topic, key=key)
    assert is_newer(record) is newer
    assert readable([record]) == (([], record) if newer else ([record], None))


def test_what_an_operator_has_skipped_is_neither_read_nor_waited_for():
    records = [Record(0, KNOWN), Record(1, of_schema(LATEST + 1)), Record(2, KNOWN)]
    skip([RecordPosition("events", 3, 1)])
    try:
        assert readable(records) == ([records[0], records[2]], None)
        assert readable([Record(1, of_schema(LATEST + 1), partition=2)])[1] is not None
    finally:
        skip([])


def test_records_are_readable_up_to_the_first_newer_one():
    records = [Record(0, KNOWN), Record(1, None), Record(2, of_schema(LATEST + 2)), Record(3, b"")]
    assert readable(records) == (records[:2], records[2])
    assert readable(records[:2]) == (records[:2], None)
    assert readable([]) == ([], None)


def test_a_wait_names_the_place_and_what_to_do():
    assert newer_schema_message(Record(7, of_schema(LATEST + 2))) == (
        f"events/3@7 has to wait: expected a schema id of 1 to {LATEST}, found {LATEST + 2}, which "
        "a newer release wrote; start that release here, or, if none did, `headwater topics skip`"
    )


def test_a_wait_is_told_at_once_and_every_minute():
    waiting = Waiting()
    waiting.begin(1, "one waits")
    assert waiting.due(5_000) == ["one waits"]
    waiting.begin(2, "two waits")
    assert waiting.due(6_000) == ["two waits"]
    assert waiting.due(64_999) == []
    assert waiting.due(65_000) == ["one waits"]
    assert waiting.due(66_000) == ["two waits"]
    assert 1 in waiting


def test_what_waits_no_more_is_told_no_more():
    waiting = Waiting()
    waiting.begin(1, "one waits")
    waiting.begin(2, "two waits")
    waiting.end(1)
    waiting.end(3)
    assert waiting.due(0) == ["two waits"]
    waiting.clear()
    assert waiting.due(60_000) == []
    assert 2 not in waiting
