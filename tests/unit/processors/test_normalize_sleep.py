"""Sleep deliveries become sessions and columns of the day they end on."""

from typing import Any

import msgspec
import pytest

from headwater.processors.providers.results import (
    Failed,
    Normalized,
    NormalizeResult,
    Rejected,
    Skipped,
)
from headwater.processors.providers.terra import limits
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.tables import DAILY_SUMMARY, SLEEP_SESSIONS, Table
from tests.unit.processors.deliveries import admitted, nested, records, rejected

START = "2026-06-30T23:12:00.000000+01:00"
END = "2026-07-01T07:02:00.000000+01:00"
NIGHT = {"metadata": {"start_time": START, "end_time": END, "is_nap": False}}
WHOLE = NIGHT | {
    "sleep_durations_data": {
        "asleep": {
            "duration_asleep_state_seconds": 25200,
            "duration_deep_sleep_state_seconds": 5400,
            "duration_light_sleep_state_seconds": 14700,
            "duration_REM_sleep_state_seconds": 5100,
        },
        "awake": {"duration_awake_state_seconds": 1500},
    },
    "heart_rate_data": {"summary": {"resting_hr_bpm": 48, "avg_hrv_rmssd": 70.2}},
    "respiration_data": {
        "breaths_data": {"avg_breaths_per_min": 14.2},
        "oxygen_saturation_data": {"avg_saturation_percentage": 97},
    },
    "temperature_data": {"delta": -0.3},
    "scores": {"recovery": 66, "sleep": 88},
    "readiness_data": {"readiness": 55},
}


def night(**parts: object):
    return NIGHT | parts


def updates(result: NormalizeResult, table: Table, rank: int = 0):
    assert isinstance(result, Normalized)
    return [
        update for update in result.updates if update.table is table and update.stamp.rank == rank
    ]


def day_of(result: NormalizeResult, rank: int = 0):
    (update,) = updates(result, DAILY_SUMMARY, rank)
    return {name: value for name, value in update.values.items() if value is not None}


def test_a_night_sets_every_column_it_can():
    result = records("sleep", WHOLE)
    assert day_of(result) == {
        "sleep_minutes": 420.0,
        "bed_time": "2026-06-30T23:12:00.000+01:00",
        "wake_up_time": "2026-07-01T07:02:00.000+01:00",
        "deep_sleep_minutes": 90.0,
        "rem_sleep_minutes": 85.0,
        "light_sleep_minutes": 245.0,
        "awake_minutes": 25.0,
        "deep_sleep_percent": 20.22,
        "rem_sleep_percent": 19.1,
        "light_sleep_percent": 55.06,
        "awake_percent": 5.62,
        "spo2": 97,
        "respiratory_rate": 14.2,
        "skin_temperature": -0.3,
        "recovery_score": 66,
        "sleep_score": 88,
    }
    assert day_of(result, rank=1) == {"resting_heart_rate": 48, "heart_rate_variability": 70.2}
    for rank in (0, 1):
        (update,) = updates(result, DAILY_SUMMARY, rank)
        assert update.key == ("user_1", "garmin", "2026-07-01")


def test_a_session_keeps_its_record_byte_for_byte():
    record = b'{"metadata":  {"start_time":"%b", "end_time":"%b"},\n "x": [1.50, "\\u00e9"]}' % (
        START.encode(),
        END.encode(),
    )
    body = b'{"type":"sleep","user":{"provider":"OURA"},"data":[ %b ]}' % record
    (session,) = updates(TERRA.normalize(admitted("sleep", body)), SLEEP_SESSIONS)
    assert session.key == ("user_1", "oura", "2026-06-30T22:12:00.000Z")
    assert session.values == {
        "end_time": "2026-07-01T06:02:00.000Z",
        "is_nap": None,
        "raw": record.decode(),
    }


def test_a_nap_is_a_session_and_stays_out_of_the_day():
    nap = WHOLE | {"metadata": NIGHT["metadata"] | {"is_nap": True}}
    result = records("sleep", nap)
    (session,) = updates(result, SLEEP_SESSIONS)
    assert session.values["is_nap"] is True
    assert isinstance(result, Normalized)
    assert len(result.updates) == 1


def test_a_night_without_a_pulse_says_nothing_of_rank_one():
    result = records("sleep", NIGHT)
    assert updates(result, DAILY_SUMMARY, rank=1) == []
    assert day_of(result).keys() == {"bed_time", "wake_up_time"}


def test_one_of_the_two_pulse_columns_is_enough_for_rank_one():
    result = records("sleep", night(heart_rate_data={"summary": {"avg_hrv_rmssd": 70}}))
    assert day_of(result, rank=1) == {"heart_rate_variability": 70}


@pytest.mark.parametrize(
    ("parts", "recovery"),
    [
        ({"scores": {"recovery": 66}, "readiness_data": {"readiness": 55}}, 66),
        ({"scores": {"recovery": 0}, "readiness_data": {"readiness": 55}}, 0),
        ({"scores": {"recovery": None}, "readiness_data": {"readiness": 55}}, 55),
        ({"readiness_data": {"readiness": 0}}, 0),
        ({"scores": None, "readiness_data": None}, None),
    ],
)
def test_readiness_stands_in_for_a_missing_recovery_for_whoop_alone(
    parts: dict[str, Any], recovery: float | None
):
    whoop = records("sleep", night(**parts), provider="WHOOP")
    assert day_of(whoop).get("recovery_score") == recovery
    sent = (parts["scores"] or {}).get("recovery") if "scores" in parts else None
    assert day_of(records("sleep", night(**parts))).get("recovery_score") == sent


