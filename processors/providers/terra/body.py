"""Body deliveries: weight, body fat and blood pressure, a biomarkers_raw row a day each.

Streams of glucose are not stored: a sensor sends hundreds of values a day, which a day's row cannot
hold and nobody has said how to sum up.
"""

from collections.abc import Iterable, Iterator
from math import fsum
from typing import Final, NamedTuple

from headwater.processors.columns import RowUpdate
from headwater.processors.dates import read_date
from headwater.processors.providers.results import (
    NormalizeResult,
    Rejected,
    Skipped,
    normalized,
)
from headwater.processors.providers.terra import limits
from headwater.processors.providers.terra.limits import Limit, outside
from headwater.processors.providers.terra.parts import Records, read_day, read_records, utc_ms
from headwater.schemas.providers.terra import (
    BloodPressure,
    Body,
    Delivery,
    Measurement,
    Measurements,
)
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import BIOMARKERS, Value

#: Reason of a delivery that holds a stream of glucose, and nothing else that is stored.
GLUCOSE_STREAM: Final = "glucose_stream"
#: Reason of a delivery that holds nothing that is stored.
NO_MEASUREMENT: Final = "no_measurement"

# What a record that leaves a part out is read as.
_MEASUREMENTS: Final = Measurements()
_BLOOD_PRESSURE: Final = BloodPressure()

_NOTHING: Final = (b"null", b"[]", b"{}")

#: Each kind of measurement by its code: the path of its limit is its field.
_MEASURED: Final = {"weight_kg": limits.WEIGHT, "body_fat_percent": limits.BODY_FAT}
_PRESSURES: Final = {"systolic_bp": limits.SYSTOLIC, "diastolic_bp": limits.DIASTOLIC}


class _Found(NamedTuple):
    """What was read of one record, all of it plausible.

    Shape:  latest are values by code, with the moment of each; samples by code; means by code are
            those of the sender, who sends no samples.
    """

    day: str
    latest: dict[str, tuple[str, float]]
    samples: dict[str, list[float]]
    means: dict[str, float]
    has_glucose: bool


def normalize_body(
    event: WebhookAdmitted, user_id: str, delivery: Delivery[Body]
) -> NormalizeResult:
    """Normalizes a body delivery.

    Shape:  source is the maker with `_body`. A weight and a share of fat are the latest of the day,
            blood pressures the mean of the day's samples, or the sender's if it sends none.
    Units:  kg, percent, mmHg.
    Errors: Rejected records name the record and the field.
    """
    records = read_records(event, delivery, _read)
    if not isinstance(records, Records):
        return records
    days: dict[str, list[_Found]] = {}
    for found in records.found:
        days.setdefault(found.day, []).append(found)
    stamp, source = event.stamp(), f"{records.source}_body"
    updates = [
        RowUpdate(BIOMARKERS, (user_id, source, day, code), columns, stamp)
        for day, parts in days.items()
        for code, columns in _rows_of(parts)
    ]
    if updates or records.rejected:
        return normalized(updates, records.rejected)
    glucose = any(found.has_glucose for found in records.found)
    return Skipped(GLUCOSE_STREAM if glucose else NO_MEASUREMENT)


def _rows_of(parts: list[_Found]) -> Iterator[tuple[str, dict[str, Value]]]:
    """The rows of one day, by code."""
    for code, limit in _MEASURED.items():
        held = [found.latest[code] for found in parts if code in found.latest]
        if held:
            value = max(reversed(held), key=lambda each: each[0])[1]
            yield code, {"value": value, "unit": limit.unit}
    for code, limit in _PRESSURES.items():
        samples = [sample for found in parts for sample in found.samples[code]]
        means = [found.means[code] for found in parts if code in found.means]
        if samples:
            mean = fsum(samples) / len(samples)
            yield code, {"value": mean, "unit": limit.unit, "samples": len(samples)}
        elif means:
            yield code, {"value": means[-1], "unit": limit.unit}


def _read(record: Body, number: int, latest_ms: int) -> _Found | Rejected:
    day = read_day(record, number, latest_ms)
    if isinstance(day, Rejected):
        return day
    measurements = (record.measurements_data or _MEASUREMENTS).measurements or ()
    pressure = record.blood_pressure_data or _BLOOD_PRESSURE
    samples = pressure.blood_pressure_samples or ()
    glucose = record.glucose_data or {}
    means = (pressure.day_avg_systolic_bp, pressure.day_avg_diastolic_bp)
    place = f"data[{number}]"
    fault = (
        _outside(_MEASURED.values(), measurements, f"{place}.measurements_data.measurements")
        or _outside(
            _PRESSURES.values(), samples, f"{place}.blood_pressure_data.blood_pressure_samples"
        )
        or outside(limits.SYSTOLIC, means[0], f"{place}.blood_pressure_data.day_avg_systolic_bp")
        or outside(limits.DIASTOLIC, means[1], f"{place}.blood_pressure_data.day_avg_diastolic_bp")
    )
    if fault is not None:
        return fault
    return _Found(
        day,
        _latest(measurements),
        {
            code: [v for each in samples if (v := getattr(each, limit.path)) is not None]
            for code, limit in _PRESSURES.items()
        },
        {code: mean for code, mean in zip(_PRESSURES, means, strict=True) if mean is not None},
        has_glucose=any(bytes(each) not in _NOTHING for each in glucose.values()),
    )


def _outside(kinds: Iterable[Limit], samples: tuple[object, ...], place: str) -> Rejected | None:
    """The first value of some samples that is outside its limit."""
    for number, sample in enumerate(samples):
        for limit in kinds:
            found = outside(limit, getattr(sample, limit.path), f"{place}[{number}].{limit.path}")
            if found is not None:
                return found
    return None


def _latest(measurements: tuple[Measurement, ...]) -> dict[str, tuple[str, float]]:
    """The latest of each kind, with its moment in UTC; without one it is before all others."""
    found: dict[str, tuple[str, float]] = {}
    for measurement in measurements:
        moment = read_date(measurement.measurement_time or "")
        at = "" if moment is None else utc_ms(moment)
        for code, limit in _MEASURED.items():
            value = getattr(measurement, limit.path)
            if value is not None and (code not in found or found[code][0] <= at):
                found[code] = (at, value)
    return found
