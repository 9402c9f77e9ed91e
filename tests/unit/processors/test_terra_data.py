"""What Terra's data mean: deliveries as wearables send them, and the rows that they come to."""

import random
from collections.abc import Mapping
from itertools import permutations
from math import fsum
from typing import Any, NamedTuple

import pytest

from headwater.processors.providers.terra.provider import TERRA
from headwater.processors.sources import SourcesInvalid, read_sources, silence_limits
from headwater.schemas.providers.headwater import LabSubmitted, LabUploaded
from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import (
    ACTIVITIES,
    BIOMARKERS,
    DAILY_SUMMARY,
    LAB_UPLOADS,
    SLEEP_SESSIONS,
    Table,
)
from tests.fakes.terra_intake import NOW_MS, Json, TerraIntake, delivery, fact, of_body, taken

DAY = {"start_time": "2026-07-01T00:00:00+01:00", "end_time": "2026-07-02T00:00:00+01:00"}
ON = ("garmin", "2026-07-01")


class Case(NamedTuple):
    """Deliveries, with values of rows that they come to, and the outcome of the last one."""

    deliveries: list[WebhookReceived]
    rows: Mapping[Table, Mapping[tuple[str, ...], Json | None]] = {}
    dropped: Mapping[str, str] = {}
    outcome: tuple[str, str] = ("processed", "")


def daily(at_s: float = 0, **parts: object) -> WebhookReceived:
    return delivery("daily", [{"metadata": DAY, **parts}], at_s)


def pulse(resting: float | None = None, **more: object) -> Json:
    return {"heart_rate_data": {"summary": {"resting_hr_bpm": resting, **more}}}


def steps(number: float) -> Json:
    return {"distance_data": {"steps": number}}


def night(
    start: str,
    end: str,
    asleep_s: float | None = None,
    *,
    stages: Json | None = None,
    **more: Any,  # noqa: ANN401
) -> Json:
    """A sleep that ends on 1 July, at +01:00; hours before noon of 30 June are of that evening."""
    metadata = {"start_time": moment(start), "end_time": moment(end)}
    metadata |= more.pop("metadata", {})
    asleep = {"duration_asleep_state_seconds": asleep_s, **(stages or {})}
    return {"metadata": metadata, "sleep_durations_data": {"asleep": asleep}, **more}


def moment(text: str) -> str:
    return text if "T" in text else f"2026-0{'6-30' if text > '16' else '7-01'}T{text}:00+01:00"


def sleep(*nights: Json, at_s: float = 0) -> WebhookReceived:
    return delivery("sleep", list(nights), at_s)


def body(at_s: float = 0, *, day: str = "2026-07-01", **parts: object) -> WebhookReceived:
    return delivery("body", [{"metadata": {"start_time": f"{day}T00:00:00+01:00"}, **parts}], at_s)


def weights(*pairs: tuple[str | None, float]) -> Json:
    measured = [{"measurement_time": at, "weight_kg": kilos} for at, kilos in pairs]
    return {"measurements_data": {"measurements": measured}}


def pressures(*samples: tuple[float, float], at: str | None = None, **more: object) -> Json:
    made = [{"timestamp": at, "systolic_bp": high, "diastolic_bp": low} for high, low in samples]
    return {"blood_pressure_data": {"blood_pressure_samples": made, **more}}


def workout(at_s: float = 0, *, start: str = "07:00", **parts: Any) -> WebhookReceived:  # noqa: ANN401
    begun = {"start_time": f"2026-07-01T{start}:00+01:00", "end_time": "2026-07-01T09:00:00+01:00"}
    metadata = begun | parts.pop("metadata", {})
    return delivery("activity", [{"metadata": metadata, **parts}], at_s)


def lab(result: Json, at_s: float = 0, **more: object) -> WebhookReceived:
    report = {"report_date": "2026-06-30", "results": [result], **more}
    return delivery("lab_report.completed", report, at_s, upload_id="upl-1")


