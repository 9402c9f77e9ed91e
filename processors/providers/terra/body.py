"""Body deliveries: weight, body fat and blood pressure, one biomarkers_raw row per day and code.

Glucose streams are not stored: a sensor sends hundreds of values a day, which a row per day cannot
hold, and no aggregation has been defined.
"""

from collections.abc import Iterable, Iterator
from math import fsum
from typing import Final, NamedTuple

from headwater.processors.columns import RowUpdate
from headwater.processors.input_texts import read_date
from headwater.processors.providers.results import NormalizeResult, Rejected, Skipped, normalized
from headwater.processors.providers.terra import limits
from headwater.processors.providers.terra.limits import Limit, outside
from headwater.processors.providers.terra.records import Records, read_day, read_records, utc_ms
from headwater.schemas.providers.terra import (
    BloodPressure,
    Body,
    Delivery,
    Measurement,
    Measurements,
)
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import BIOMARKERS, Value

#: Reason of a delivery with a glucose stream and no stored measurement.
GLUCOSE_STREAM: Final = "glucose_stream"
#: Reason of a delivery without any stored measurement.
NO_MEASUREMENT: Final = "no_measurement"

# Defaults for missing parts of a record.
_MEASUREMENTS: Final = Measurements()
_BLOOD_PRESSURE: Final = BloodPressure()

_NOTHING: Final = (b"null", b"[]", b"{}")

#: Limits of measurements by code; the path of a limit is the field.
_MEASURED: Final = {"weight_kg": limits.WEIGHT, "body_fat_percent": limits.BODY_FAT}
_PRESSURES: Final = {"systolic_bp": limits.SYSTOLIC, "diastolic_bp": limits.DIASTOLIC}


class _Reading(NamedTuple):
    """The values of one record, all plausible.

    Attributes:
        latest: Values by code, with their time.
        samples: Samples by code.
        means: Means by code from a sender that sends no samples.
    """

    day: str
    latest: dict[str, tuple[str, float]]
    samples: dict[str, list[float]]
    means: dict[str, float]
    has_glucose: bool


def normalize_body(
    event: WebhookAdmitted, user_id: str, delivery: Delivery[Body]
) -> NormalizeResult:
    """Normalize a body delivery.

    The source is the maker with `_body`. Weight and body fat are the latest of the day, blood
    pressures the mean of the day's samples, or the sender's mean if there are no samples. Units
    are kg, percent and mmHg. Rejected records name the record and the field.
    """
    records = read_records(event, delivery, _read)
    if not isinstance(records, Records):
        return records
    days: dict[str, list[_Reading]] = {}
    for reading in records.parsed:
        days.setdefault(reading.day, []).append(reading)
    stamp, source = event.stamp(), f"{records.source}_body"
    updates = [
        RowUpdate(BIOMARKERS, (user_id, source, day, code), columns, stamp)
        for day, readings in days.items()
        for code, columns in _rows_of(readings)
    ]
    if updates or records.rejected:
        return normalized(updates, records.rejected)
    glucose = any(reading.has_glucose for reading in records.parsed)
    return Skipped(GLUCOSE_STREAM if glucose else NO_MEASUREMENT)


def _rows_of(readings: list[_Reading]) -> Iterator[tuple[str, dict[str, Value]]]:
    """Yield the rows of one day, as (code, columns)."""
    for code, limit in _MEASURED.items():
        values = [reading.latest[code] for reading in readings if code in reading.latest]
        if values:
            value = max(reversed(values), key=lambda pair: pair[0])[1]
            yield code, {"value": value, "unit": limit.unit}
    for code, limit in _PRESSURES.items():
        samples = [sample for reading in readings for sample in reading.samples[code]]
        means = [reading.means[code] for reading in readings if code in reading.means]
        if samples:
            mean = fsum(samples) / len(samples)
            yield code, {"value": mean, "unit": limit.unit, "samples": len(samples)}
        elif means:
            yield code, {"value": means[-1], "unit": limit.unit}


def _read(record: Body, number: int, latest_ms: int) -> _Reading | Rejected:
    day = read_day(record, number, latest_ms)
    if isinstance(day, Rejected):
        return day
    measurements = (record.measurements_data or _MEASUREMENTS).measurements or ()
    pressure = record.blood_pressure_data or _BLOOD_PRESSURE
    samples = pressure.blood_pressure_samples or ()
    glucose = record.glucose_data or {}
    means = (pressure.day_avg_systolic_bp, pressure.day_avg_diastolic_bp)
    path = f"data[{number}]"
    rejected = (
        _outside(_MEASURED.values(), measurements, f"{path}.measurements_data.measurements")
        or _outside(
            _PRESSURES.values(), samples, f"{path}.blood_pressure_data.blood_pressure_samples"
        )
        or outside(limits.SYSTOLIC, means[0], f"{path}.blood_pressure_data.day_avg_systolic_bp")
        or outside(limits.DIASTOLIC, means[1], f"{path}.blood_pressure_data.day_avg_diastolic_bp")
    )
    if rejected is not None:
        return rejected
    return _Reading(
        day,
        _latest(measurements),
        {
            code: [v for sample in samples if (v := getattr(sample, limit.path)) is not None]
            for code, limit in _PRESSURES.items()
        },
        {code: mean for code, mean in zip(_PRESSURES, means, strict=True) if mean is not None},
        has_glucose=any(bytes(stream) not in _NOTHING for stream in glucose.values()),
    )


def _outside(kinds: Iterable[Limit], samples: tuple[object, ...], path: str) -> Rejected | None:
    """Return the rejection of the first sample value outside its limit, or None."""
    for number, sample in enumerate(samples):
        for limit in kinds:
            value = getattr(sample, limit.path)
            rejected = outside(limit, value, f"{path}[{number}].{limit.path}")
            if rejected is not None:
                return rejected
    return None


def _latest(measurements: tuple[Measurement, ...]) -> dict[str, tuple[str, float]]:
    """Return the latest value per code, with its time in UTC; one without a time is the oldest."""
    latest: dict[str, tuple[str, float]] = {}
    for measurement in measurements:
        moment = read_date(measurement.measurement_time or "")
        at = "" if moment is None else utc_ms(moment)
        for code, limit in _MEASURED.items():
            value = getattr(measurement, limit.path)
            if value is not None and (code not in latest or latest[code][0] <= at):
                latest[code] = (at, value)
    return latest