@pytest.mark.parametrize(
    ("asleep", "slept"),
    [
        ({"duration_asleep_state_seconds": 20_000, "duration_deep_sleep_state_seconds": 6_000},
         333.33),
        ({"duration_asleep_state_seconds": 0, "duration_light_sleep_state_seconds": 600}, 0),
        ({"duration_deep_sleep_state_seconds": 3_600, "duration_REM_sleep_state_seconds": 1_800,
          "duration_light_sleep_state_seconds": 900}, 105),
        ({"duration_REM_sleep_state_seconds": 1_800}, 30),
        ({}, None),
    ],
)  # fmt: skip
def test_without_a_time_asleep_the_stages_together_are_it(
    asleep: dict[str, float], slept: float | None
):
    one = night(sleep_durations_data={"asleep": asleep})
    assert day_of(records("sleep", one)).get("sleep_minutes") == slept


@pytest.mark.parametrize(
    ("asleep", "awake", "percent"),
    [(300, 0, 33.33), (300, 100, 25.0), (0, 0, None), (None, 100, None), (300, None, None)],
)
def test_a_share_is_of_the_seconds_asleep_and_awake_if_both_are_known(
    asleep: int | None, awake: int | None, percent: float | None
):
    durations = {
        "asleep": {
            "duration_asleep_state_seconds": asleep,
            "duration_deep_sleep_state_seconds": 100,
        },
        "awake": {"duration_awake_state_seconds": awake},
    }
    result = day_of(records("sleep", night(sleep_durations_data=durations)))
    assert result.get("deep_sleep_percent") == percent
    assert result["deep_sleep_minutes"] == 1.67


def test_a_record_with_a_stage_longer_than_the_sleep_is_rejected():
    durations = {
        "asleep": {
            "duration_asleep_state_seconds": 3600,
            "duration_REM_sleep_state_seconds": 3700,
        },
        "awake": {"duration_awake_state_seconds": 0},
    }
    result = records("sleep", NIGHT, night(sleep_durations_data=durations))
    assert rejected(result) == Rejected(
        "out_of_range",
        "data[1].sleep_durations_data.asleep.duration_REM_sleep_state_seconds: "
        "expected at most 3,600.0 s, asleep and awake together, found 3700.0",
    )


def test_two_sleeps_of_one_night_are_two_sessions_and_one_day():
    second = {
        "metadata": {
            "start_time": "2026-07-01T08:00:00+01:00",
            "end_time": "2026-07-01T09:00:00+01:00",
        },
        "scores": {"sleep": 40},
    }
    result = records("sleep", WHOLE, second)
    assert [update.key[2] for update in updates(result, SLEEP_SESSIONS)] == [
        "2026-06-30T22:12:00.000Z",
        "2026-07-01T07:00:00.000Z",
    ]
    actual = day_of(result)
    assert actual["sleep_score"] == 40
    assert actual["bed_time"] == "2026-07-01T08:00:00.000+01:00"
    assert actual["sleep_minutes"] == 420
    assert day_of(result, rank=1)["resting_heart_rate"] == 48


def test_one_moment_in_two_offsets_is_one_session():
    again = {"metadata": {"start_time": "2026-06-30T22:12:00Z", "end_time": "2026-07-01T06:02:00Z"}}
    (session,) = updates(records("sleep", NIGHT, again), SLEEP_SESSIONS)
    assert session.values["is_nap"] is False
    assert msgspec.json.decode(str(session.values["raw"])) == again


@pytest.mark.parametrize(
    ("metadata", "code", "place"),
    [
        ({"end_time": END}, "bad_date", "start_time"),
        ({"start_time": START}, "bad_date", "end_time"),
        ({"start_time": START, "end_time": "soon"}, "bad_date", "end_time"),
        ({"start_time": "1980-01-01T00:00:00Z", "end_time": END}, "implausible_date", "start_time"),
        ({"start_time": START, "end_time": "2027-01-01T00:00:00Z"}, "implausible_date", "end_time"),
        ({"start_time": END, "end_time": START}, "end_before_start", "end_time"),
    ],
)
def test_a_sleep_needs_both_dates(metadata: dict[str, str], code: str, place: str):
    result = rejected(records("sleep", NIGHT, {"metadata": metadata}))
    assert result.code == code
    assert result.detail.startswith(f"data[1].metadata.{place}: expected ")


@pytest.mark.parametrize("limit", limits.SLEEP, ids=lambda limit: limit.path)
def test_every_number_has_limits_ends_included(limit: limits.Limit):
    for value in (limit.low, limit.high):
        assert isinstance(records("sleep", night(**nested(limit.path, value))), Normalized)
    for value in (limit.low - 1, limit.high + 1):
        result = rejected(records("sleep", NIGHT, night(**nested(limit.path, value))))
        assert result.detail.startswith(f"data[1].{limit.path}: expected {limit.low:,} to ")


def test_bad_nights_do_not_keep_the_good_ones_from_becoming_rows():
    result = records("sleep", night(scores={"sleep": "good"}), NIGHT, {"metadata": {}})
    alone = records("sleep", NIGHT)
    assert isinstance(result, Normalized)
    assert isinstance(alone, Normalized)
    assert result.updates == alone.updates
    assert [item.code for item in result.rejected] == ["malformed_record", "bad_date"]
    nothing = records("sleep", {"metadata": {}})
    assert isinstance(nothing, Failed)
    assert (nothing.code, nothing.rejected) == ("no_usable_record", 1)


def test_a_delivery_without_records_is_skipped():
    assert records("sleep") == Skipped("empty_data")


def test_a_sleep_needs_a_source():
    result = records("sleep", NIGHT, provider=None)
    assert isinstance(result, Failed)
    assert result.code == "missing_provider"