UPLOADED = [
    fact(
        LabUploaded(
            at_ms=NOW_MS + number,
            user_id="user_1",
            upload_id=f"up-{number}",
            storage_key="k",
            original_name="n",
            content_type="application/pdf",
            size=1,
        )
    )
    for number in (1, 2)
]
SUBMITTED = [
    fact(
        LabSubmitted(
            at_ms=NOW_MS + 10 + number,
            user_id="user_1",
            upload_id=f"up-{number}",
            terra_status="submitted",
            terra_upload_id=f"upl-{number}",
        )
    )
    for number in (1, 2)
]
FAILED = {
    "session_id": "s",
    "reference_id": "user_1",
    "error": {"code": "file_unreadable", "retriable": False},
}
NIGHT = night("23:00", "07:00", 25_200, stages={"duration_deep_sleep_state_seconds": 5_400},
              **pulse(50))  # fmt: skip
AFTERNOON = night("14:00", "14:40", 2_000, **pulse(60))
EVENING_WEIGHT = ("2026-07-01T21:00:00+01:00", 73.0)
MORNING_WEIGHT = ("2026-07-01T07:00:00+01:00", 71.0)
#: Value and unit of rows of biomarkers_raw.
KG, MMHG = {"unit": "kg"}, {"unit": "mmHg"}


def biomarkers(rows: Mapping[str, Json | None], day: str = "2026-07-01") -> Mapping[Table, Any]:
    return {BIOMARKERS: {("garmin_body", day, code): row for code, row in rows.items()}}


