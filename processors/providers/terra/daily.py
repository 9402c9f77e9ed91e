"""Daily deliveries: one daily_summary row per record, keyed by the day on which it begins."""

from typing import Final

from headwater.processors.columns import RowUpdate
from headwater.processors.providers.results import (
    DroppedField,
    NormalizeResult,
    Rejected,
    normalized,
)
from headwater.processors.providers.terra.limits import DAILY, Limits, plausible
from headwater.processors.providers.terra.records import (
    Records,
    combine,
    minutes,
    nothing_left,
    read_day,
    read_records,
)
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
    event: WebhookAdmitted, user_id: str, delivery: Delivery[Daily], limits: Limits = DAILY
) -> NormalizeResult:
    """Normalize a daily delivery.

    It sets every column of a daily record; datetime is the day of start_time in the record's own
    offset. Durations are sent in seconds and stored in minutes. Of records of one day the later
    one's values win. Rejected records name the record and the field.
    """

    def read(
        record: Daily, number: int, latest_ms: int, dropped: list[DroppedField]
    ) -> tuple[str, dict[str, Value]] | Rejected:
        day = read_day(record, number, latest_ms)
        if isinstance(day, Rejected):
            return day
        columns = _columns(record, number, limits, dropped)
        if dropped and not any(value is not None for value in columns.values()):
            rejected = nothing_left(number, dropped)
            if rejected is not None:
                return rejected
        columns["utc_offset_minutes"] = day.offset_minutes
        return day.text, columns

    records = read_records(event, delivery, read)
    if not isinstance(records, Records):
        return records
    rows: dict[str, dict[str, Value]] = {}
    for day, columns in records.parsed:
        combine(rows, day, columns)
    stamp = event.stamp()
    updates = [
        RowUpdate(DAILY_SUMMARY, (user_id, records.source, day), columns, stamp)
        for day, columns in rows.items()
    ]
    return normalized(updates, records.rejected, records.dropped)


def _columns(
    record: Daily, number: int, limits: Limits, dropped: list[DroppedField]
) -> dict[str, Value]:
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
    steps, resting, variability, low, moderate, vigorous, stress, strain, recovery, sleep = (
        plausible(limits, readings, number, dropped)
    )
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
