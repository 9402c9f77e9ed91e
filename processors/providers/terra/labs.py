"""Lab reports: biomarkers_raw rows, one a result, and what became of the upload.

A report names nobody but Terra's id of the upload; whose that is, and what our id of it is, was
looked up before (`event.our_id`). Results are taken one by one, each with its own reason if it is
not.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from typing import Final, NamedTuple

from headwater.processors.columns import RowUpdate
from headwater.processors.providers.ranks import REPORT_RANK
from headwater.processors.providers.results import (
    Normalized,
    NormalizeResult,
    Rejected,
    Skipped,
    normalized,
)
from headwater.processors.providers.terra.lab_codes import code_of, status_of
from headwater.processors.providers.terra.parts import latest_of, read_day_of
from headwater.processors.texts import storable, text_problem
from headwater.schemas.providers.terra import Unreadable
from headwater.schemas.providers.terra_labs import (
    Interpretation,
    LabDelivery,
    LabFailure,
    Marker,
    Measured,
    Printed,
    Range,
    Reading,
    Report,
    Result,
)
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import BIOMARKERS, LAB_UPLOADS, Value

SOURCE: Final = "terra_lab"
#: Reason of a failed report that names no upload.
NO_UPLOAD_NAMED: Final = "no_upload_named"

#: Reports on paper may be old, older than any wearable.
_EARLIEST: Final = datetime(1900, 1, 1, tzinfo=UTC)
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MAX_TEXT_CHARS: Final = 4_096

# What a result that leaves a part out is read as.
_PRINTED: Final = Printed()
_MEASURED: Final = Measured()
_INTERPRETATION: Final = Interpretation()
_RANGE: Final = Range()


class _Found(NamedTuple):
    """A result that can be taken, with its place in the delivery."""

    key: tuple[str, str]
    columns: dict[str, Value]
    place: str


def normalize_lab_report(
    event: WebhookAdmitted, user_id: str, delivery: LabDelivery
) -> NormalizeResult:
    """Normalizes a lab report of either shape.

    Shape:  rows keyed by day and code; the upload is `parsed`. Of several results of one day and
            code the last counts, and the others are rejected unless they say the same.
    Units:  as sent.
    Errors: Rejected results name the result and the field.
    """
    latest_ms = latest_of(event)
    rejected: list[Rejected] = []
    rows: dict[tuple[str, str], _Found] = {}
    for found in _results_of(delivery, latest_ms):
        if isinstance(found, Rejected):
            rejected.append(found)
            continue
        held = rows.get(found.key)
        if held is not None and held.columns != found.columns:
            rejected.append(_repeated(held, found))
        rows[found.key] = found
    stamp = event.stamp()
    updates = [
        RowUpdate(
            BIOMARKERS,
            (user_id, SOURCE, *found.key),
            {**found.columns, "upload_id": event.our_id},
            stamp,
        )
        for found in rows.values()
    ]
    if event.our_id is not None and (updates or not rejected):
        updates.append(_upload(event, event.our_id, "parsed"))
    if not updates and not rejected:
        return Skipped("empty_data")
    return normalized(updates, rejected)


def why_skipped(failure: LabFailure) -> str | None:
    """Why a failed report is skipped: it does not say which upload has failed."""
    return None if failure.upload_id else NO_UPLOAD_NAMED


def normalize_lab_failure(
    event: WebhookAdmitted, _user_id: str, failure: LabFailure
) -> NormalizeResult:
    """Normalizes `lab_report.failed`: the upload is failed:<Terra's code>."""
    if event.our_id is None:
        return Skipped(NO_UPLOAD_NAMED)
    code = storable(failure.data.error.code or "unknown")
    return Normalized((_upload(event, event.our_id, f"failed:{code}"),))


def _upload(event: WebhookAdmitted, upload_id: str, status: str) -> RowUpdate:
    """What became of an upload: it outranks what was said of it before it was read."""
    return RowUpdate(LAB_UPLOADS, (upload_id,), {"terra_status": status}, event.stamp(REPORT_RANK))