CASES = {
    "a pulse of 0 leaves the steps": Case(
        [daily(**steps(9_000), **pulse(0))],
        {DAILY_SUMMARY: {ON: {"steps": 9_000, "utc_offset_minutes": 60}}},
        {"data[0].heart_rate_data.summary.resting_hr_bpm": "not_measured"},
    ),
    "a stress of -1 leaves the steps": Case(
        [daily(**steps(9_000), stress_data={"avg_stress_level": -1})],
        {DAILY_SUMMARY: {ON: {"steps": 9_000, "utc_offset_minutes": 60}}},
        {"data[0].stress_data.avg_stress_level": "not_measured"},
    ),
    "a stress of 0 is measured": Case(
        [daily(stress_data={"avg_stress_level": 0})],
        {DAILY_SUMMARY: {ON: {"stress_management_score": 0.0, "utc_offset_minutes": 60}}},
    ),
    "a variability of 0 is not measured": Case(
        [daily(**pulse(50, avg_hrv_rmssd=0))],
        {DAILY_SUMMARY: {ON: {"resting_heart_rate": 50.0, "utc_offset_minutes": 60}}},
        {"data[0].heart_rate_data.summary.avg_hrv_rmssd": "not_measured"},
    ),
    "a field of another type leaves the others": Case(
        [daily(**steps(9_000), scores=[], strain_data={"strain_level": "high"})],
        {DAILY_SUMMARY: {ON: {"steps": 9_000, "utc_offset_minutes": 60}}},
        {"data[0].scores": "wrong_type", "data[0].strain_data.strain_level": "wrong_type"},
    ),
    "a million steps a day are out of range": Case(
        [daily(**steps(1_000_000), **pulse(50))],
        {DAILY_SUMMARY: {ON: {"resting_heart_rate": 50.0, "utc_offset_minutes": 60}}},
        {"data[0].distance_data.steps": "out_of_range"},
    ),
    "a record of which nothing is left is rejected": Case(
        [daily(**steps(-1))],
        {DAILY_SUMMARY: {ON: None}},
        {"data[0].distance_data.steps": "out_of_range"},
        ("dead", "no_usable_record"),
    ),
    "a workout without a strap": Case(
        [
            workout(
                calories_data={"total_burned_calories": 300},
                heart_rate_data={"summary": {"avg_hr_bpm": 0, "max_hr_bpm": 0}},
            )
        ],
        {
            ACTIVITIES: {
                ("garmin", "2026-07-01T06:00:00.000Z", ""): {
                    "end_time": "2026-07-01T08:00:00.000Z",
                    "duration_seconds": 7200.0,
                    "calories": 300.0,
                    "utc_offset_minutes": 60,
                }
            }
        },
        {
            "data[0].heart_rate_data.summary.avg_hr_bpm": "not_measured",
            "data[0].heart_rate_data.summary.max_hr_bpm": "not_measured",
        },
    ),
    "a readiness that is not stored is not checked": Case(
        [sleep(NIGHT | {"readiness_data": {"readiness": -3}})]
    ),
    "stages without a total": Case(
        [
            sleep(
                night(
                    "23:00",
                    "07:00",
                    0,
                    stages={
                        "duration_deep_sleep_state_seconds": 5_400,
                        "duration_REM_sleep_state_seconds": 5_400,
                        "duration_light_sleep_state_seconds": 14_400,
                    },
                )
            )
        ],
        {
            DAILY_SUMMARY: {
                ON: {
                    "sleep_minutes": 420.0,
                    "bed_time": "2026-06-30T23:00:00.000+01:00",
                    "wake_up_time": "2026-07-01T07:00:00.000+01:00",
                    "deep_sleep_minutes": 90.0,
                    "rem_sleep_minutes": 90.0,
                    "light_sleep_minutes": 240.0,
                    "deep_sleep_percent": 21.43,
                    "rem_sleep_percent": 21.43,
                    "light_sleep_percent": 57.14,
                    "utc_offset_minutes": 60,
                }
            }
        },
        {"data[0].sleep_durations_data.asleep.duration_asleep_state_seconds": "not_measured"},
    ),
    "an error of a cuff, and a weight of 0": Case(
        [body(**pressures((120, 80), (0, 0)), **weights((None, 0), (None, 70.0)))],
        biomarkers(
            {
                "weight_kg": {"value": 70.0} | KG,
                "systolic_bp": {"value": 120.0, "samples": 1} | MMHG,
                "diastolic_bp": {"value": 80.0, "samples": 1} | MMHG,
            }
        ),
        {
            "data[0].measurements_data.measurements[0].weight_kg": "not_measured",
            "data[0].blood_pressure_data.blood_pressure_samples[1].systolic_bp": "not_measured",
            "data[0].blood_pressure_data.blood_pressure_samples[1].diastolic_bp": "not_measured",
        },
    ),
    "a fraction where percents are documented": Case(
        [body(measurements_data={"measurements": [{"bodyfat_percentage": 0.25, "weight_kg": 70}]})],
        biomarkers({"weight_kg": {"value": 70.0} | KG, "body_fat_percent": None}),
        {"data[0].measurements_data.measurements[0].bodyfat_percentage": "out_of_range"},
    ),
    "a night and a sleep in the afternoon": Case(
        [sleep(NIGHT, AFTERNOON)],
        {
            DAILY_SUMMARY: {
                ON: {
                    "sleep_minutes": 420.0,
                    "bed_time": "2026-06-30T23:00:00.000+01:00",
                    "wake_up_time": "2026-07-01T07:00:00.000+01:00",
                    "deep_sleep_minutes": 90.0,
                    "deep_sleep_percent": 21.43,
                    "resting_heart_rate": 50.0,
                    "utc_offset_minutes": 60,
                }
            },
            SLEEP_SESSIONS: {
                ("garmin", "2026-06-30T22:00:00.000Z"): {
                    "end_time": "2026-07-01T06:00:00.000Z",
                    "is_main": True,
                    "utc_offset_minutes": 60,
                },
                ("garmin", "2026-07-01T13:00:00.000Z"): {
                    "end_time": "2026-07-01T13:40:00.000Z",
                    "is_main": False,
                    "utc_offset_minutes": 60,
                },
            },
        },
    ),
    "a night, then a fragment": Case(
        [
            sleep(night("23:00", "06:00", 25_200, **pulse(48))),
            sleep(night("06:30", "06:40", 600, **pulse(92)), at_s=60),
        ],
        {
            DAILY_SUMMARY: {
                ON: {
                    "sleep_minutes": 420.0,
                    "bed_time": "2026-06-30T23:00:00.000+01:00",
                    "wake_up_time": "2026-07-01T06:00:00.000+01:00",
                    "resting_heart_rate": 48.0,
                    "utc_offset_minutes": 60,
                }
            }
        },
    ),
    "a day keeps its pulse where the night has none": Case(
        [
            daily(**pulse(61, avg_hrv_rmssd=40), scores={"recovery": 50, "sleep": 70}),
            sleep(night("23:00", "06:00", 25_200, **pulse(48)), at_s=60),
            sleep(night("22:00", "06:30", 28_000, metadata={"summary_id": "n"}), at_s=120),
        ],
        {
            DAILY_SUMMARY: {
                ON: {
                    "sleep_minutes": 466.67,
                    "bed_time": "2026-06-30T22:00:00.000+01:00",
                    "wake_up_time": "2026-07-01T06:30:00.000+01:00",
                    "resting_heart_rate": 61.0,
                    "heart_rate_variability": 40.0,
                    "recovery_score": 50.0,
                    "utc_offset_minutes": 60,
                }
            },
            SLEEP_SESSIONS: {("garmin", "2026-06-30T22:00:00.000Z"): None},
        },
    ),
    "a nap is no night": Case(
        [sleep(night("13:00", "15:00", 7_000, metadata={"is_nap": True}))],
        {
            DAILY_SUMMARY: {ON: None},
            SLEEP_SESSIONS: {
                ("garmin", "2026-07-01T12:00:00.000Z"): {
                    "end_time": "2026-07-01T14:00:00.000Z",
                    "is_nap": True,
                    "is_main": False,
                    "utc_offset_minutes": 60,
                }
            },
        },
    ),
    "a revised night": Case(
        [
            sleep(night("23:00", "07:00", 25_200, metadata={"summary_id": "n"})),
            sleep(night("23:35", "07:00", 24_000, metadata={"summary_id": "n"}), at_s=60),
        ],
        {
            SLEEP_SESSIONS: {
                ("garmin", "2026-06-30T22:00:00.000Z"): None,
                ("garmin", "2026-06-30T22:35:00.000Z"): {
                    "end_time": "2026-07-01T06:00:00.000Z",
                    "summary_id": "n",
                    "is_main": True,
                    "utc_offset_minutes": 60,
                },
            },
        },
    ),
    "a night that moves to another day": Case(
        [
            sleep(night("20:00", "2026-06-30T23:50:00+01:00", 12_000)),
            sleep(night("20:10", "2026-07-01T00:10:00+01:00", 13_000), at_s=60),
        ],
        {
            DAILY_SUMMARY: {
                ("garmin", "2026-06-30"): None,
                ON: {
                    "sleep_minutes": 216.67,
                    "bed_time": "2026-06-30T20:10:00.000+01:00",
                    "wake_up_time": "2026-07-01T00:10:00.000+01:00",
                    "utc_offset_minutes": 60,
                },
            },
            SLEEP_SESSIONS: {("garmin", "2026-06-30T19:00:00.000Z"): None},
        },
    ),
    "a night of another week, by its id": Case(
        [
            sleep(
                night(
                    "2026-06-22T23:00:00+01:00",
                    "2026-06-23T07:00:00+01:00",
                    25_200,
                    metadata={"summary_id": 'n "1"'},
                )
            ),
            sleep(night("23:00", "07:00", 20_000, metadata={"summary_id": 'n "1"'}), at_s=60),
            sleep(
                night(
                    "2026-06-20T23:00:00+01:00",
                    "2026-06-21T07:00:00+01:00",
                    21_000,
                    metadata={"summary_id": 'n "1"'},
                ),
                at_s=120,
            ),
        ],
        {
            DAILY_SUMMARY: {
                ("garmin", "2026-06-23"): None,
                ON: None,
                ("garmin", "2026-06-21"): {
                    "sleep_minutes": 350.0,
                    "bed_time": "2026-06-20T23:00:00.000+01:00",
                    "wake_up_time": "2026-06-21T07:00:00.000+01:00",
                    "utc_offset_minutes": 60,
                },
            },
            SLEEP_SESSIONS: {
                ("garmin", "2026-06-22T22:00:00.000Z"): None,
                ("garmin", "2026-06-30T22:00:00.000Z"): None,
            },
        },
    ),
    "shares where the time awake is unknown": Case(
        [
            sleep(
                night("23:00", "07:00", 20_000, stages={"duration_deep_sleep_state_seconds": 5_000})
            )
        ],
        {
            DAILY_SUMMARY: {
                ON: {
                    "sleep_minutes": 333.33,
                    "bed_time": "2026-06-30T23:00:00.000+01:00",
                    "wake_up_time": "2026-07-01T07:00:00.000+01:00",
                    "deep_sleep_minutes": 83.33,
                    "deep_sleep_percent": 25.0,
                    "utc_offset_minutes": 60,
                }
            }
        },
    ),
    "the latest weight comes first": Case(
        [body(**weights(EVENING_WEIGHT)), body(60, **weights(MORNING_WEIGHT))],
        biomarkers({"weight_kg": {"value": 73.0} | KG}),
    ),
    "measurements of several days in one record": Case(
        [
            body(
                **weights(("2026-06-24T08:00:00+01:00", 72.4), ("2026-06-29T08:00:00+01:00", 71.0)),
                day="2026-06-24",
            )
        ],
        {
            BIOMARKERS: {
                ("garmin_body", "2026-06-24", "weight_kg"): {"value": 72.4} | KG,
                ("garmin_body", "2026-06-29", "weight_kg"): {"value": 71.0} | KG,
            }
        },
    ),
    "the mean of a day over all deliveries": Case(
        [
            body(**pressures((120, 80))),
            body(60, **pressures((130, 85))),
            body(120, **pressures((160, 96))),
        ],
        biomarkers(
            {
                "systolic_bp": {"value": 410 / 3, "samples": 3} | MMHG,
                "diastolic_bp": {"value": 87.0, "samples": 3} | MMHG,
            }
        ),
    ),
    "a sample that is sent again counts once": Case(
        [
            body(**pressures((120, 80), at="2026-07-01T08:00:00+01:00")),
            body(60, **pressures((122, 80), at="2026-07-01T08:00:00+01:00")),
        ],
        biomarkers({"systolic_bp": {"value": 122.0, "samples": 1} | MMHG}),
    ),
    "a sender's own means": Case(
        [
            body(
                measurements_data={"day_avg_weight_kg": 70.5},
                blood_pressure_data={"day_avg_systolic_bp": 118.5},
            )
        ],
        biomarkers({"weight_kg": {"value": 70.5} | KG, "systolic_bp": {"value": 118.5} | MMHG}),
    ),
    "two workouts of one moment": Case(
        [
            workout(metadata={"summary_id": "tri"}, strain_data={"strain_level": 18}),
            workout(60, metadata={"summary_id": "swim", "name": "Swim"}),
        ],
        {
            ACTIVITIES: {
                ("garmin", "2026-07-01T06:00:00.000Z", "tri"): {
                    "end_time": "2026-07-01T08:00:00.000Z",
                    "duration_seconds": 7200.0,
                    "strain": 18.0,
                    "utc_offset_minutes": 60,
                },
                ("garmin", "2026-07-01T06:00:00.000Z", "swim"): {
                    "end_time": "2026-07-01T08:00:00.000Z",
                    "duration_seconds": 7200.0,
                    "name": "Swim",
                    "utc_offset_minutes": 60,
                },
            }
        },
    ),
    "a revised workout": Case(
        [
            workout(metadata={"summary_id": "w"}, strain_data={"strain_level": 18}),
            workout(60, start="07:05", metadata={"summary_id": "w"}),
        ],
        {
            ACTIVITIES: {
                ("garmin", "2026-07-01T06:00:00.000Z", "w"): None,
                ("garmin", "2026-07-01T06:05:00.000Z", "w"): {
                    "end_time": "2026-07-01T08:00:00.000Z",
                    "duration_seconds": 6900.0,
                    "utc_offset_minutes": 60,
                },
            }
        },
    ),
}

