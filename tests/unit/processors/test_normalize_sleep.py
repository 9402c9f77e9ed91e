"""Sleep deliveries become sessions and columns of the day they end on."""

from typing import Any

import pytest

from headwater.processors.columns import RowUpdate
from headwater.processors.providers.results import (
    DroppedField,
    Failed,
    Normalized,
    NormalizeResult,
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


def updates(result: NormalizeResult, table: Table) -> list[RowUpdate]:
    assert isinstance(result, Normalized)
    return [
        update
        for update in result.updates
        if update.table is table and isinstance(update, RowUpdate)
    ]


def day_of(result: NormalizeResult):
    """What the one sleep of a delivery says of its day."""
    (update,) = updates(result, DAILY_SUMMARY)
    assert update.values == {}
    (values,) = update.parts.values()
    return {name: value for name, value in values.items() if value is not None}


def dropped(result: NormalizeResult) -> list[DroppedField]:
    assert isinstance(result, Normalized)
    return list(result.dropped)


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
        "resting_heart_rate": 48,
        "heart_rate_variability": 70.2,
        "utc_offset_minutes": 60,
    }
    (update,) = updates(result, DAILY_SUMMARY)
    assert update.key == ("user_1", "garmin", "2026-07-01")
    assert list(update.parts) == ["1782857520000/1782885720000/"]


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
        "summary_id": None,
        "utc_offset_minutes": 60,
    }


def test_a_nap_is_a_session_and_stays_out_of_the_day():
    nap = WHOLE | {"metadata": NIGHT["metadata"] | {"is_nap": True}}
    result = records("sleep", nap)
    (session,) = updates(result, SLEEP_SESSIONS)
    assert session.values["is_nap"] is True
    assert day_of(result) == {}


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
        ({"duration_asleep_state_seconds": 0, "duration_light_sleep_state_seconds": 600}, 10),
        ({"duration_asleep_state_seconds": 0, "duration_light_sleep_state_seconds": 0}, 0),
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
    [(300, 0, 33.33), (300, 100, 25.0), (None, 100, 50.0), (300, None, 33.33)],
)
def test_a_share_is_of_the_seconds_asleep_and_awake(
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


def test_a_stage_longer_than_the_sleep_is_dropped():
    durations = {
        "asleep": {
            "duration_asleep_state_seconds": 3600,
            "duration_deep_sleep_state_seconds": 1800,
            "duration_REM_sleep_state_seconds": 3700,
        },
        "awake": {"duration_awake_state_seconds": 0},
    }
    result = records("sleep", night(sleep_durations_data=durations))
    path = "data[0].sleep_durations_data.asleep.duration_REM_sleep_state_seconds"
    assert dropped(result) == [DroppedField(path, "out_of_range")]
    assert day_of(result)["deep_sleep_minutes"] == 30
    assert "rem_sleep_minutes" not in day_of(result)


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
    (day,) = updates(result, DAILY_SUMMARY)
    assert [values["sleep_score"] for values in day.parts.values()] == [88, 40]


def test_one_moment_in_two_offsets_is_one_session():
    again = {"metadata": {"start_time": "2026-06-30T22:12:00Z", "end_time": "2026-07-01T06:02:00Z"}}
    (session,) = updates(records("sleep", NIGHT, again), SLEEP_SESSIONS)
    (other,) = updates(records("sleep", again, NIGHT), SLEEP_SESSIONS)
    assert session == other


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
    for value in (max(limit.low, limit.absent + 1), limit.high):
        assert not dropped(records("sleep", night(**nested(limit.path, value))))
    for value in (limit.low - 1, limit.high + 1):
        result = records("sleep", NIGHT, night(**nested(limit.path, value)))
        reason = "not_measured" if value <= limit.absent else "out_of_range"
        assert dropped(result) == [DroppedField(f"data[1].{limit.path}", reason)]


def test_bad_nights_do_not_keep_the_good_ones_from_becoming_rows():
    result = records("sleep", NIGHT | {"scores": {"sleep": "good"}}, {"metadata": {}}, 5)
    assert isinstance(result, Normalized)
    (session,) = updates(result, SLEEP_SESSIONS)
    (alone,) = updates(records("sleep", NIGHT), SLEEP_SESSIONS)
    assert session.key == alone.key
    assert dropped(result) == [DroppedField("data[0].scores.sleep", "wrong_type")]
    assert [item.code for item in result.rejected] == ["bad_date", "malformed_record"]
    nothing = records("sleep", {"metadata": {}})
    assert isinstance(nothing, Failed)
    assert (nothing.code, nothing.rejected) == ("no_usable_record", 1)


def test_a_delivery_without_records_is_skipped():
    assert records("sleep") == Skipped("empty_data")


def test_a_sleep_needs_a_source():
    result = records("sleep", NIGHT, provider=None)
    assert isinstance(result, Failed)
    assert result.code == "missing_provider"
