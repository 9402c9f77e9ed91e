"""Sleep deliveries: one sleep_sessions row per record, and columns of the day it ended on.

A nap is a session but not part of the day: its hours would overwrite those of the night.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from headwater.processors.columns import RowUpdate
from headwater.processors.providers.results import SLEEP_RANK, NormalizeResult, Rejected, normalized
from headwater.processors.providers.terra import limits
from headwater.processors.providers.terra.records import (
    Records,
    combine,
    minutes,
    read_end,
    read_records,
    read_start,
    utc_ms,
)
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
from headwater.schemas.records import Stamp, WebhookAdmitted
from headwater.schemas.tables import DAILY_SUMMARY, SLEEP_SESSIONS, Table, Value

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
_Readings: TypeAlias = tuple[float | None, ...]


def normalize_sleep(
    event: WebhookAdmitted, user_id: str, delivery: Delivery[Night]
) -> NormalizeResult:
    """Normalize a sleep delivery.

    Sessions are keyed by start_time in UTC to the millisecond, such as 2026-06-30T22:12:00.000Z;
    days by the date of end_time in the record's own offset. Durations are sent in seconds and
    stored in minutes; shares are in percent. Rejected records name the record and the field.
    """
    records = read_records(event, delivery, _read)
    if not isinstance(records, Records):
        return records
    sessions: dict[str, _Columns] = {}
    days: dict[str, _Columns] = {}
    hearts: dict[str, _Columns] = {}
    for parsed in records.parsed:
        nap = parsed.nap
        session: _Columns = {"end_time": utc_ms(parsed.end), "is_nap": nap, "raw": parsed.text}
        combine(sessions, utc_ms(parsed.start), session)
        if not nap:
            day = parsed.end.date().isoformat()
            columns = _columns(parsed.readings, parsed.start, parsed.end)
            columns["recovery_score"] = _recovery(parsed.readings, records.source)
            combine(days, day, columns)
            heart = _heart_columns(parsed.readings)
            if heart:
                combine(hearts, day, heart)
    prefix = (user_id, records.source)
    plain, preferred = event.stamp(), event.stamp(SLEEP_RANK)
    updates = (
        *_updates(SLEEP_SESSIONS, prefix, sessions, plain),
        *_updates(DAILY_SUMMARY, prefix, days, plain),
        *_updates(DAILY_SUMMARY, prefix, hearts, preferred),
    )
    return normalized(updates, records.rejected)


def _updates(
    table: Table, prefix: tuple[str, str], rows: dict[str, _Columns], stamp: Stamp
) -> Iterator[RowUpdate]:
    return (RowUpdate(table, (*prefix, last), columns, stamp) for last, columns in rows.items())


class _Session(NamedTuple):
    """The values of one record, all plausible."""

    start: datetime
    end: datetime
    nap: bool | None
    readings: _Readings
    text: str


def _read(night: Night, number: int, latest_ms: int) -> _Session | Rejected:
    record, text = night
    start = read_start(record.metadata, number, latest_ms)
    if isinstance(start, Rejected):
        return start
    end = read_end(record.metadata, number, latest_ms, start)
    if isinstance(end, Rejected):
        return end
    readings = _read_numbers(record, number)
    if isinstance(readings, Rejected):
        return readings
    return _Session(start, end, record.metadata.is_nap, readings, text)


def _read_numbers(record: Sleep, number: int) -> _Readings | Rejected:
    """Return the numbers of one record in the order of `limits.SLEEP`, all plausible."""
    durations = record.sleep_durations_data or _DURATIONS
    asleep = durations.asleep or _ASLEEP
    heart = (record.heart_rate_data or _HEART).summary or _HEART_SUMMARY
    respiration = record.respiration_data or _RESPIRATION
    scores = record.scores or _SCORES
    readings = (
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
        (record.readiness_data or _READINESS).readiness,
        scores.sleep,
    )
    return (
        limits.first_outside(limits.SLEEP, readings, number)
        or _stage_too_long(readings, number)
        or readings
    )


def _total(readings: _Readings) -> float | None:
    """Return seconds asleep and awake together; None unless both are known."""
    asleep, awake = readings[0], readings[4]
    return None if asleep is None or awake is None else asleep + awake


def _stage_too_long(readings: _Readings, number: int) -> Rejected | None:
    """Reject a stage that outlasts the sleep, as its share would be above 100 percent."""
    total = _total(readings)
    if not total:
        return None
    for limit, stage in zip(limits.SLEEP[1:4], readings[1:4], strict=True):
        if stage is not None and stage > total:
            return Rejected(
                "out_of_range",
                f"data[{number}].{limit.path}: expected at most {total:,} s, asleep and awake "
                f"together, found {stage!r}",
            )
    return None


def _columns(readings: _Readings, start: datetime, end: datetime) -> _Columns:
    """Return the columns of a day that any delivery may set: rank 0."""
    asleep, deep, rem, light, awake = readings[:5]
    oxygen, breaths, temperature = readings[7:10]
    score = readings[12]
    total = _total(readings)
    return {
        "sleep_minutes": minutes(_time_asleep(asleep, deep, rem, light)),
        "bed_time": start.isoformat(timespec="milliseconds"),
        "wake_up_time": end.isoformat(timespec="milliseconds"),
        "deep_sleep_minutes": minutes(deep),
        "rem_sleep_minutes": minutes(rem),
        "light_sleep_minutes": minutes(light),
        "awake_minutes": minutes(awake),
        "deep_sleep_percent": _percent(deep, total),
        "rem_sleep_percent": _percent(rem, total),
        "light_sleep_percent": _percent(light, total),
        "awake_percent": _percent(awake, total),
        "spo2": oxygen,
        "respiratory_rate": breaths,
        "skin_temperature": temperature,
        "sleep_score": score,
    }


def _time_asleep(asleep: float | None, *stages: float | None) -> float | None:
    """Return seconds asleep: as sent, else the sum of the known stages."""
    known = [stage for stage in stages if stage is not None]
    return sum(known) if asleep is None and known else asleep


def _recovery(readings: _Readings, source: str) -> float | None:
    """Return the recovery score; Whoop calls it readiness, which other makers use differently."""
    recovery, readiness = readings[10:12]
    return readiness if recovery is None and source == _WHOOP else recovery


def _heart_columns(readings: _Readings) -> _Columns:
    """Return the columns of a day that are preferably measured asleep; empty without a pulse."""
    resting, variability = readings[5:7]
    if resting is None and variability is None:
        return {}
    return {"resting_heart_rate": resting, "heart_rate_variability": variability}


def _percent(part: float | None, total: float | None) -> float | None:
    """Return a share in percent, rounded to 2 decimals; None if it is unknown."""
    return None if part is None or not total else round(100 * part / total, 2)