LABS = {
    "the range against which the lab judged": (
        {
            "interpretation": {"flag": "high", "applied_range": {"lower": 70, "upper": 99}},
            "reference_ranges": [{"lower": 1, "upper": 2}],
        },
        {"reference_low": 70.0, "reference_high": 99.0, "status": "out_of_range"},
        {},
    ),
    "the only range": (
        {"reference_ranges": [{"upper": 99, "type": "normal"}]},
        {"reference_high": 99.0},
        {},
    ),
    "one of several ranges is not chosen": (
        {"reference_ranges": [{"upper": 99}, {"upper": 120}]},
        {},
        {},
    ),
    "a range that is a text": (
        {"reference_range": "70-99"},
        {},
        {"data.results[0].reference_range": "wrong_type"},
    ),
    "a collection date that cannot be read": (
        {"collection_date": "06/29/2026"},
        {},
        {"data.results[0].collection_date": "wrong_type"},
    ),
    "a decimal comma": ({"value": "5,4"}, {"value": 5.4}, {}),
    "a comma that may be either": ({"value": "1,234"}, {"value_text": "1,234"}, {}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_deliveries_come_to_their_rows_in_any_order(case: Case):
    for order in permutations(case.deliveries):
        intake = taken(order, units=(1, 2))
        for table, rows in case.rows.items():
            values = intake.values(table)
            assert {key: values.get(key) for key in rows} == rows
    last = case.deliveries[-1]
    assert intake.outcome(last) == case.outcome
    assert intake.dropped(last) == case.dropped


@pytest.mark.parametrize(("result", "values", "dropped"), LABS.values(), ids=LABS)
def test_results_of_labs(result: Json, values: Json, dropped: Json):
    sent = lab({"biomarker": {"key": "glucose"}, "value": 92, "unit": "mg/dL", **result})
    intake = taken([*UPLOADED, *SUBMITTED, sent])
    row = intake.values(BIOMARKERS)["terra_lab", "2026-06-30", "glucose"]
    plain = {"value": 92.0, "unit": "mg/dL", "upload_id": "up-1"}
    if "value_text" in values:
        del plain["value"]
    classified = {"classification": "high"} if "status" in values else {}
    assert row == plain | values | classified
    assert intake.dropped(sent) == dropped


def test_the_language_of_a_report_tells_its_commas():
    english = lab({"biomarker": "glucose", "value": "1,234"}, report_locale="en-GB")
    german = lab({"biomarker": "glucose", "value": "1,234"}, report_locale="de-DE")
    for sent, value in ((english, 1234.0), (german, 1.234)):
        rows = taken([*UPLOADED, *SUBMITTED, sent]).values(BIOMARKERS)
        assert rows["terra_lab", "2026-06-30", "glucose"]["value"] == value


@pytest.mark.parametrize("data", [None, [], {"report_date": "2026-06-30", "results": None}])
def test_a_report_without_results_is_parsed(data: object):
    sent = delivery("lab_report.completed", data, upload_id="upl-1")
    intake = taken([*UPLOADED, *SUBMITTED, sent])
    assert intake.rows(LAB_UPLOADS)["up-1",].values[LAB_UPLOADS.index["terra_status"]] == "parsed"


def test_a_mean_counts_every_sample_of_deliveries_that_overlap():
    minutes = [f"2026-07-01T{number // 60:02}:{number % 60:02}:00+01:00" for number in range(1_440)]
    samples = [
        {"timestamp": at, "systolic_bp": 100 + number % 50} for number, at in enumerate(minutes)
    ]
    deliveries = [
        body(number, blood_pressure_data={"blood_pressure_samples": samples[begin:end]})
        for number, (begin, end) in enumerate(((0, 600), (500, 1_100), (1_000, 1_440)))
    ]
    target = fsum(sample["systolic_bp"] for sample in samples) / len(samples)
    for shuffled in permutations(deliveries):
        intake = taken(shuffled, units=(1, 2))
        (row,) = intake.restored().take(deliveries[0]).values(BIOMARKERS).values()
        assert row == {"value": target, "samples": 1_440} | MMHG
        (record,) = intake.topics[BIOMARKERS.topic].values()
        assert len(record.value or b"") < 1_440 * 40


def statuses(intake: TerraIntake) -> dict[str, object]:
    rows = intake.rows(LAB_UPLOADS)
    return {key[0]: row.values[LAB_UPLOADS.index["terra_status"]] for key, row in rows.items()}


def test_a_failure_that_names_only_its_user_is_of_the_oldest_upload_that_waits():
    first, second = (
        delivery("lab_report.failed", FAILED, 60 + number, event_id=f"evt-{number}")
        for number in (1, 2)
    )
    intake = taken([*UPLOADED, *SUBMITTED, first])
    assert statuses(intake) == {"up-1": "failed:file_unreadable", "up-2": "submitted"}
    assert intake.outcome(first) == ("processed", "")
    intake.take(second)
    assert statuses(intake) == dict.fromkeys(("up-1", "up-2"), "failed:file_unreadable")
    third = delivery("lab_report.failed", FAILED, 90, event_id="evt-3")
    assert intake.take(third).outcome(third) == ("processed", "")
    assert statuses(intake) == dict.fromkeys(("up-1", "up-2"), "failed:file_unreadable")
    stranger = delivery("lab_report.failed", FAILED | {"reference_id": "other"}, 90)
    assert intake.take(stranger).outcome(stranger) == ("skipped", "no_upload_named")


def test_which_upload_a_failure_means_does_not_depend_on_when_its_owner_hears_of_the_uploads():
    failures = [
        delivery("lab_report.failed", FAILED, 60 + number, event_id=f"evt-{number}")
        for number in (1, 2)
    ]
    parsed = delivery(
        "lab_report.completed", {"report_date": "2026-06-30", "results": None}, 61.5,
        upload_id="upl-2",
    )  # fmt: skip
    everything = [*UPLOADED, *SUBMITTED, *failures, parsed]
    target = {"up-1": "failed:file_unreadable", "up-2": "parsed"}
    for seed in range(40):
        shuffled = random.Random(seed).sample(everything, len(everything))
        intake = taken(shuffled, units=range(len(shuffled)))
        assert statuses(intake) == target, seed
        assert statuses(intake.restored()) == target


def test_what_terra_had_later_within_a_second_is_later():
    old, new = (
        of_body(daily(**steps(number)).body, at_s=at_s, ordered_ms=NOW_MS + at_ms)
        for number, at_s, at_ms in ((1, 3_600, 100), (2, 0, 900))
    )
    for order in ((old, new), (new, old)):
        assert taken(order).values(DAILY_SUMMARY)[ON]["steps"] == 2


def test_ranges_are_settings_of_the_provider():
    assert TERRA.with_ranges is not None
    terra = TERRA.with_ranges({"heart_rate_data.summary.resting_hr_bpm": (30, 100)})
    sent = daily(**pulse(25), **steps(1))
    intake = TerraIntake(terra).take(sent)
    assert intake.dropped(sent) == {
        "data[0].heart_rate_data.summary.resting_hr_bpm": "out_of_range"
    }
    assert taken([sent]).values(DAILY_SUMMARY)[ON]["resting_heart_rate"] == 25


def test_a_dead_letter_names_every_rejected_record():
    bad = [{"metadata": {"start_time": "yesterday"}} for _ in range(2_000)]
    sent = delivery("daily", [{"metadata": DAY, **steps(1)}, *bad])
    intake = taken([sent])
    (letter,) = intake.letters
    assert letter["headwater.reason"] == "partial"
    assert letter["__connect.errors.exception.message"] == "bad_date: data[1-2000]"
    assert intake.outcomes[sent.event_id].rejected == 2_000


def test_an_outcome_names_at_most_fifty_fields_and_counts_all():
    records = [
        {"metadata": {"start_time": f"2026-01-01T00:00:{n:02}+00:00"}, **pulse(0), **steps(1)}
        for n in range(60)
    ]
    sent = delivery("daily", records)
    intake = taken([sent])
    assert len(intake.dropped(sent)) == 50
    assert intake.outcomes[sent.event_id].rejected_fields_total == 60


def test_the_sources_file_sets_ranges_and_names_wrong_ones():
    text = '[[source]]\nname = "terra"\nprovider = "terra"\n[source.ranges]\n"{}" = {}\n'
    path = "heart_rate_data.summary.resting_hr_bpm"
    (source,) = read_sources(text.format(path, "[30, 100]"), {"terra": TERRA})
    sent = daily(**pulse(25), **steps(1))
    assert TerraIntake(source.provider).take(sent).dropped(sent) == {
        f"data[0].{path}": "out_of_range"
    }
    for written, problem in (
        (text.format(path, "[100, 30]"), "expected the lower end first"),
        (text.format("pulse", "[1, 2]"), "ranges: expected one of"),
    ):
        with pytest.raises(SourcesInvalid, match=problem):
            read_sources(written, {"terra": TERRA})


def test_the_sources_file_sets_when_connections_are_silent():
    text = '[[source]]\nname = "terra"\nprovider = "terra"\n[source.silent_after_days]\n{}\n'
    (source,) = read_sources(text.format("Withings = 14\ndefault = 4"), {"terra": TERRA})
    limits = {"terra": {"withings": 14, "default": 4}}
    assert silence_limits({"terra": source.provider, "other": TERRA}) == limits
    with pytest.raises(SourcesInvalid, match=r"silent_after_days\.garmin: expected 1 to 366 days"):
        read_sources(text.format("garmin = 0"), {"terra": TERRA})
    assert silence_limits({"terra": TERRA}) == {}
