"""Daily deliveries become days."""

import pytest

from headwater.processors.providers.results import (
    DroppedField,
    Failed,
    Normalized,
    NormalizeResult,
    Rejected,
    Skipped,
)
from headwater.processors.providers.terra import limits
from headwater.schemas.records import Stamp
from headwater.schemas.tables import DAILY_SUMMARY
from tests.unit.processors.deliveries import (
    RECEIVED_AT_MS,
    USER,
    nested,
    normalized,
    records,
    rejected,
)

START = "2026-07-01T00:00:00.000000+01:00"
END = "2026-07-02T00:00:00.000000+01:00"
DAY = {"metadata": {"start_time": START, "end_time": END}}


def day(**parts: object):
    return DAY | parts


def columns(result: NormalizeResult, at: int = 0):
    assert isinstance(result, Normalized)
    values = dict(result.updates[at].assignments())
    assert values.pop("utc_offset_minutes", 60) == 60
    return {name: value for name, value in values.items() if value is not None}


def dropped(result: NormalizeResult) -> list[DroppedField]:
    assert isinstance(result, Normalized)
    return list(result.dropped)


def test_a_day_sets_every_column_it_can():
    result = records(
        "daily",
        day(
            distance_data={"steps": 11894.0},
            heart_rate_data={"summary": {"resting_hr_bpm": 52, "avg_hrv_rmssd": 61.5}},
            active_durations_data={
                "low_intensity_seconds": 1000,
                "moderate_intensity_seconds": 605,
                "vigorous_intensity_seconds": 0,
            },
            stress_data={"avg_stress_level": 31},
            strain_data={"strain_level": 14.5},
            scores={"recovery": 78, "sleep": 85},
        ),
    )
    assert columns(result) == {
        "steps": 11894,
        "resting_heart_rate": 52,
        "heart_rate_variability": 61.5,
        "active_zone_minutes": 26.75,
        "fatburn_active_zone_minutes": 16.67,
        "cardio_active_zone_minutes": 10.08,
        "peak_active_zone_minutes": 0.0,
        "stress_management_score": 31,
        "strain": 14.5,
        "recovery_score": 78,
        "sleep_score": 85,
    }
    assert isinstance(result, Normalized)
    (update,) = result.updates
    assert update.table is DAILY_SUMMARY
    assert update.key == ("user_1", "garmin", "2026-07-01")
    assert update.stamp == Stamp(0, RECEIVED_AT_MS - 500, 7, "e" * 32, 3, 41)
    assert type(dict(update.assignments())["steps"]) is int


def test_a_day_without_anything_is_a_row_of_nulls():
    assert columns(records("daily", DAY)) == {}
    empty = dict.fromkeys(
        ("distance_data", "heart_rate_data", "active_durations_data", "stress_data",
         "strain_data", "scores")
    )  # fmt: skip
    assert columns(records("daily", day(**empty))) == {}
    assert columns(records("daily", day(heart_rate_data={"summary": None}))) == {}


@pytest.mark.parametrize(
    ("seconds", "together"),
    [
        ({"low_intensity_seconds": 60}, 1.0),
        ({"vigorous_intensity_seconds": 90, "moderate_intensity_seconds": 30}, 2.0),
        # Minutes of the sum, not the sum of rounded minutes.
        ({"low_intensity_seconds": 1, "moderate_intensity_seconds": 1,
          "vigorous_intensity_seconds": 1}, 0.05),
        ({}, None),
    ],
)  # fmt: skip
def test_active_minutes_are_the_sum_of_those_that_are_there(
    seconds: dict[str, int], together: float | None
):
    result = columns(records("daily", day(active_durations_data=seconds)))
    assert result.get("active_zone_minutes") == together


@pytest.mark.parametrize(
    ("start", "date"),
    [
        ("2026-07-01T00:00:00+14:00", "2026-07-01"),
        ("2026-07-01T23:59:59-11:00", "2026-07-01"),
        ("2026-07-01T23:30:00Z", "2026-07-01"),
        ("2026-07-01T23:30:00", "2026-07-01"),
    ],
)
def test_the_day_is_that_of_the_records_own_offset(start: str, date: str):
    result = records("daily", {"metadata": {"start_time": start}})
    assert isinstance(result, Normalized)
    assert result.updates[0].key[2] == date


def test_days_are_rows_of_their_own_in_the_order_of_the_records():
    later = {"metadata": {"start_time": END}, "distance_data": {"steps": 2}}
    result = records("daily", day(distance_data={"steps": 1}), later)
    assert isinstance(result, Normalized)
    assert [update.key[2] for update in result.updates] == ["2026-07-01", "2026-07-02"]
    assert columns(result, 1) == {"steps": 2}


def test_two_records_of_one_day_say_one_thing_and_the_later_value_wins():
    result = records(
        "daily",
        day(distance_data={"steps": 1}, scores={"sleep": 50}),
        day(distance_data={"steps": 2}),
    )
    assert isinstance(result, Normalized)
    assert len(result.updates) == 1
    assert columns(result) == {"steps": 2, "sleep_score": 50}


@pytest.mark.parametrize("type_", ["daily", "sleep", "activity", "body"])
def test_a_delivery_without_records_is_skipped(type_: str):
    assert records(type_) == Skipped("empty_data")
    assert normalized(type_, {"type": type_, "user": USER, "data": None}) == Skipped("empty_data")


@pytest.mark.parametrize(
    ("provider", "code"),
    [(None, "missing_provider"), ("", "missing_provider"), ("A\x00", "malformed_id"),
     ("A" * 300, "malformed_id")],
)  # fmt: skip
def test_a_day_needs_a_source_that_can_be_stored(provider: str | None, code: str):
    result = records("daily", DAY, provider=provider)
    assert isinstance(result, Failed)
    assert result.code == code
    assert result.detail.startswith("user.provider: expected")