def _repeated(held: _Found, found: _Found) -> Rejected:
    day, code = held.key
    return Rejected(
        "repeated_result",
        f"{held.place}: expected one result of {code} on {day}, found another at {found.place}, "
        "which counts",
    )


def _results_of(delivery: LabDelivery, latest_ms: int) -> Iterator[_Found | Rejected]:
    for number, report in enumerate(delivery.reports):
        place = f"data[{number}]" if len(delivery.reports) > 1 else "data"
        if isinstance(report, Unreadable):
            yield Rejected("malformed_record", f"{place}: {report.detail}")
            continue
        for at, result in enumerate(report.results):
            where = f"{place}.results[{at}]"
            if isinstance(result, Unreadable):
                yield Rejected("malformed_record", f"{where}: {result.detail}")
            else:
                yield _read(result, report, where, latest_ms)


def _read(result: Result, report: Report, place: str, latest_ms: int) -> _Found | Rejected:
    """One result, or why it cannot be taken."""
    day = _day_of(result, report, place, latest_ms)
    if isinstance(day, Rejected):
        return day
    code = _code_of(result)
    if not code:
        return Rejected(
            "missing_code", f"{place}: expected a biomarker, a LOINC code or a name, found none"
        )
    columns = _columns(result)
    if columns["value"] is None and columns["value_text"] is None:
        return Rejected("missing_value", f"{place}: expected a value, found none")
    fault = text_problem(f"{place}, its code", code)
    for name, value in columns.items():
        if fault is None and isinstance(value, str):
            fault = text_problem(f"{place}, its {name}", value, _MAX_TEXT_CHARS)
    if fault is not None:
        return Rejected("malformed_text", fault)
    return _Found((day, code), columns, place)


def _day_of(result: Result, report: Report, place: str, latest_ms: int) -> str | Rejected:
    """When the sample was taken; else the day of the report."""
    printed = result.source or _PRINTED
    text = result.collection_date or printed.collection_date or report.collection_date
    field = "report_date" if text is None else "collection_date"
    return read_day_of(f"{place}, its {field}", text or report.report_date, _EARLIEST, latest_ms)


def _code_of(result: Result) -> str | None:
    marker = result.biomarker
    if isinstance(marker, Marker):
        return code_of(marker.key, marker.loinc_code, _name_of(result))
    return code_of(marker, None, _name_of(result))


def _name_of(result: Result) -> str | None:
    """What the report calls it; what Terra does, where the report is not quoted."""
    marker = result.biomarker
    shown = marker.display_name if isinstance(marker, Marker) else None
    return (result.source or _PRINTED).name or result.name or shown


def _columns(result: Result) -> dict[str, Value]:
    """The columns of a result, from wherever its shape has them."""
    printed, measured = result.source or _PRINTED, result.measurement or _MEASURED
    interpretation = result.interpretation or _INTERPRETATION
    raw = next(
        (each for each in (measured.numeric, result.value, printed.value) if each is not None), None
    )
    value = _number(raw)
    classification = result.classification or interpretation.flag
    limits = (
        result.reference_range
        or printed.reference_range
        or interpretation.reference_range
        or _RANGE
    )
    unit = result.unit or (measured.units if measured.numeric is not None else None)
    return {
        "value": value,
        "value_text": _text(raw) if value is None else None,
        "unit": _text(unit or printed.units or measured.units),
        "status": status_of(classification),
        "classification": _text(classification),
        "reference_low": _number(limits.lower),
        "reference_high": _number(limits.upper),
        "name": _text(_name_of(result)),
    }


def _number(reading: Reading) -> float | None:
    """A reading as a number; None if it is none, such as <0.5."""
    if isinstance(reading, str):
        text = reading.strip()
        reading = float(text) if _NUMBER.fullmatch(text) else None
    return reading if reading is not None and isfinite(reading) else None


def _text(reading: Reading) -> str | None:
    """A reading as the lab wrote it; None if it wrote nothing."""
    return None if reading is None or not str(reading).strip() else storable(str(reading))
