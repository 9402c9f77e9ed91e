"""Plausible ranges of the numbers in a delivery.

A number outside its range is dropped, and the rest of its record is stored: a strap without contact
reports a pulse of 0, but has counted the steps. Zeros and negative numbers of what no living person
has are no measurements. Ranges are wide: they exclude the impossible, not the unusual. The sources
file may replace them (`ranges`).
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from headwater.processors.providers.results import NOT_MEASURED, OUT_OF_RANGE, DroppedField


class Limit(msgspec.Struct, frozen=True):
    """The allowed range of one field, both ends included, and the reason for it.

    Attributes:
        path: Path of the field in a record, without the numbers of list items.
        absent: Values up to this one mean that nothing was measured.
    """

    path: str
    low: float
    high: float
    unit: str
    because: str
    absent: float = float("-inf")


#: Ranges that replace those of the same paths: the lowest and the highest value.
Ranges: TypeAlias = Mapping[str, tuple[float, float]]
Limits: TypeAlias = tuple[Limit, ...]

_DAY: Final = "a day has 86,400 s, 90,000 where clocks go back; twice a day allows for windows"
_NIGHT: Final = "no wearable closes a sleep later than two days after it began"
_SCORE: Final = "Terra scales scores to 0..100"
_PULSE: Final = (
    "the slowest resting heart known beats 26 times, the fastest in tachycardia below 250"
)
_HRV: Final = "RMSSD of healthy sleepers ends near 250 ms; arrhythmia can treble it"

#: The largest negative number: below 0 nothing was measured, and 0 is a value.
_BELOW_ZERO: Final = -5e-324

_RESTING_HEART_RATE: Final = Limit(
    "heart_rate_data.summary.resting_hr_bpm", 20, 250, "beats per minute", _PULSE, 0
)
_HEART_RATE_VARIABILITY: Final = Limit(
    "heart_rate_data.summary.avg_hrv_rmssd", 0, 1_000, "ms", _HRV, 0
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
    Limit("stress_data.avg_stress_level", 0, 100, "points", _SCORE, _BELOW_ZERO),
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
        0,
    ),
    Limit(
        "respiration_data.breaths_data.avg_breaths_per_min",
        0,
        100,
        "breaths per minute",
        "newborns reach 60; averages of a whole sleep stay far below",
        0,
    ),
    Limit(
        "temperature_data.delta",
        -20,
        20,
        "degrees Celsius",
        "a deviation from the baseline; an absolute temperature, 30 and more, is a mistake",
    ),
    _RECOVERY,
    _SLEEP_SCORE,
)

#: Whoop's recovery; other makers' readiness is not stored.
READINESS: Final = Limit("readiness_data.readiness", 0, 100, "points", _SCORE)


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
    Limit("heart_rate_data.summary.avg_hr_bpm", 20, 300, "beats per minute", _PULSE, 0),
    Limit("heart_rate_data.summary.max_hr_bpm", 20, 300, "beats per minute", _PULSE, 0),
    Limit("strain_data.strain_level", 0, 1_000, "points", "Whoop ends at 21, others in hundreds"),
)

#: Limits of body measurements.
WEIGHT: Final = Limit(
    "measurements_data.measurements.weight_kg",
    0.2,
    700,
    "kg",
    "from the smallest newborn to 635 kg",
    0,
)
BODY_FAT: Final = Limit(
    "measurements_data.measurements.bodyfat_percentage",
    2,
    90,
    "percent",
    "no one can live with less; 0.25 is a fraction where percents are documented",
    0,
)
SYSTOLIC: Final = Limit(
    "blood_pressure_data.blood_pressure_samples.systolic_bp", 20, 400, "mmHg", _BLOOD_PRESSURE, 0
)
DIASTOLIC: Final = Limit(
    "blood_pressure_data.blood_pressure_samples.diastolic_bp", 10, 400, "mmHg", _BLOOD_PRESSURE, 0
)

#: All limits, by path.
ALL: Final = {
    limit.path: limit
    for limit in (*DAILY, *SLEEP, READINESS, *ACTIVITY, WEIGHT, BODY_FAT, SYSTOLIC, DIASTOLIC)
}


def with_ranges(limits: Limits, ranges: Ranges) -> Limits:
    """Return limits with other ranges for some of their paths."""
    return tuple(
        msgspec.structs.replace(limit, low=ranges[limit.path][0], high=ranges[limit.path][1])
        if limit.path in ranges
        else limit
        for limit in limits
    )


def plausible(
    limits: Limits, readings: Sequence[float | None], number: int, dropped: list[DroppedField]
) -> Sequence[float | None]:
    """Return the readings of record `number` that are in their limits, and None for the others.

    Args:
        limits: The limits.
        readings: Readings in the order of the limits; a missing one is None.
        number: Number of the record.
        dropped: Receives the others.
    """
    for limit, value in zip(limits, readings, strict=True):
        # Repeats the check of `in_range`: calling it for every reading would cost more.
        if value is not None and not (limit.low <= value <= limit.high and value > limit.absent):
            break
    else:
        return readings
    return [
        in_range(limit, value, f"data[{number}].{limit.path}", dropped)
        for limit, value in zip(limits, readings, strict=True)
    ]


def in_range(
    limit: Limit, value: float | None, path: str, dropped: list[DroppedField]
) -> float | None:
    """Return a reading if it is in its limit; otherwise name it and return None."""
    if value is None or (limit.low <= value <= limit.high and value > limit.absent):
        return value
    dropped.append(DroppedField(path, NOT_MEASURED if value <= limit.absent else OUT_OF_RANGE))
    return None
