"""Body deliveries become biomarkers."""

from typing import Any

import pytest

from headwater.processors.columns import merge
from headwater.processors.providers.results import Failed, Normalized, NormalizeResult, Skipped
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.tables import BIOMARKERS
from tests.unit.processors.deliveries import admitted, records, rejected

DAY = {"metadata": {"start_time": "2026-07-01T00:00:00+09:00"}}


def weighed(*measurements: dict[str, Any]) -> dict[str, Any]:
    return DAY | {"measurements_data": {"measurements": list(measurements)}}


def pressed(*samples: tuple[float | None, float | None], **more: object) -> dict[str, Any]:
    result = [{"systolic_bp": high, "diastolic_bp": low} for high, low in samples]
    return DAY | {"blood_pressure_data": {"blood_pressure_samples": result, **more}}


def rows(result: NormalizeResult) -> dict[tuple[str, ...], tuple[object, ...]]:
    assert isinstance(result, Normalized)
    composed = {update.key: merge(None, update) for update in result.updates}
    positions = [BIOMARKERS.index[name] for name in ("value", "unit", "samples")]
    return {key: tuple(row.values[at] for at in positions) for key, row in composed.items()}


KEY = ("user_1", "withings_body", "2026-07-01")


def test_weight_and_body_fat_are_each_the_latest_of_the_day_in_rows_of_their_own():
    result = records(
        "body",
        weighed(
            {"measurement_time": "2026-07-01T21:00:00+09:00", "weight_kg": 71.5},
            {"measurement_time": "2026-07-01T07:00:00+09:00", "weight_kg": 72.4,
             "bodyfat_percentage": 17.5},
            # Later by its own offset, earlier by the clock.
            {"measurement_time": "2026-07-01T23:00:00+14:00", "weight_kg": 70.0},
            {"weight_kg": 69.0},
            {"measurement_time": "2026-07-02T01:00:00+09:00", "bodyfat_percentage": 16.0},
        ),
        provider="WITHINGS",
    )  # fmt: skip
    assert rows(result) == {
        (*KEY, "weight_kg"): (71.5, "kg", None),
        (*KEY, "body_fat_percent"): (17.5, "percent", None),
        (*KEY[:2], "2026-07-02", "body_fat_percent"): (16.0, "percent", None),
    }


def test_blood_pressure_is_the_mean_of_the_days_samples_of_all_records():
    result = records(
        "body",
        pressed((120, 80), (131, None)),
        pressed((124, 83), day_avg_systolic_bp=99),
        provider="Withings",
    )
    assert rows(result) == {
        (*KEY, "systolic_bp"): (125.0, "mmHg", 3),
        (*KEY, "diastolic_bp"): (81.5, "mmHg", 2),
    }


def test_a_sender_without_samples_has_its_own_mean_taken():
    result = records("body", pressed(day_avg_systolic_bp=118.5), provider="WITHINGS")
    assert rows(result) == {(*KEY, "systolic_bp"): (118.5, "mmHg", None)}


@pytest.mark.parametrize("metadata", [{}, None])
@pytest.mark.parametrize("field", ["summary_date", "date", "day"])
def test_a_record_without_a_start_has_the_day_that_it_names(field: str, metadata: object):
    one = weighed({"weight_kg": 80.0}) | {"metadata": metadata, field: "2026-06-11"}
    assert list(rows(records("body", one))) == [
        ("user_1", "garmin_body", "2026-06-11", "weight_kg")
    ]


GLUCOSE = {"glucose_data": {"blood_glucose_samples": [{"blood_glucose_mg_per_dL": 95}]}}


def test_a_stream_of_glucose_alone_is_skipped_by_name():
    assert records("body", DAY | GLUCOSE) == Skipped("glucose_stream")
    assert len(rows(records("body", weighed({"weight_kg": 80}) | GLUCOSE))) == 1
    nothing = {"glucose_data": {"blood_glucose_samples": [], "day_avg_blood_glucose": None}}
    assert records("body", DAY | nothing) == Skipped("no_measurement")


@pytest.mark.parametrize(
    ("record", "place"),
    [
        (weighed({"weight_kg": -3}), "data[0].measurements_data.measurements[0].weight_kg"),
        (weighed({"bodyfat_percentage": 120}),
         "data[0].measurements_data.measurements[0].bodyfat_percentage"),
        (pressed((12000, None)), "blood_pressure_samples[0].systolic_bp (out_of_range)"),
        (pressed(day_avg_diastolic_bp=-1), "data[0].blood_pressure_data.day_avg_diastolic_bp"),
        (weighed({"weight_kg": "heavy"}), "measurements[0].weight_kg (wrong_type)"),
        (weighed({"weight_kg": 70}) | {"metadata": {}}, "data[0].metadata.start_time"),
        (weighed({"weight_kg": 70}) | {"metadata": {}, "date": "20260-06-11"}, "data[0].date"),
        (weighed({"weight_kg": 70}) | {"metadata": {}, "day": "2096-06-11"}, "data[0].day"),
    ],
)  # fmt: skip
def test_a_record_of_which_nothing_is_left_is_rejected(record: dict[str, Any], place: str):
    result = records("body", record, weighed({"weight_kg": 81.0}))
    assert place in rejected(result).detail
    assert len(rows(result)) == 1
    alone = records("body", record)
    assert isinstance(alone, Failed)
    assert alone.code == "no_usable_record"


def test_a_body_of_numbers_that_take_seconds_to_read_is_malformed():
    numbers = ",".join(["1e308"] * 100_000)
    body = (
        f'{{"user":{{"user_id":"u"}},"data":[{{"day_avg_blood_glucose_mg_per_dL":[{numbers}]}}]}}'
    )
    with pytest.raises(MalformedPayload, match="an exponent of 200 or more, found 100000"):
        TERRA.normalize(admitted("body", body.encode()))
