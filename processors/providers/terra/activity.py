"""Activity deliveries: one activities row per record, keyed by the start and id of the workout."""

from typing import Final

from headwater.processors.columns import RowUpdate
from headwater.processors.input_texts import storable
from headwater.processors.providers.results import (
    OUT_OF_RANGE,
    WRONG_TYPE,
    DroppedField,
    NormalizeResult,
    Rejected,
    normalized,
)
from headwater.processors.providers.terra.limits import ACTIVITY, Limits, plausible
from headwater.processors.providers.terra.records import (
    Records,
    offset_minutes,
    read_end,
    read_records,
    read_start,
    short_text,
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
    event: WebhookAdmitted, user_id: str, delivery: Delivery[Workout], limits: Limits = ACTIVITY
) -> NormalizeResult:
    """Normalize an activity delivery.

    Workouts are keyed by start_time in UTC to the millisecond, such as 2026-06-30T22:12:00.000Z,
    and Terra's id. A row is replaced as a whole. Units are Terra's; duration_seconds is the end
    minus the start. Rejected records name the record and the field.
    """

    def read(
        workout: Workout, number: int, latest_ms: int, dropped: list[DroppedField]
    ) -> tuple[tuple[str, str], dict[str, Value]] | Rejected:
        record, text = workout
        metadata, path = record.metadata, f"data[{number}].metadata"
        start = read_start(metadata, number, latest_ms)
        if isinstance(start, Rejected):
            return start
        end = None if metadata.end_time is None else read_end(metadata, number, latest_ms, start)
        if isinstance(end, Rejected):
            reason = WRONG_TYPE if end.code == "bad_date" else OUT_OF_RANGE
            dropped.append(DroppedField(f"{path}.end_time", reason))
            end = None
        summary_id = short_text(f"{path}.summary_id", metadata.summary_id, dropped)
        name = storable(metadata.name or "") or None
        columns = _columns(record, number, limits, dropped)
        columns |= {
            "end_time": None if end is None else utc_ms(end),
            "duration_seconds": None if end is None else (end - start).total_seconds(),
            "name": short_text(f"{path}.name", name, dropped, _MAX_NAME_CHARS),
            "raw": text,
            "utc_offset_minutes": offset_minutes(start),
        }
        return (utc_ms(start), summary_id or ""), columns

    records = read_records(event, delivery, read)
    if not isinstance(records, Records):
        return records
    stamp = event.stamp()
    # Of several records of one key the same counts, whatever their order.
    rows = dict(sorted(records.parsed, key=lambda workout: str(workout[1]["raw"])))
    updates = [
        RowUpdate(ACTIVITIES, (user_id, records.source, *key), columns, stamp)
        for key, columns in rows.items()
    ]
    return normalized(updates, records.rejected, records.dropped)


def _columns(
    record: Activity, number: int, limits: Limits, dropped: list[DroppedField]
) -> dict[str, Value]:
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
    kind, calories, meters, steps, average, highest, strain = plausible(
        limits, readings, number, dropped
    )
    return {
        "type": None if kind is None else round(kind),
        "calories": calories,
        "distance_meters": meters,
        "steps": None if steps is None else round(steps),
        "avg_heart_rate": average,
        "max_heart_rate": highest,
        "strain": strain,
    }
