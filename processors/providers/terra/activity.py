"""Activity deliveries: one activities row per record, keyed by the start of the workout."""

from typing import Final

from headwater.processors.input_texts import storable, text_problem
from headwater.processors.providers.results import NormalizeResult, Rejected
from headwater.processors.providers.terra import limits
from headwater.processors.providers.terra.records import (
    read_end,
    read_start,
    rows_of_records,
    utc_ms,
)
from headwater.schemas.providers.terra import (
    Activity,
    ActivityDistance,
    ActivityDistanceSummary,
    ActivityHeartRate,
    ActivityHeartRateSummary,
    Calories,
    Delivery,
    Strain,
    Workout,
)
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import ACTIVITIES, Value

# Defaults for missing parts of a record.
_DISTANCE: Final = ActivityDistance()
_DISTANCE_SUMMARY: Final = ActivityDistanceSummary()
_HEART: Final = ActivityHeartRate()
_HEART_SUMMARY: Final = ActivityHeartRateSummary()
_CALORIES: Final = Calories()
_STRAIN: Final = Strain()

_MAX_NAME_CHARS: Final = 1_000


def normalize_activity(
    event: WebhookAdmitted, user_id: str, delivery: Delivery[Workout]
) -> NormalizeResult:
    """Normalize an activity delivery.

    Workouts are keyed by start_time in UTC to the millisecond, such as 2026-06-30T22:12:00.000Z.
    Units are Terra's; duration_seconds is the end minus the start. Rejected records name the record
    and the field.
    """
    return rows_of_records(ACTIVITIES, event, user_id, delivery, _read)


def _read(workout: Workout, number: int, latest_ms: int) -> tuple[str, dict[str, Value]] | Rejected:
    """Return the start of one record, and its columns."""
    record, text = workout
    metadata = record.metadata
    start = read_start(metadata, number, latest_ms)
    if isinstance(start, Rejected):
        return start
    end = None if metadata.end_time is None else read_end(metadata, number, latest_ms, start)
    if isinstance(end, Rejected):
        return end
    problem = text_problem(f"data[{number}].metadata.summary_id", metadata.summary_id)
    name = storable(metadata.name or "")
    problem = problem or text_problem(f"data[{number}].metadata.name", name, _MAX_NAME_CHARS)
    if problem is not None:
        return Rejected("malformed_text", problem)
    columns = _columns(record, number)
    if isinstance(columns, Rejected):
        return columns
    columns |= {
        "end_time": None if end is None else utc_ms(end),
        "duration_seconds": None if end is None else (end - start).total_seconds(),
        "summary_id": metadata.summary_id,
        "name": name or None,
        "raw": text,
    }
    return utc_ms(start), columns


def _columns(record: Activity, number: int) -> dict[str, Value] | Rejected:
    """Return the numbers of one record as columns."""
    distance = (record.distance_data or _DISTANCE).summary or _DISTANCE_SUMMARY
    heart = (record.heart_rate_data or _HEART).summary or _HEART_SUMMARY
    readings = (
        record.metadata.type,
        (record.calories_data or _CALORIES).total_burned_calories,
        distance.distance_meters,
        distance.steps,
        heart.avg_hr_bpm,
        heart.max_hr_bpm,
        (record.strain_data or _STRAIN).strain_level,
    )
    outside = limits.first_outside(limits.ACTIVITY, readings, number)
    if outside is not None:
        return outside
    kind, calories, meters, steps, average, highest, strain = readings
    return {
        "type": None if kind is None else round(kind),
        "calories": calories,
        "distance_meters": meters,
        "steps": None if steps is None else round(steps),
        "avg_heart_rate": average,
        "max_heart_rate": highest,
        "strain": strain,
    }
