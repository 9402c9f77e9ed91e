"""Activity deliveries become workouts."""

from typing import Any

import msgspec
import pytest

from headwater.processors.providers.results import (
    DroppedField,
    Failed,
    Normalized,
    NormalizeResult,
)
from headwater.schemas.tables import ACTIVITIES
from tests.unit.processors.deliveries import nested, records, rejected

RUN: dict[str, Any] = {
    "metadata": {
        "name": "Evening Ride",
        "summary_id": "ride-77",
        "start_time": "2026-06-30T23:40:00.000000-03:00",
        "end_time": "2026-07-01T00:25:30.000000-03:00",
        "type": 1,
    },
    "distance_data": {"summary": {"distance_meters": 15200.5, "steps": 12.0}},
    "calories_data": {"total_burned_calories": 640.5, "net_activity_calories": 500},
    "heart_rate_data": {"summary": {"avg_hr_bpm": 131.4, "max_hr_bpm": 168}},
    "strain_data": {"strain_level": 9.25},
}


def columns(result: NormalizeResult) -> dict[str, Any]:
    assert isinstance(result, Normalized)
    (update,) = result.updates
    return dict(update.values)


def test_a_workout_sets_every_column():
    result = records("activity", RUN)
    actual = columns(result)
    assert msgspec.json.decode(actual.pop("raw")) == RUN
    assert actual == {
        "end_time": "2026-07-01T03:25:30.000Z",
        "type": 1,
        "name": "Evening Ride",
        "duration_seconds": 2730.0,
        "calories": 640.5,
        "distance_meters": 15200.5,
        "steps": 12,
        "avg_heart_rate": 131.4,
        "max_heart_rate": 168,
        "strain": 9.25,
        "utc_offset_minutes": -180,
    }
    assert isinstance(result, Normalized)
    assert result.updates[0].table is ACTIVITIES
    assert result.updates[0].key == ("user_1", "garmin", "2026-07-01T02:40:00.000Z", "ride-77")
    assert set(actual) | {"raw"} == set(ACTIVITIES.column_names)


def test_kind_zero_is_a_kind_and_a_workout_may_have_no_id_and_no_end():
    metadata = {"start_time": "2026-06-30T23:40:00Z", "type": 0, "summary_id": None}
    result = records("activity", {"metadata": metadata})
    assert isinstance(result, Normalized)
    assert result.updates[0].key[3] == ""
    assert (columns(result)["type"], columns(result)["end_time"]) == (0, None)
    assert columns(result)["duration_seconds"] is None


def test_a_name_is_kept_without_what_no_column_can_hold():
    metadata = RUN["metadata"] | {"name": "Ride\x00 \U0001f6b4 home"}
    assert columns(records("activity", {"metadata": metadata}))["name"] == "Ride\ufffd 🚴 home"


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("metadata.start_time", None, "bad_date"),
        ("metadata.start_time", "20260-06-30T10:00:00Z", "bad_date"),
    ],
)
def test_one_workout_that_cannot_be_true_harms_no_other(path: str, value: object, code: str):
    bad = nested(path, value)
    bad["metadata"] = RUN["metadata"] | bad.get("metadata", {})
    result = records("activity", bad, RUN)
    assert rejected(result).code == code
    assert rejected(result).detail.startswith("data[0]")
    assert len(columns(result)) == len(ACTIVITIES.columns)
    alone = records("activity", bad)
    assert isinstance(alone, Failed)
    assert (alone.code, alone.rejected) == ("no_usable_record", 1)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("metadata.end_time", "2026-06-30T10:00:00Z", "out_of_range"),
        ("metadata.end_time", "noon", "wrong_type"),
        ("metadata.summary_id", "a\nb", "out_of_range"),
        ("metadata.name", "x" * 1_001, "out_of_range"),
        ("metadata.name", 5, "wrong_type"),
        ("metadata.type", -1, "out_of_range"),
        ("calories_data.total_burned_calories", -5, "out_of_range"),
        ("distance_data.summary.steps", 10**9, "out_of_range"),
        ("heart_rate_data.summary.max_hr_bpm", 900, "out_of_range"),
        ("heart_rate_data.summary.max_hr_bpm", 0, "not_measured"),
        ("distance_data.summary.distance_meters", "far", "wrong_type"),
    ],
)
def test_a_value_that_cannot_be_true_costs_its_column(path: str, value: object, reason: str):
    bad = RUN | nested(path, value)
    bad["metadata"] = RUN["metadata"] | nested(path, value).get("metadata", {})
    result = records("activity", bad)
    assert isinstance(result, Normalized)
    assert result.dropped == (DroppedField(f"data[0].{path}", reason),)
    assert columns(result)["raw"] is not None
