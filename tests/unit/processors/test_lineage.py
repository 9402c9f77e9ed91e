"""Goal: what is said of a row, with the winner first, and by which version of a normalizer."""

from dataclasses import replace

import msgspec

from headwater.processors import lineage
from headwater.processors.lineage import ColumnValue, same_key, updates_of, values_of_row
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import DAILY_SUMMARY, SLEEP_SESSIONS, USERS
from tests.unit.processors.deliveries import USER, admitted

_RECORD = {
    "metadata": {
        "start_time": "2026-07-01T00:00:00+01:00",
        "end_time": "2026-07-01T23:59:00+01:00",
    },
    "distance_data": {"steps": 5},
}
DAILY = admitted("daily", msgspec.json.encode({"type": "daily", "user": USER, "data": [_RECORD]}))
DAY = ("user_amara", "garmin", "2026-07-01")


def test_a_changed_normalizer_puts_its_version_into_the_stamps() -> None:
    kind = replace(TERRA.types["daily"], version=2)
    changed = replace(TERRA, types={**TERRA.types, "daily": kind})
    first, user = updates_of(DAILY, {"terra": TERRA})
    second, _ = updates_of(DAILY, {"terra": changed})
    assert (first.stamp.version, second.stamp.version) == (1, 2)
    assert (user.table, user.key) == (USERS, (DAILY.user_id,))
    assert msgspec.structs.replace(second, stamp=first.stamp) == first


def test_what_comes_to_no_rows_says_nothing() -> None:
    replaced = msgspec.structs.replace
    assert updates_of(DAILY, {}) == ()
    assert updates_of(replaced(DAILY, body=b"not json"), {"terra": TERRA}) == ()
    assert updates_of(replaced(DAILY, type="nutrition"), {"terra": TERRA}) == ()


def test_an_unreadable_delivery_sets_what_its_provider_reads_today() -> None:
    fields = {name: getattr(DAILY, name) for name in WebhookReceived.__struct_fields__}
    kept = WebhookReceived(**fields | {"type": "unreadable", "subject": "", "reference": None})
    event = lineage.admitted(kept, {"terra": TERRA}, DAILY.user_id, DAILY.partition, DAILY.offset)
    update, user = updates_of(event, {"terra": TERRA})
    assert (update.table, user.table) == (DAILY_SUMMARY, USERS)


def test_of_a_row_the_winner_of_each_column_comes_first() -> None:
    update, _ = updates_of(DAILY, {"terra": TERRA})
    later = msgspec.structs.replace(
        update, stamp=msgspec.structs.replace(update.stamp, sent_at_ms=2**50), values={"steps": 7}
    )
    other = msgspec.structs.replace(later, key=("user_bo", "garmin", "2026-07-01"))
    said = values_of_row(DAILY_SUMMARY, update.key, [update, later, other])
    assert said["steps"][0] == ColumnValue(7, later.stamp)
    assert len(said["steps"]) == 2
    assert list(said) == ["steps", "utc_offset_minutes"]


def test_a_moment_names_a_row_however_it_is_written() -> None:
    assert same_key(
        SLEEP_SESSIONS,
        ("u", "garmin", "2026-07-01T22:00:00Z"),
        ("u", "garmin", "2026-07-02T00:00:00+02:00"),
    )
    assert not same_key(SLEEP_SESSIONS, ("u", "garmin", "once"), ("u", "garmin", "2026-07-01"))
    assert not same_key(DAILY_SUMMARY, DAY, ("user_bo", *DAY[1:]))
