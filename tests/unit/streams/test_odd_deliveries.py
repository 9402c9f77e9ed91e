"""Oddities that people with wearables have reported: deliveries, and the rows and outcome expected.

Every case is processed in every order of its deliveries; the rows are the same.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import permutations
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from headwater.processors.providers.results import Failed, NormalizeResult, Skipped, updates_of
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.tables import ACTIVITIES, BIOMARKERS, DAILY_SUMMARY, SLEEP_SESSIONS
from headwater.streams.kafka.state_store import Staged
from headwater.streams.pipeline.partition_rows import Rows as PartitionRows
from tests.fakes.memory_store import MemoryStore
from tests.unit.processors.deliveries import USER, admitted

Json = dict[str, Any]
#: Tables and keys, without the user and the source, to columns.
Rows = Mapping[tuple[str, ...], Mapping[str, object]]

MORNING: Final = "2026-07-01T06:00:00+02:00"


class Case(NamedTuple):
    """What was sent, and what becomes of it.

    Attributes:
        sent: Types and records of deliveries, one minute apart.
        rows: Some columns of all rows.
        outcomes: Of each delivery: its result, and dropped fields or codes of rejected records.
    """

    sent: tuple[tuple[str, list[Any]], ...]
    rows: Rows
    outcomes: tuple[tuple[str, ...], ...] = (("ok",),)


def utc(time: str) -> str:
    return f"{datetime.fromisoformat(time).astimezone(UTC):%Y-%m-%dT%H:%M:%S.000Z}"


def session(start: str) -> tuple[str, str]:
    return ("sleep_sessions", utc(start))


def day(date: str = "2026-07-01", **parts: object) -> Json:
    return {"metadata": {"start_time": f"{date}T00:00:00+02:00"}, **parts}


def sleep(
    start: str,
    end: str,
    asleep_s: float | None = None,
    durations: Json | None = None,
    metadata: Json | None = None,
    **parts: object,
) -> Json:
    known: Json = {} if asleep_s is None else {"duration_asleep_state_seconds": asleep_s}
    return {
        "metadata": {"start_time": start, "end_time": end, **(metadata or {})},
        "sleep_durations_data": {"asleep": known, **(durations or {})},
        **parts,
    }


def pulse(resting: float) -> Json:
    return {"heart_rate_data": {"summary": {"resting_hr_bpm": resting}}}


def workout(start: str, end: str, **calories: float) -> Json:
    metadata = {"start_time": start, "end_time": end, "summary_id": "a", "type": 1}
    return {"metadata": metadata, "calories_data": calories}


def body(at: str, **values: float) -> Json:
    measurement = {"measurement_time": at, **values}
    return day(measurements_data={"measurements": [measurement]})


NIGHT = ("2026-06-30T23:00:00+02:00", "2026-07-01T06:00:00+02:00")
NAP = ("2026-07-01T14:00:00+02:00", "2026-07-01T14:40:00+02:00")
STAGES: Json = {
    "asleep": {
        "duration_asleep_state_seconds": None,
        "duration_deep_sleep_state_seconds": 5_400,
        "duration_REM_sleep_state_seconds": 5_400,
        "duration_light_sleep_state_seconds": 14_400,
    }
}
ZERO: Json = {"duration_asleep_state_seconds": 0}
AWAKE: Json = {"awake": {"duration_awake_state_seconds": 0}}
TODAY = ("daily_summary", "2026-07-01")
STEPS: Json = {"distance_data": {"steps": 9_000}}

CASES: Final[Mapping[str, Case]] = {
    # -- a value costs its field, not its record
    "a pulse of zero": Case(
        (("daily", [day(**STEPS, **pulse(0))]),),
        {TODAY: {"steps": 9_000, "resting_heart_rate": None}},
        (("ok", "heart_rate_data.summary.resting_hr_bpm not_measured"),),
    ),
    "a stress of -1": Case(
        (("daily", [day(**STEPS, stress_data={"avg_stress_level": -1})]),),
        {TODAY: {"steps": 9_000, "stress_management_score": None}},
        (("ok", "stress_data.avg_stress_level not_measured"),),
    ),
    "a list for an object": Case(
        (("daily", [day(**STEPS, scores=[])]),),
        {TODAY: {"steps": 9_000}},
        (("ok", "scores wrong_type"),),
    ),
    "no chest strap": Case(
        (
            (
                "activity",
                [
                    workout(*NAP, total_burned_calories=310)
                    | {"heart_rate_data": {"summary": {"avg_hr_bpm": 0, "max_hr_bpm": 0}}}
                ],
            ),
        ),
        {("activities", utc(NAP[0]), "a"): {"calories": 310.0, "avg_heart_rate": None}},
        (
            (
                "ok",
                "heart_rate_data.summary.avg_hr_bpm not_measured",
                "heart_rate_data.summary.max_hr_bpm not_measured",
            ),
        ),
    ),
    "a weight of zero next to a good one": Case(
        (
            (
                "body",
                [
                    day(
                        measurements_data={
                            "measurements": [
                                {"measurement_time": MORNING, "weight_kg": 72.5},
                                {"measurement_time": NAP[0], "weight_kg": 0},
                            ]
                        }
                    )
                ],
            ),
        ),
        {("biomarkers_raw", "2026-07-01", "weight_kg"): {"value": 72.5}},
        (("ok", "measurements_data.measurements[1].weight_kg not_measured"),),
    ),
    "a cuff that failed once": Case(
        (
            (
                "body",
                [
                    day(
                        blood_pressure_data={
                            "blood_pressure_samples": [
                                {"systolic_bp": 120, "diastolic_bp": 80},
                                {"systolic_bp": 0, "diastolic_bp": 0},
                            ]
                        }
                    )
                ],
            ),
        ),
        {
            ("biomarkers_raw", "2026-07-01", "systolic_bp"): {"value": 120.0},
            ("biomarkers_raw", "2026-07-01", "diastolic_bp"): {"value": 80.0},
        },
        (
            (
                "ok",
                "blood_pressure_data.blood_pressure_samples[1].diastolic_bp not_measured",
                "blood_pressure_data.blood_pressure_samples[1].systolic_bp not_measured",
            ),
        ),
    ),
    "variability of zero in a night does not replace that of the day": Case(
        (
            ("daily", [day(heart_rate_data={"summary": {"avg_hrv_rmssd": 61.5}})]),
            ("sleep", [sleep(*NIGHT, 25_000, heart_rate_data={"summary": {"avg_hrv_rmssd": 0}})]),
        ),
        {
            TODAY: {"heart_rate_variability": 61.5},
            session(NIGHT[0]): {"is_main": True},
        },
        (("ok",), ("ok", "heart_rate_data.summary.avg_hrv_rmssd not_measured")),
    ),
    # -- the main sleep
    "an afternoon sleep without a flag": Case(
        (
            (
                "sleep",
                [
                    sleep(*NIGHT, 25_200, durations=STAGES, **pulse(50)),
                    sleep(*NAP, 2_000, **pulse(60)),
                ],
            ),
        ),
        {
            TODAY: {"sleep_minutes": 420.0, "deep_sleep_minutes": 90.0, "resting_heart_rate": 50},
            session(NIGHT[0]): {"is_main": True},
            session(NAP[0]): {"is_main": False},
        },
    ),
    "a fragment that comes later": Case(
        (
            ("sleep", [sleep(*NIGHT, 25_200, **pulse(48))]),
            ("sleep", [sleep(MORNING, "2026-07-01T06:12:00+02:00", 600, **pulse(92))]),
        ),
        {
            TODAY: {"sleep_minutes": 420.0, "resting_heart_rate": 48},
            session(NIGHT[0]): {"is_main": True},
            session(MORNING): {"is_main": False},
        },
        (("ok",), ("ok",)),
    ),
    "a nap with its flag does not touch the night": Case(
        (
            ("sleep", [sleep(*NAP, 30_000, metadata={"is_nap": True})]),
            ("sleep", [sleep(*NIGHT, 25_200)]),
        ),
        {
            TODAY: {"sleep_minutes": 420.0},
            session(NIGHT[0]): {"is_main": True, "is_nap": None},
            session(NAP[0]): {"is_main": False, "is_nap": True},
        },
        (("ok",), ("ok",)),
    ),
    "a corrected night replaces its first version": Case(
        (
            ("sleep", [sleep(*NIGHT, 25_200, metadata={"summary_id": "n"})]),
            (
                "sleep",
                [
                    sleep(
                        "2026-06-30T23:20:00+02:00", NIGHT[1], 23_400, metadata={"summary_id": "n"}
                    )
                ],
            ),
        ),
        {
            TODAY: {"sleep_minutes": 390.0},
            session("2026-06-30T23:20:00+02:00"): {"is_main": True},
        },
        (("ok",), ("ok",)),
    ),
    "stages without a time asleep": Case(
        (
            (
                "sleep",
                [sleep(*NIGHT, durations=STAGES | AWAKE)],
            ),
        ),
        {
            TODAY: {"sleep_minutes": 420.0, "deep_sleep_percent": 21.43},
            session(NIGHT[0]): {"is_main": True},
        },
    ),
    # -- measurements by their own time
    "an older weight that is delivered later": Case(
        (
            ("body", [body("2026-07-01T20:00:00+02:00", weight_kg=71.0)]),
            ("body", [body(MORNING, weight_kg=72.0)]),
        ),
        {("biomarkers_raw", "2026-07-01", "weight_kg"): {"value": 71.0}},
        (("ok",), ("ok",)),
    ),
    "a measurement of yesterday in the delivery of today": Case(
        (("body", [body("2026-06-30T23:30:00+02:00", weight_kg=71.0)]),),
        {("biomarkers_raw", "2026-06-30", "weight_kg"): {"value": 71.0}},
    ),
    "the hour that a clock skips, and the one that it repeats": Case(
        (
            (
                "sleep",
                [
                    sleep("2026-03-28T23:00:00+01:00", "2026-03-29T07:00:00+02:00", 25_200),
                    sleep("2025-10-25T23:00:00+02:00", "2025-10-26T07:00:00+01:00", 32_400),
                ],
            ),
        ),
        {
            ("daily_summary", "2026-03-29"): {"sleep_minutes": 420.0, "utc_offset_minutes": 120},
            ("daily_summary", "2025-10-26"): {"sleep_minutes": 540.0, "utc_offset_minutes": 60},
            session("2026-03-28T23:00:00+01:00"): {"utc_offset_minutes": 120},
            session("2025-10-25T23:00:00+02:00"): {"utc_offset_minutes": 60},
        },
    ),
    "one day of two sources": Case(
        (
            ("daily", [day(**STEPS)]),
            ("daily of FITBIT", [day(distance_data={"steps": 8_500})]),
        ),
        {TODAY: {"steps": 9_000}, ("daily_summary of fitbit", "2026-07-01"): {"steps": 8_500}},
        (("ok",), ("ok",)),
    ),
    "a time asleep of zero next to stages": Case(
        (("sleep", [sleep(*NIGHT, durations={"asleep": STAGES["asleep"] | ZERO})]),),
        {
            TODAY: {"sleep_minutes": 420.0, "deep_sleep_minutes": 90.0},
            session(NIGHT[0]): {"is_main": True},
        },
        (("ok", "sleep_durations_data.asleep.duration_asleep_state_seconds not_measured"),),
    ),
    "a workout that is moved": Case(
        (
            ("activity", [workout(NAP[0], NAP[1], total_burned_calories=310)]),
            ("activity", [workout(MORNING, NAP[0], total_burned_calories=320)]),
        ),
        {("activities", utc(MORNING), "a"): {"calories": 320.0}},
        (("ok",), ("ok",)),
    ),
    "one record of two cannot be read": Case(
        (("daily", [day(**STEPS), "oops"]),),
        {TODAY: {"steps": 9_000}},
        (("partial", "malformed_record"),),
    ),
    "nothing that can be used": Case(
        (("daily", [{"metadata": {"start_time": "yesterday"}}]),), {}, (("no_usable_record",),)
    ),
}


def normalize(number: int, type_: str, data: list[Any]) -> NormalizeResult:
    """Normalize the delivery of a minute; the type may name another maker."""
    kind, _, maker = type_.partition(" of ")
    body = {"type": kind, "user": USER | {"provider": maker or "GARMIN"}, "data": data}
    delivery = admitted(kind, msgspec.json.encode(body))
    sent_at_ms = delivery.sent_at_ms + number * 60_000
    return TERRA.normalize(
        msgspec.structs.replace(delivery, sent_at_ms=sent_at_ms, event_id=f"{number:032d}")
    )


def rows_of(results: Iterable[NormalizeResult]) -> dict[tuple[str, ...], dict[str, object]]:
    """Merge results as the owner of a partition does, and return the rows that anybody can read."""
    owned = PartitionRows(0, [], Staged(MemoryStore()))
    for result in results:
        owned.merge_delivery(updates_of(result))
    rows: dict[tuple[str, ...], dict[str, object]] = {}
    for table in (DAILY_SUMMARY, SLEEP_SESSIONS, ACTIVITIES, BIOMARKERS):
        for row in owned.of_user(table, "user_1"):
            if not row.is_hidden:
                _, source, *key = row.key
                of_garmin = source.split("_")[0] == "garmin"
                name = table.name if of_garmin else f"{table.name} of {source}"
                rows[name, *key] = dict(zip(table.index, row.values, strict=True))
    return rows


def outcome_of(result: NormalizeResult) -> tuple[str, ...]:
    """Return the name of an outcome, and the dropped fields and rejected records."""
    dropped = sorted(
        f"{field.path.removeprefix('data[0].')} {field.reason}" for field in result.dropped
    )
    if isinstance(result, Failed):
        return result.code, *dropped
    if isinstance(result, Skipped):
        return result.reason, *dropped
    return ("partial" if result.rejected else "ok", *(r.code for r in result.rejected), *dropped)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_odd_deliveries(case: Case):
    results = [normalize(number, *sent) for number, sent in enumerate(case.sent)]
    assert tuple(outcome_of(result) for result in results) == case.outcomes
    for order in permutations(results):
        actual = rows_of(order)
        assert {
            key: {name: actual[key][name] for name in columns if key in actual}
            for key, columns in case.rows.items()
        } == case.rows
        assert actual.keys() == case.rows.keys()
