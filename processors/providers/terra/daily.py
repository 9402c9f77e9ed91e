"""Daily deliveries: one daily_summary row per record, keyed by the day on which it begins."""

from typing import Final

from headwater.processors.providers.results import NormalizeResult, Rejected
from headwater.processors.providers.terra import limits
from headwater.processors.providers.terra.records import minutes, read_day, rows_of_records
from headwater.schemas.providers.terra import (
    ActiveDurations,
    Daily,
    Delivery,
    Distance,
    HeartRate,
    HeartRateSummary,
    Scores,
    Strain,
    Stress,
)
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import DAILY_SUMMARY, Value

# Defaults for missing parts of a record.
_DISTANCE: Final = Distance()
_HEART: Final = HeartRate()
_HEART_SUMMARY: Final = HeartRateSummary()
_ACTIVE: Final = ActiveDurations()
_STRESS: Final = Stress()
_STRAIN: Final = Strain()
_SCORES: Final = Scores()


def normalize_daily(
    event: WebhookAdmitted, user_id: str, delivery: Delivery[Daily]
) -> NormalizeResult:
    """Normalize a daily delivery.

    It sets every column of a daily record, rank 0; datetime is the day of start_time in the
    record's own offset. Durations are sent in seconds and stored in minutes. Rejected records name
    the record and the field.
    """
    return rows_of_records(DAILY_SUMMARY, event, user_id, delivery, _read)


def _read(record: Daily, number: int, latest_ms: int) -> tuple[str, dict[str, Value]] | Rejected:
    """Return the day of one record, and its columns."""
    day = read_day(record, number, latest_ms)
    if isinstance(day, Rejected):
        return day
    columns = _columns(record, number)
    return columns if isinstance(columns, Rejected) else (day, columns)


def _columns(record: Daily, number: int) -> dict[str, Value] | Rejected:
    """Return the columns of one record."""
    heart = (record.heart_rate_data or _HEART).summary or _HEART_SUMMARY
    active = record.active_durations_data or _ACTIVE
    scores = record.scores or _SCORES
    readings = (
        (record.distance_data or _DISTANCE).steps,
        heart.resting_hr_bpm,
        heart.avg_hrv_rmssd,
        active.low_intensity_seconds,
        active.moderate_intensity_seconds,
        active.vigorous_intensity_seconds,
        (record.stress_data or _STRESS).avg_stress_level,
        (record.strain_data or _STRAIN).strain_level,
        scores.recovery,
        scores.sleep,
    )
    outside = limits.first_outside(limits.DAILY, readings, number)
    if outside is not None:
        return outside
    steps, resting, variability, low, moderate, vigorous, stress, strain, recovery, sleep = readings
    return {
        "steps": None if steps is None else round(steps),
        "resting_heart_rate": resting,
        "heart_rate_variability": variability,
        "active_zone_minutes": _total_minutes(low, moderate, vigorous),
        "fatburn_active_zone_minutes": minutes(low),
        "cardio_active_zone_minutes": minutes(moderate),
        "peak_active_zone_minutes": minutes(vigorous),
        "stress_management_score": stress,
        "strain": strain,
        "recovery_score": recovery,
        "sleep_score": sleep,
    }


def _total_minutes(*seconds: float | None) -> float | None:
    """Return the sum of the known durations in minutes; None if none is known."""
    known = [duration for duration in seconds if duration is not None]
    return minutes(sum(known)) if known else None
