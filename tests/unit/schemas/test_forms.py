"""Which version of a schema is written, and what becomes of a record that it cannot hold."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.schemas import codec
from headwater.schemas.avro_types import Schema
from headwater.schemas.codec import (
    NEWEST_VERSIONS,
    READABLE_VERSIONS,
    Announcement,
    SchemaVersion,
    common_versions,
    encode,
    encode_row,
    parse_announcement,
    parse_versions,
    set_write_versions,
)
from headwater.schemas.errors import NotYetReadable
from headwater.schemas.history import HistoryAppended, HostLost, PartitionClaimed
from headwater.schemas.records import OutcomeRecorded, Stamp, WebhooksClaimed
from headwater.schemas.tables import DAILY_SUMMARY, Row

CLAIMED = WebhooksClaimed(["a"], [1], [1], 2)
CLAIM = PartitionClaimed("w")
LOST = HostLost("stood still", 5)


def test_what_is_common_is_the_least_that_members_read():
    forms = common_versions(
        [
            Announcement("one", {"event": 3, "row": 1}),
            Announcement("two", {"event": 2, "row": 1}),
            Announcement("three", {"event": 3, "row": 1}),
        ]
    )
    assert forms == {"event": SchemaVersion(2, "two"), "row": SchemaVersion(1)}


def test_a_schema_that_a_member_does_not_name_is_one_that_it_cannot_read():
    forms = common_versions(
        [Announcement("new", {"event": 1, "mood": 1}), Announcement("old", {"event": 1})]
    )
    assert forms == {"event": SchemaVersion(1), "mood": SchemaVersion(0, "old")}


def test_an_announcement_of_another_release_is_read_as_far_as_it_goes():
    assert parse_announcement(b'{"member":"m","reads":{"x":7},"writes":[1]}') == Announcement(
        "m", {"x": 7}
    )
    assert parse_announcement(b"\xff").reads == {}
    assert parse_versions(b'{"x":{"version":7,"since":1}}') == {"x": SchemaVersion(7)}
    assert parse_versions(b"[]") is None


def test_the_newest_is_written_if_nothing_else_is_said():
    assert codec.write_versions() == NEWEST_VERSIONS
    assert {name: form.version for name, form in NEWEST_VERSIONS.items()} == READABLE_VERSIONS


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[str, Any]]]:
    """Has version 2 of every schema be what it is, and version 1 what a test makes of it."""
    texts = {
        name: codec.schema_of_version(f"{name}.{READABLE_VERSIONS[name]}")
        for name in READABLE_VERSIONS
    }
    number_of = {name: 1_000 + at for at, name in enumerate(READABLE_VERSIONS)}

    def schema_of(version: str) -> Schema:
        name, _, number = version.rpartition(".")
        if int(number) <= READABLE_VERSIONS[name]:
            return texts[name]
        return newest[name]

    newest = {name: json.loads(json.dumps(schema)) for name, schema in texts.items()}
    prefixes = {
        f"{name}.{READABLE_VERSIONS[name] + 1}": b"\x00" + number.to_bytes(4, "big")
        for name, number in number_of.items()
    }
    monkeypatch.setattr(codec, "schema_of_version", schema_of)
    monkeypatch.setattr(codec, "_PREFIXES", codec._PREFIXES | prefixes)
    monkeypatch.setattr(
        codec, "READABLE_VERSIONS", {name: number + 1 for name, number in READABLE_VERSIONS.items()}
    )
    codec._make_writer.cache_clear()
    set_write_versions(
        {name: SchemaVersion(number, "an old member") for name, number in READABLE_VERSIONS.items()}
    )
    yield texts
    codec._make_writer.cache_clear()
    set_write_versions(NEWEST_VERSIONS)


def without(schema: dict[str, Any], *names: str) -> None:
    schema["fields"] = [field for field in schema["fields"] if field["name"] not in names]


def outcome(**fields: int) -> OutcomeRecorded:
    return OutcomeRecorded(
        event_id="e", request_id="r", source="s", type="t", subject="", status="dead", reason="",
        rows=0, partition=0, offset=0, received_at_ms=0, admitted_at_ms=0, at_ms=0, stage="admit",
        position="", **fields,
    )  # fmt: skip


def test_an_older_form_leaves_out_what_says_nothing(released: dict[str, dict[str, Any]]):
    without(released["outcome_recorded"], "released_at_ms")
    shorter = encode(outcome())
    set_write_versions(
        {"outcome_recorded": SchemaVersion(READABLE_VERSIONS["outcome_recorded"] + 1)}
    )
    assert len(encode(outcome())) == len(shorter) + 1


def test_a_value_that_an_older_form_lacks_waits_for_who_reads_it(
    released: dict[str, dict[str, Any]],
):
    without(released["outcome_recorded"], "released_at_ms")
    with pytest.raises(NotYetReadable, match=r"version 2 of outcome_recorded, .* an old member"):
        encode(outcome(released_at_ms=5))
    set_write_versions(
        {"outcome_recorded": SchemaVersion(READABLE_VERSIONS["outcome_recorded"] + 1)}
    )
    assert encode(outcome(released_at_ms=5))


def test_a_kind_of_event_that_an_older_form_lacks_waits(released: dict[str, dict[str, Any]]):
    events = next(f for f in released["history_appended"]["fields"] if f["name"] == "events")
    kinds = events["type"]["items"]
    events["type"]["items"] = [
        kind for kind in kinds if not (isinstance(kind, dict) and kind["name"] == "HostLost")
    ]

    def record(*what: PartitionClaimed | HostLost) -> HistoryAppended:
        return HistoryAppended(
            workflow="w", instance_id="i", run_number=0, sequence=0, epoch=0, cause=-1, at_ms=0,
            events=what,
        )  # fmt: skip

    assert encode(record(CLAIM))
    with pytest.raises(NotYetReadable):
        encode(record(CLAIM, LOST))


def test_a_row_is_written_with_the_columns_that_all_know(released: dict[str, dict[str, Any]]):
    without(released["daily_summary"], DAILY_SUMMARY.column_names[-1])
    stamp = Stamp(0, 1, 2, "e", 0, 0)
    width = len(DAILY_SUMMARY.columns)
    none = (None,) * (width - 1)
    most = Row(("u", "garmin", "2026-01-01"), (1, *none), (stamp, *none))
    assert encode_row(DAILY_SUMMARY, most)
    whole = Row(most.key, (*most.values[:-1], 60), (*most.stamps[:-1], stamp))
    with pytest.raises(NotYetReadable, match="daily_summary"):
        encode_row(DAILY_SUMMARY, whole)


def test_a_schema_that_nobody_else_knows_is_not_written(released: dict[str, dict[str, Any]]):
    set_write_versions({"webhooks_claimed": SchemaVersion(0, "an old member")})
    with pytest.raises(NotYetReadable, match="an old member reads none"):
        encode(CLAIMED)


def test_what_no_form_holds_is_refused_as_ever(released: dict[str, dict[str, Any]]):
    with pytest.raises(ValueError, match="expected a WebhooksClaimed"):
        encode(WebhooksClaimed(["a"], ["no number"], [1], 2))  # type: ignore[list-item]
