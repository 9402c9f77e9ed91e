"""Body deliveries: weight, body fat and blood pressure, one biomarkers_raw row per day and code.

A measurement belongs to the day of its own time, else to that of its record. Weight and body fat
are the latest of the day: the time of the measurement is the rank of the row. Blood pressures are
the mean of the day: every sample is a part of the row.

Glucose streams are not stored: a sensor sends hundreds of values a day, which a row per day cannot
hold, and no aggregation has been defined.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from headwater.processors.columns import RowUpdate
from headwater.processors.input_texts import read_date, unix_ms
from headwater.processors.providers.results import (
    OUT_OF_RANGE,
    WRONG_TYPE,
    DroppedField,
    NormalizeResult,
    Rejected,
    Skipped,
    normalized,
)
from headwater.processors.providers.terra import limits
from headwater.processors.providers.terra.limits import Limits, in_range
from headwater.processors.providers.terra.records import (
    EARLIEST,
    Day,
    Records,
    nothing_left,
    read_day,
    read_records,
)
from headwater.processors.row_parts import SENT_MEAN
from headwater.schemas.providers.terra import BloodPressure, Body, Delivery, Measurements
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import BIOMARKERS, Value

#: Reason of a delivery with a glucose stream and no stored measurement.
GLUCOSE_STREAM: Final = "glucose_stream"
#: Reason of a delivery without any stored measurement.
NO_MEASUREMENT: Final = "no_measurement"

#: Ranks of values without a time of their own; those with one have their Unix milliseconds.
_SENT_MEAN_RANK: Final = 0
_UNTIMED_RANK: Final = 1

# Defaults for missing parts of a record.
_MEASUREMENTS: Final = Measurements()
_BLOOD_PRESSURE: Final = BloodPressure()

_EARLIEST_MS: Final = unix_ms(EARLIEST)
_NOTHING: Final = (b"null", b"[]", b"{}")

#: Limits of a body's measurements, in the order in which they are used.
BODY: Final = (limits.WEIGHT, limits.BODY_FAT, limits.SYSTOLIC, limits.DIASTOLIC)
_CODES: Final = ("weight_kg", "body_fat_percent", "systolic_bp", "diastolic_bp")
_LATEST: Final = _CODES[:2]


class _Value(NamedTuple):
    """A measured value: its code, the day, and its time in Unix milliseconds if it has one.

    Attributes:
        is_mean: Whether it is the sender's own mean of the day.
    """

    code: str
    day: str
    at_ms: int | None
    value: float
    is_mean: bool = False


class _Sample(NamedTuple):
    """Values of one moment: their limits, fields and numbers, below a path of the record."""

    path: str
    time_field: str
    time: str | None
    values: tuple[tuple[int, str, float | None], ...]
    is_mean: bool = False


class _Reading(NamedTuple):
    """The plausible values of one record."""

    values: list[_Value]
    has_glucose: bool


def normalize_body(
    event: WebhookAdmitted, user_id: str, delivery: Delivery[Body], limits: Limits = BODY
) -> NormalizeResult:
    """Normalize a body delivery.

    The source is the maker with `_body`. Units are kg, percent and mmHg. Rejected records name the
    record and the field.
    """

    def read(
        record: Body, number: int, latest_ms: int, dropped: list[DroppedField]
    ) -> _Reading | Rejected:
        return _read(record, number, latest_ms, dropped, limits)

    records = read_records(event, delivery, read)
    if not isinstance(records, Records):
        return records
    prefix = (user_id, f"{records.source}_body")
    units = dict(zip(_CODES, (limit.unit for limit in limits), strict=True))
    of_row: dict[tuple[str, str], list[_Value]] = defaultdict(list)
    for reading in records.parsed:
        for value in reading.values:
            of_row[value.day, value.code].append(value)
    updates = [
        _update(event, (*prefix, day, code), values, units[code])
        for (day, code), values in of_row.items()
    ]
    if updates or records.rejected:
        return normalized(updates, records.rejected, records.dropped)
    glucose = any(reading.has_glucose for reading in records.parsed)
    reason = GLUCOSE_STREAM if glucose else NO_MEASUREMENT
    return Skipped(reason, dropped=tuple(records.dropped))


def _update(
    event: WebhookAdmitted, key: tuple[str, str, str, str], values: list[_Value], unit: str
) -> RowUpdate:
    if key[3] in _LATEST:
        latest = max(values, key=lambda value: (_rank(value), value.value))
        columns: dict[str, Value] = {"value": latest.value, "unit": unit}
        return RowUpdate(BIOMARKERS, key, columns, event.stamp(_rank(latest)))
    parts: dict[str, dict[str, Value]] = {
        name: {"value": value, "unit": unit} for name, value in _samples(values)
    }
    return RowUpdate(BIOMARKERS, key, {}, event.stamp(), parts)


def _rank(value: _Value) -> int:
    if value.is_mean:
        return _SENT_MEAN_RANK
    return _UNTIMED_RANK if value.at_ms is None else value.at_ms


def _samples(values: list[_Value]) -> Iterator[tuple[str, float]]:
    """Yield the samples of a row by the ids of their parts.

    A sample with a time is one, however often it is sent. Without a time, equal values of one
    delivery are several samples, and a later delivery with the same values repeats them.
    """
    untimed: Counter[float] = Counter()
    for value in values:
        if value.is_mean:
            yield SENT_MEAN, value.value
        elif value.at_ms is not None:
            yield str(value.at_ms), value.value
        else:
            untimed[value.value] += 1
            yield f"{value.value}#{untimed[value.value]}", value.value


def _read(
    record: Body, number: int, latest_ms: int, dropped: list[DroppedField], limits: Limits
) -> _Reading | Rejected:
    """Return the plausible values of a record; rejected if it had some and none is left."""
    day = read_day(record, number, latest_ms)
    values: list[_Value] = []
    for sample in _samples_of(record):
        path = f"data[{number}].{sample.path}"
        moment = _moment(f"{path}.{sample.time_field}", sample.time, latest_ms, dropped)
        for index, field, number_sent in sample.values:
            value = in_range(limits[index], number_sent, f"{path}.{field}", dropped)
            if value is None:
                continue
            if moment is not None:
                values.append(_Value(_CODES[index], moment[0], moment[1], value))
            elif isinstance(day, Day):
                values.append(_Value(_CODES[index], day.text, None, value, sample.is_mean))
            else:
                dropped.append(DroppedField(f"{path}.{field}", OUT_OF_RANGE))
    if not values:
        rejected = day if isinstance(day, Rejected) else nothing_left(number, dropped)
        if rejected is not None:
            return rejected
    glucose = (record.glucose_data or {}).values()
    return _Reading(values, any(bytes(stream) not in _NOTHING for stream in glucose))


def _samples_of(record: Body) -> Iterator[_Sample]:
    """Yield what was measured, and the sender's own means of the day."""
    measured = record.measurements_data or _MEASUREMENTS
    path = "measurements_data"
    for index, one in enumerate(measured.measurements or ()):
        weighed = (
            (0, "weight_kg", one.weight_kg),
            (1, "bodyfat_percentage", one.bodyfat_percentage),
        )
        item = f"{path}.measurements[{index}]"
        yield _Sample(item, "measurement_time", one.measurement_time, weighed)
    means = (
        (0, "day_avg_weight_kg", measured.day_avg_weight_kg),
        (1, "day_avg_bodyfat_percentage", measured.day_avg_bodyfat_percentage),
    )
    yield _Sample(path, "", None, means, is_mean=True)
    pressure = record.blood_pressure_data or _BLOOD_PRESSURE
    path = "blood_pressure_data"
    for index, sample in enumerate(pressure.blood_pressure_samples or ()):
        pressed = ((2, "systolic_bp", sample.systolic_bp), (3, "diastolic_bp", sample.diastolic_bp))
        item = f"{path}.blood_pressure_samples[{index}]"
        yield _Sample(item, "timestamp", sample.timestamp, pressed)
    means = (
        (2, "day_avg_systolic_bp", pressure.day_avg_systolic_bp),
        (3, "day_avg_diastolic_bp", pressure.day_avg_diastolic_bp),
    )
    yield _Sample(path, "", None, means, is_mean=True)


def _moment(
    path: str, text: str | None, latest_ms: int, dropped: list[DroppedField]
) -> tuple[str, int] | None:
    """Return the day of a time, in its own offset, and its Unix milliseconds; None if unknown."""
    if text is None:
        return None
    moment = read_date(text)
    if moment is None:
        dropped.append(DroppedField(path, WRONG_TYPE))
        return None
    at_ms = unix_ms(moment)
    if not _EARLIEST_MS <= at_ms <= latest_ms:
        dropped.append(DroppedField(path, OUT_OF_RANGE))
        return None
    return moment.date().isoformat(), at_ms
