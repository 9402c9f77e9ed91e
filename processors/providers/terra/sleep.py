"""Sleep deliveries: one sleep_sessions row per record, and a part of the day it ended on.

Which sleep is the main one of a day, and which sleeps replace others, follows from all sleeps of
the day and not from one delivery (`processors.sleeps`).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from headwater.processors.columns import RowUpdate
from headwater.processors.input_texts import unix_ms
from headwater.processors.providers.results import (
    NOT_MEASURED,
    OUT_OF_RANGE,
    WRONG_TYPE,
    DroppedField,
    NormalizeResult,
    Rejected,
    normalized,
)
from headwater.processors.providers.terra.limits import (
    READINESS,
    SLEEP,
    Limit,
    Limits,
    in_range,
    plausible,
)
from headwater.processors.providers.terra.records import (
    Records,
    minutes,
    offset_minutes,
    read_end,
    read_records,
    read_start,
    short_text,
    utc_ms,
)
from headwater.processors.sleeps import Sleep as SleepPart
from headwater.schemas.providers.terra import (
    Asleep,
    Awake,
    Breaths,
    Delivery,
    HeartRate,
    HeartRateSummary,
    Night,
    OxygenSaturation,
    Readiness,
    Respiration,
    Scores,
    Sleep,
    SleepDurations,
    Temperature,
)
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import DAILY_SUMMARY, SLEEP_SESSIONS, Value

# Defaults for missing parts of a record.
_DURATIONS: Final = SleepDurations()
_ASLEEP: Final = Asleep()
_AWAKE: Final = Awake()
_HEART: Final = HeartRate()
_HEART_SUMMARY: Final = HeartRateSummary()
_RESPIRATION: Final = Respiration()
_BREATHS: Final = Breaths()
_OXYGEN: Final = OxygenSaturation()
_TEMPERATURE: Final = Temperature()
_READINESS: Final = Readiness()
_SCORES: Final = Scores()

_WHOOP: Final = "whoop"

_Columns: TypeAlias = dict[str, Value]
_Readings: TypeAlias = Sequence[float | None]


def normalize_sleep(
    event: WebhookAdmitted,
    user_id: str,
    delivery: Delivery[Night],
    limits: Limits = SLEEP,
    readiness: Limit = READINESS,
) -> NormalizeResult:
    """Normalize a sleep delivery.

    Sessions are keyed by start_time in UTC to the millisecond, such as 2026-06-30T22:12:00.000Z;
    days by the date of end_time in the record's own offset. Durations are sent in seconds and
    stored in minutes; shares are in percent. Rejected records name the record and the field.
    """
    is_whoop = (delivery.user.provider or "").lower() == _WHOOP

    def read(
        night: Night, number: int, latest_ms: int, dropped: list[DroppedField]
    ) -> _Session | Rejected:
        record, text = night
        start = read_start(record.metadata, number, latest_ms)
        if isinstance(start, Rejected):
            return start
        end = read_end(record.metadata, number, latest_ms, start)
        if isinstance(end, Rejected):
            return end
        path = f"data[{number}].metadata.summary_id"
        summary_id = short_text(path, record.metadata.summary_id, dropped) or None
        readings = _checked(_read_numbers(record), number, limits, dropped)
        columns = _columns(readings)
        if is_whoop and columns["recovery_score"] is None:
            columns["recovery_score"] = _readiness(record, number, readiness, dropped)
        return _Session(start, end, summary_id, record.metadata.is_nap, columns, text)

    records = read_records(event, delivery, read)
    if not isinstance(records, Records):
        return records
    prefix, stamp = (user_id, records.source), event.stamp()
    sessions = _last_versions(records.parsed)
    days: dict[str, dict[str, _Columns]] = {}
    for session in sessions:
        days.setdefault(session.end.date().isoformat(), {})[session.part] = session.night
    updates = [
        RowUpdate(SLEEP_SESSIONS, (*prefix, utc_ms(session.start)), session.row, stamp)
        for session in sessions
    ]
    updates += [
        RowUpdate(DAILY_SUMMARY, (*prefix, day), {}, stamp, parts) for day, parts in days.items()
    ]
    return normalized(updates, records.rejected, records.dropped)


class _Session(NamedTuple):
    """One record."""

    start: datetime
    end: datetime
    summary_id: str | None
    is_nap: bool | None
    columns: _Columns
    text: str

    @property
    def part(self) -> str:
        """Return the id of its part of the day."""
        return SleepPart(unix_ms(self.start), unix_ms(self.end), self.summary_id or "").part

    @property
    def row(self) -> _Columns:
        """Return its columns in sleep_sessions."""
        return {
            "end_time": utc_ms(self.end),
            "is_nap": self.is_nap,
            "raw": self.text,
            "summary_id": self.summary_id,
            "utc_offset_minutes": offset_minutes(self.end),
        }

    @property
    def night(self) -> _Columns:
        """Return its columns of the day; a nap has none."""
        if self.is_nap:
            return {}
        return {
            **self.columns,
            "bed_time": self.start.isoformat(timespec="milliseconds"),
            "wake_up_time": self.end.isoformat(timespec="milliseconds"),
            "utc_offset_minutes": offset_minutes(self.end),
        }


def _last_versions(sessions: list[_Session]) -> list[_Session]:
    """Return one session for each start; of several the longest, whatever their order."""
    versions: dict[int, _Session] = {}
    for session in sessions:
        start = unix_ms(session.start)
        known = versions.get(start)
        if known is None or _size(session) > _size(known):
            versions[start] = session
    return list(versions.values())


def _size(session: _Session) -> tuple[datetime, str]:
    return session.end, session.text


def _read_numbers(record: Sleep) -> _Readings:
    """Return the numbers of one record in the order of `limits.SLEEP`."""
    durations = record.sleep_durations_data or _DURATIONS
    asleep = durations.asleep or _ASLEEP
    heart = (record.heart_rate_data or _HEART).summary or _HEART_SUMMARY
    respiration = record.respiration_data or _RESPIRATION
    scores = record.scores or _SCORES
    return (
        asleep.duration_asleep_state_seconds,
        asleep.duration_deep_sleep_state_seconds,
        asleep.duration_REM_sleep_state_seconds,
        asleep.duration_light_sleep_state_seconds,
        (durations.awake or _AWAKE).duration_awake_state_seconds,
        heart.resting_hr_bpm,
        heart.avg_hrv_rmssd,
        (respiration.oxygen_saturation_data or _OXYGEN).avg_saturation_percentage,
        (respiration.breaths_data or _BREATHS).avg_breaths_per_min,
        (record.temperature_data or _TEMPERATURE).delta,
        scores.recovery,
        scores.sleep,
    )


def _checked(
    readings: _Readings, number: int, limits: Limits, dropped: list[DroppedField]
) -> _Readings:
    """Return plausible readings: in their ranges, and stages that fit into the sleep."""
    readings = plausible(limits, readings, number, dropped)
    asleep, awake = readings[0], readings[4]
    if asleep is None:
        return readings
    result = list(readings)
    if asleep == 0 and any(readings[1:4]):
        # A maker that knows only stages leaves the total at 0.
        dropped.append(DroppedField(f"data[{number}].{limits[0].path}", NOT_MEASURED))
        result[0] = None
        return result
    most = asleep + (awake or 0)
    for index in range(1, 4):
        stage = result[index]
        if stage is not None and stage > most:
            dropped.append(DroppedField(f"data[{number}].{limits[index].path}", OUT_OF_RANGE))
            result[index] = None
    return result


def _columns(readings: _Readings) -> _Columns:
    """Return the columns of a day that a sleep sets."""
    asleep, deep, rem, light, awake = readings[:5]
    resting, variability, oxygen, breaths, temperature, recovery, score = readings[5:]
    slept = _time_asleep(asleep, deep, rem, light)
    total = None if slept is None else slept + (awake or 0)
    return {
        "sleep_minutes": minutes(slept),
        "deep_sleep_minutes": minutes(deep),
        "rem_sleep_minutes": minutes(rem),
        "light_sleep_minutes": minutes(light),
        "awake_minutes": minutes(awake),
        "deep_sleep_percent": _percent(deep, total),
        "rem_sleep_percent": _percent(rem, total),
        "light_sleep_percent": _percent(light, total),
        "awake_percent": _percent(awake, total),
        "resting_heart_rate": resting,
        "heart_rate_variability": variability,
        "spo2": oxygen,
        "respiratory_rate": breaths,
        "skin_temperature": temperature,
        "recovery_score": recovery,
        "sleep_score": score,
    }


def _time_asleep(asleep: float | None, *stages: float | None) -> float | None:
    """Return seconds asleep: as sent, else the sum of the known stages."""
    known = [stage for stage in stages if stage is not None]
    return sum(known) if asleep is None and known else asleep


def _readiness(
    record: Sleep, number: int, limit: Limit, dropped: list[DroppedField]
) -> float | None:
    """Return Whoop's readiness, which is its recovery; other makers use the word differently."""
    value = (record.readiness_data or _READINESS).readiness
    path = f"data[{number}].{limit.path}"
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        dropped.append(DroppedField(path, WRONG_TYPE))
        return None
    return in_range(limit, float(value), path, dropped)


def _percent(part: float | None, total: float | None) -> float | None:
    """Return a share in percent, rounded to 2 decimals; None if it is unknown."""
    return None if part is None or not total else round(100 * part / total, 2)
