"""Plausible ranges of the numbers in a delivery.

A record with a number outside its limits is rejected as a whole: a wearable that reports a million
steps, or a negative pulse, is broken, and a row that mixes such numbers with valid ones cannot be
distinguished from a valid row. Limits are wide: they exclude the impossible, not the unusual.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from headwater.processors.providers.results import Rejected


class Limit(msgspec.Struct, frozen=True):
    """The allowed range of one field, both ends included, and the reason for it.

    Attributes:
        path: Path of the field in a record.
    """

    path: str
    low: float
    high: float
    unit: str
    because: str


_DAY: Final = "a day has 86,400 s, 90,000 where clocks go back; twice a day allows for windows"
_NIGHT: Final = "no wearable closes a sleep later than two days after it began"
_SCORE: Final = "Terra scales scores to 0..100"
_PULSE: Final = (
    "the slowest resting heart known beats 26 times, the fastest in tachycardia below 250"
)
_HRV: Final = "RMSSD of healthy sleepers ends near 250 ms; arrhythmia can treble it"

_RESTING_HEART_RATE: Final = Limit(
    "heart_rate_data.summary.resting_hr_bpm", 20, 250, "beats per minute", _PULSE
)
_HEART_RATE_VARIABILITY: Final = Limit(
    "heart_rate_data.summary.avg_hrv_rmssd", 0, 1_000, "ms", _HRV
)
_RECOVERY: Final = Limit("scores.recovery", 0, 100, "points", _SCORE)
_SLEEP_SCORE: Final = Limit("scores.sleep", 0, 100, "points", _SCORE)

#: The fields of a daily record, in the order in which `daily` reads them.
DAILY: Final = (
    Limit("distance_data.steps", 0, 500_000, "steps", "24-hour walking records end near 300,000"),
    _RESTING_HEART_RATE,
    _HEART_RATE_VARIABILITY,
    Limit("active_durations_data.low_intensity_seconds", 0, 172_800, "s", _DAY),
    Limit("active_durations_data.moderate_intensity_seconds", 0, 172_800, "s", _DAY),
    Limit("active_durations_data.vigorous_intensity_seconds", 0, 172_800, "s", _DAY),
    Limit("stress_data.avg_stress_level", 0, 100, "points", _SCORE),
    Limit("strain_data.strain_level", 0, 1_000, "points", "Whoop ends at 21, others in hundreds"),
    _RECOVERY,
    _SLEEP_SCORE,
)

#: The fields of a sleep record, in the order in which `sleep` reads them.
SLEEP: Final = (
    Limit("sleep_durations_data.asleep.duration_asleep_state_seconds", 0, 172_800, "s", _NIGHT),
    Limit("sleep_durations_data.asleep.duration_deep_sleep_state_seconds", 0, 172_800, "s", _NIGHT),
    Limit("sleep_durations_data.asleep.duration_REM_sleep_state_seconds", 0, 172_800, "s", _NIGHT),
    Limit(
        "sleep_durations_data.asleep.duration_light_sleep_state_seconds", 0, 172_800, "s", _NIGHT
    ),
    Limit("sleep_durations_data.awake.duration_awake_state_seconds", 0, 172_800, "s", _NIGHT),
    _RESTING_HEART_RATE,
    _HEART_RATE_VARIABILITY,
    Limit(
        "respiration_data.oxygen_saturation_data.avg_saturation_percentage",
        0,
        100,
        "percent",
        "a share",
    ),
    Limit(
        "respiration_data.breaths_data.avg_breaths_per_min",
        0,
        100,
        "breaths per minute",
        "newborns reach 60; averages of a whole sleep stay far below",
    ),
    Limit(
        "temperature_data.delta",
        -20,
        20,
        "degrees Celsius",
        "a deviation from the baseline; an absolute temperature, 30 and more, is a mistake",
    ),
    _RECOVERY,
    Limit("readiness_data.readiness", 0, 100, "points", _SCORE),
    _SLEEP_SCORE,
)


_BLOOD_PRESSURE: Final = "the highest ever measured was 370 over 360, in weightlifters"

#: The fields of an activity, in the order in which `activity` reads them.
ACTIVITY: Final = (
    Limit("metadata.type", 0, 10_000, "", "Terra's list of kinds ends below 200"),
    Limit("calories_data.total_burned_calories", 0, 100_000, "kcal", "a Tour stage has 8,000"),
    Limit(
        "distance_data.summary.distance_meters",
        0,
        20_000_000,
        "m",
        "a recorded journey of days; half the way around the Earth",
    ),
    Limit("distance_data.summary.steps", 0, 2_000_000, "steps", "six-day runs end near 1,200,000"),
    Limit("heart_rate_data.summary.avg_hr_bpm", 20, 300, "beats per minute", _PULSE),
    Limit("heart_rate_data.summary.max_hr_bpm", 20, 300, "beats per minute", _PULSE),
    Limit("strain_data.strain_level", 0, 1_000, "points", "Whoop ends at 21, others in hundreds"),
)

#: Limits of body measurements.
WEIGHT: Final = Limit("weight_kg", 0.2, 700, "kg", "from the smallest newborn to 635 kg")
BODY_FAT: Final = Limit("bodyfat_percentage", 0, 100, "percent", "a share")
SYSTOLIC: Final = Limit("systolic_bp", 20, 400, "mmHg", _BLOOD_PRESSURE)
DIASTOLIC: Final = Limit("diastolic_bp", 10, 400, "mmHg", _BLOOD_PRESSURE)


def first_outside(
    limits: tuple[Limit, ...], readings: Iterable[float | None], number: int
) -> Rejected | None:
    """Return the rejection of the first reading of record `number` outside its limit, or None.

    Args:
        limits: The limits.
        readings: Readings in the order of the limits; a missing one is accepted.
        number: Number of the record.
    """
    for limit, value in zip(limits, readings, strict=True):
        # Repeats the check of `outside`: calling it for every reading would cost more.
        if value is not None and not limit.low <= value <= limit.high:
            return outside(limit, value, f"data[{number}].{limit.path}")
    return None


def outside(limit: Limit, value: float | None, path: str) -> Rejected | None:
    """Return the rejection of a reading outside its limit; a missing one is accepted."""
    if value is None or limit.low <= value <= limit.high:
        return None
    return Rejected(
        "out_of_range",
        f"{path}: expected {limit.low:,} to {limit.high:,} {limit.unit} ({limit.because}), "
        f"found {value!r}",
    )
