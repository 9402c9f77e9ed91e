"""Records of a later release: which they are, and how a wait for them is told."""

from dataclasses import dataclass

import pytest

from headwater.schemas.catalogue import IDS
from headwater.schemas.codec import encode
from headwater.schemas.newer import Waiting, is_newer, readable, why_waits
from headwater.schemas.records import WebhooksClaimed

LATEST = max(IDS.values())
KNOWN = encode(WebhooksClaimed(["a"], [1], 2))


def of_schema(number: int) -> bytes:
    """The beginning of a record with a schema id."""
    return b"\x00" + number.to_bytes(4, "big") + b"\x02"


@dataclass
class Record:
    """A record as Kafka gives it."""

    offset: int
    value: bytes | None
    topic: str = "events"
    partition: int = 3


@pytest.mark.parametrize(
    ("value", "newer"),
    [
        (None, False), (b"", False), (b"\x00", False), (b"{}", False), (KNOWN, False),
        (of_schema(0), False), (of_schema(LATEST), False), (of_schema(LATEST + 1), True),
        (of_schema(65_535), True), (of_schema(65_536), False), (b"\x01\x00\x00\x00\xff", False),
        (b"\x00\x00\x00\xff", False),
    ],
)  # fmt: skip
def test_a_schema_id_beyond_the_catalogue_is_of_a_later_release(value: bytes | None, newer: bool):
    assert is_newer(value) is newer


def test_records_are_readable_up_to_the_first_newer_one():
    records = [Record(0, KNOWN), Record(1, None), Record(2, of_schema(LATEST + 2)), Record(3, b"")]
    assert readable(records) == (records[:2], records[2])
    assert readable(records[:2]) == (records[:2], None)
    assert readable([]) == ([], None)


def test_a_wait_names_the_place_and_what_to_do():
    assert why_waits(Record(7, of_schema(LATEST + 2))) == (
        f"events/3@7 has to wait: expected a schema id of 1 to {LATEST}, found {LATEST + 2}, which "
        "a newer release wrote; start that release here"
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