@pytest.mark.parametrize(
    ("metadata", "code", "place"),
    [
        ({}, "bad_date", "start_time"),
        ({"start_time": "2026-13-01"}, "bad_date", "start_time"),
        ({"start_time": "x" * 4000}, "bad_date", "start_time"),
        ({"start_time": "1989-12-31T23:59:59Z"}, "implausible_date", "start_time"),
        ({"start_time": "2026-07-04T12:00:00.001Z"}, "implausible_date", "start_time"),
        ({"start_time": "9999-12-31T23:59:59-12:00"}, "implausible_date", "start_time"),
        ({"start_time": "0001-01-01T00:00:00+12:00"}, "implausible_date", "start_time"),
    ],
)
def test_a_record_whose_date_cannot_be_true_is_rejected_and_names_the_place(
    metadata: dict[str, str], code: str, place: str
):
    result = rejected(records("daily", DAY, DAY, DAY, {"metadata": metadata}))
    assert result.code == code
    assert result.detail.startswith(f"data[3].metadata.{place}: expected ")
    assert ", found " in result.detail
    assert len(result.detail) < 300


def test_a_bad_date_is_quoted():
    result = records("daily", DAY, {"metadata": {"start_time": "2026-13-01"}})
    assert rejected(result) == Rejected(
        "bad_date",
        "data[1].metadata.start_time: expected RFC 3339, such as 2026-07-01T00:00:00+01:00, "
        "found '2026-13-01'",
    )


@pytest.mark.parametrize(
    "metadata",
    [
        {"start_time": "1990-01-01T00:00:00Z"},
        {"start_time": "2026-07-04T12:00:00Z"},
        {"start_time": START, "end_time": "tomorrow"},
    ],
)
def test_the_ends_of_what_is_plausible_are_taken(metadata: dict[str, str]):
    assert isinstance(records("daily", {"metadata": metadata}), Normalized)


@pytest.mark.parametrize("limit", limits.DAILY, ids=lambda limit: limit.path)
def test_every_number_has_limits_ends_included(limit: limits.Limit):
    for value in (max(limit.low, limit.absent + 1), limit.high):
        assert not dropped(records("daily", day(**nested(limit.path, value))))
    for value in (limit.low - 1, limit.high + 1):
        result = records("daily", DAY, day(**nested(limit.path, value)))
        reason = "not_measured" if value <= limit.absent else "out_of_range"
        assert dropped(result) == [DroppedField(f"data[1].{limit.path}", reason)]
        assert rejected(result).code == "no_usable_value"


def test_bad_records_do_not_keep_the_good_ones_from_becoming_rows():
    wrong_type = day(scores={"sleep": "good"}, distance_data={"steps": 7})
    result = records("daily", wrong_type, {"metadata": {}}, day(distance_data={"steps": -1}), [])
    assert columns(result) == {"steps": 7}
    assert isinstance(result, Normalized)
    assert [item.code for item in result.rejected] == [
        "bad_date",
        "no_usable_value",
        "malformed_record",
    ]
    assert result.dropped == (
        DroppedField("data[0].scores.sleep", "wrong_type"),
        DroppedField("data[2].distance_data.steps", "out_of_range"),
    )


def test_a_delivery_without_a_usable_record_fails_and_names_every_record():
    result = records("daily", {"metadata": {}}, day(distance_data={"steps": -1}))
    assert isinstance(result, Failed)
    assert (result.code, result.rejected) == ("no_usable_record", 2)
    first, second = result.detail.split("\n")
    assert first.startswith("bad_date: data[0].metadata.start_time: expected ")
    assert second == (
        "no_usable_value: data[1]: expected a usable value, found "
        "data[1].distance_data.steps (out_of_range)"
    )


def test_other_names_of_one_day_are_one_row():
    named = {"date": "2026-07-01", "scores": {"sleep": 60}}
    result = records("daily", day(distance_data={"steps": 7}), named)
    assert columns(result) == {"steps": 7, "sleep_score": 60}


@pytest.mark.parametrize(
    ("named", "key"),
    [
        ({"summary_date": "2026-06-11"}, "2026-06-11"),
        ({"date": "2026-06-11T23:30:00-09:00"}, "2026-06-11"),
        ({"day": "2026-06-11", "date": None}, "2026-06-11"),
        ({"summary_date": "2026-06-11", "day": "2026-06-12"}, "2026-06-11"),
        ({"metadata": None, "date": "2026-06-11"}, "2026-06-11"),
    ],
)
def test_a_day_without_a_start_is_the_day_that_the_record_names(named: dict[str, object], key: str):
    result = records("daily", {"distance_data": {"steps": 7}} | named)
    assert isinstance(result, Normalized)
    assert result.updates[0].key[2] == key


@pytest.mark.parametrize(
    ("named", "code", "place"),
    [
        ({}, "bad_date", "data[0].metadata.start_time: "),
        ({"date": "20260-06-11"}, "bad_date", "data[0].date: "),
        ({"day": "2026-02-30"}, "bad_date", "data[0].day: "),
        ({"summary_date": "2096-06-11"}, "implausible_date", "data[0].summary_date: "),
        ({"metadata": {"start_time": "nine"}, "day": "2026-06-11"}, "bad_date",
         "data[0].metadata.start_time: "),
    ],
)  # fmt: skip
def test_a_day_that_is_none_is_rejected(named: dict[str, object], code: str, place: str):
    result = records("daily", named)
    assert isinstance(result, Failed)
    assert result.detail.startswith(f"{code}: {place}")
