"""Lab reports: one biomarkers_raw row per result, and the status of the upload.

A report contains only Terra's id of the upload; its user and Headwater's id of the upload were
looked up before (`event.our_id`). Results are accepted or rejected one by one, with a reason; an
optional field that cannot be read is dropped and named.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from typing import Final, NamedTuple

from headwater.processors.columns import RowUpdate
from headwater.processors.input_texts import storable, text_problem
from headwater.processors.providers.results import (
    OUT_OF_RANGE,
    WRONG_TYPE,
    DroppedField,
    Normalized,
    NormalizeResult,
    Rejected,
    Skipped,
    normalized,
)
from headwater.processors.providers.terra.lab_codes import code_of, status_of, unit_in
from headwater.processors.providers.terra.records import latest_of, read_day_of, short_text
from headwater.processors.uploads import REPORT_RANK, failure_part
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
from headwater.schemas.tables import BIOMARKERS, LAB_UPLOADS, USERS, Value

SOURCE: Final = "terra_lab"
#: Reason of a failed report that names no upload, and no user with one that waits.
NO_UPLOAD_NAMED: Final = "no_upload_named"

#: Reports on paper may be older than any wearable.
_EARLIEST: Final = datetime(1900, 1, 1, tzinfo=UTC)
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
#: A comma followed by three digits may separate thousands, or be a decimal comma.
_GROUPED: Final = re.compile(r"[+-]?\d{1,3},\d{3}", re.ASCII)
_DECIMAL_COMMA: Final = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_MAX_TEXT_CHARS: Final = 4_096

# Defaults for missing parts of a result.
_PRINTED: Final = Printed()
_MEASURED: Final = Measured()
_INTERPRETATION: Final = Interpretation()
_RANGE: Final = Range()


class _LabResult(NamedTuple):
    """An accepted result, with its path in the delivery."""

    key: tuple[str, str]
    columns: dict[str, Value]
    path: str


def normalize_lab_report(
    event: WebhookAdmitted, user_id: str, delivery: LabDelivery
) -> NormalizeResult:
    """Normalize a lab report of either structure.

    Rows are keyed by day and code, with units as sent; the upload is `parsed`. Of several results
    of one day and code one counts (`_preference`), and the others are rejected unless they are
    equal. Rejected results name the result and the field.
    """
    latest_ms = latest_of(event)
    dropped = [DroppedField(path, WRONG_TYPE) for path in delivery.wrong]
    rejected: list[Rejected] = []
    rows: dict[tuple[str, str], _LabResult] = {}
    for result in _results_of(delivery, latest_ms, dropped):
        if isinstance(result, Rejected):
            rejected.append(result)
            continue
        kept = result
        earlier = rows.get(result.key)
        if earlier is not None and earlier.columns != result.columns:
            kept, other = sorted((result, earlier), key=_preference)
            rejected.append(_repeated(kept, other))
        rows[result.key] = kept
    stamp = event.stamp()
    updates = [
        RowUpdate(
            BIOMARKERS,
            (user_id, SOURCE, *result.key),
            {**result.columns, "upload_id": event.our_id},
            stamp,
        )
        for result in rows.values()
    ]
    if event.our_id is not None and (updates or not rejected):
        updates.append(_upload(event, event.our_id, "parsed"))
    if not updates and not rejected:
        return Skipped("empty_data")
    return normalized(updates, rejected, dropped)


def why_skipped(failure: LabFailure) -> str | None:
    """Return why a failed report is skipped: it names neither an upload nor a user."""
    return None if failure.upload_id or failure.data.reference_id else NO_UPLOAD_NAMED


def normalize_lab_failure(
    event: WebhookAdmitted, user_id: str, failure: LabFailure
) -> NormalizeResult:
    """Normalize `lab_report.failed`: the upload's status is failed:<Terra's code>.

    Which upload a report means that names only its user follows from all uploads and failures of
    the user and not from one delivery (`processors.uploads`).
    """
    status = f"failed:{storable(failure.data.error.code or 'unknown')}"
    if event.our_id is not None:
        return Normalized((_upload(event, event.our_id, status),))
    if event.subject:
        return Skipped(NO_UPLOAD_NAMED)
    parts: dict[str, dict[str, Value]] = {failure_part(status, event.event_id): {}}
    return Normalized((RowUpdate(USERS, (user_id,), {}, event.stamp(REPORT_RANK), parts),))


def _upload(event: WebhookAdmitted, upload_id: str, status: str) -> RowUpdate:
    """Return the update of an upload's status, which outranks those before the report was read."""
    return RowUpdate(LAB_UPLOADS, (upload_id,), {"terra_status": status}, event.stamp(REPORT_RANK))


def _preference(result: _LabResult) -> tuple[bool, bool, str]:
    """Return what orders results of one day and code, the preferred one first.

    A number is preferred to a text. Of several units, as of a share and a count of one kind of
    cells, the first one by the alphabet counts; so reports that list them in another order have the
    same unit, and the values of different days can be compared. Without this the last one counts.
    """
    unit = result.columns["unit"]
    return result.columns["value"] is None, unit is None, str(unit or "").casefold()


def _repeated(kept: _LabResult, other: _LabResult) -> Rejected:
    day, code = kept.key
    return Rejected(
        "repeated_result",
        f"{other.path}: expected one result of {code} on {day}, found another at {kept.path}, "
        "which counts",
    )


def _results_of(
    delivery: LabDelivery, latest_ms: int, dropped: list[DroppedField]
) -> Iterator[_LabResult | Rejected]:
    for number, report in enumerate(delivery.reports):
        path = f"data[{number}]" if len(delivery.reports) > 1 else "data"
        if isinstance(report, Unreadable):
            yield Rejected("malformed_record", f"{path}: {report.detail}")
            continue
        for index, result in enumerate(report.results):
            result_path = f"{path}.results[{index}]"
            if isinstance(result, Unreadable):
                yield Rejected("malformed_record", f"{result_path}: {result.detail}")
            else:
                yield _read(result, report, (result_path, index), latest_ms, dropped)


def _read(
    result: Result,
    report: Report,
    position: tuple[str, int],
    latest_ms: int,
    dropped: list[DroppedField],
) -> _LabResult | Rejected:
    """Parse one result, or return why it is rejected.

    Args:
        result: The result.
        report: Its report.
        position: Its path, and its number in the report.
        latest_ms: The latest allowed time, in Unix milliseconds.
        dropped: Receives values that are dropped.
    """
    path, number = position
    own_path = f"{report.path}.results[{number}]"
    day = _day_of(result, report, (path, own_path), latest_ms, dropped)
    if isinstance(day, Rejected):
        return day
    code = _code_of(result)
    if not code:
        return Rejected(
            "missing_code", f"{path}: expected a biomarker, a LOINC code or a name, found none"
        )
    problem = text_problem(f"{path}, its code", code)
    columns = _columns(result, report.locale)
    for name, value in columns.items():
        if isinstance(value, str):
            field = f"{own_path}.{name}"
            columns[name] = short_text(field, value, dropped, _MAX_TEXT_CHARS)
    if columns["value"] is None and columns["value_text"] is None:
        return Rejected("missing_value", f"{path}: expected a value, found none")
    if problem is not None:
        return Rejected("malformed_text", problem)
    return _LabResult((day, code), columns, path)


def _day_of(
    result: Result,
    report: Report,
    paths: tuple[str, str],
    latest_ms: int,
    dropped: list[DroppedField],
) -> str | Rejected:
    """Return when the sample was taken, else the day of the report: the first readable date."""
    printed = result.source or _PRINTED
    path, own_path = paths
    fields = [
        (f"{own_path}.collection_date", "collection_date", result.collection_date),
        (f"{own_path}.source.collection_date", "collection_date", printed.collection_date),
        (f"{report.path}.collection_date", "collection_date", report.collection_date),
        (f"{report.path}.report_date", "report_date", report.report_date),
    ]
    sent = [field for field in fields if field[2] is not None] or fields[-1:]
    unreadable: list[DroppedField] = []
    first: Rejected | None = None
    for field, name, text in sent:
        day = read_day_of(f"{path}, its {name}", text, _EARLIEST, latest_ms)
        if not isinstance(day, Rejected):
            dropped += unreadable
            return day
        first = first or day
        reason = WRONG_TYPE if day.code == "bad_date" else OUT_OF_RANGE
        unreadable.append(DroppedField(field, reason))
    return first or read_day_of(f"{path}, its report_date", None, _EARLIEST, latest_ms)


def _code_of(result: Result) -> str | None:
    marker = result.biomarker
    loinc = marker.loinc_code if isinstance(marker, Marker) else None
    return code_of(_key_of(result), loinc, _name_of(result))


def _key_of(result: Result) -> str | None:
    """Return Terra's name of what was measured."""
    marker = result.biomarker
    return marker.key if isinstance(marker, Marker) else marker


def _name_of(result: Result) -> str | None:
    """Return the name in the report, or Terra's name if the report is not quoted."""
    marker = result.biomarker
    display = marker.display_name if isinstance(marker, Marker) else None
    return (result.source or _PRINTED).name or result.name or display


def _columns(result: Result, locale: str | None) -> dict[str, Value]:
    """Return the columns of a result, from wherever its structure has them."""
    printed, measured = result.source or _PRINTED, result.measurement or _MEASURED
    interpretation = result.interpretation or _INTERPRETATION
    candidates = (measured.numeric, result.value, printed.value)
    raw = next((reading for reading in candidates if reading is not None), None)
    value = _number(raw, locale)
    classification = result.classification or interpretation.flag
    limits = _range(interpretation.applied_range, _only(result), result.reference_range)
    unit = result.unit or (measured.units if measured.numeric is not None else None)
    return {
        "value": value,
        "value_text": _text(raw) if value is None else None,
        "unit": _text(unit or printed.units or measured.units) or unit_in(_key_of(result)),
        "status": status_of(classification),
        "classification": _text(classification),
        "reference_low": _number(limits.lower, locale),
        "reference_high": _number(limits.upper, locale),
        "name": _text(_name_of(result)),
    }


def _only(result: Result) -> Range | None:
    """Return the only reference range; of several, which one applies is not known."""
    ranges = result.reference_ranges or ()
    return ranges[0] if len(ranges) == 1 else None


def _range(*ranges: Range | None) -> Range:
    """Return the first range that has an end."""
    for limits in ranges:
        if limits is not None and (limits.lower is not None or limits.upper is not None):
            return limits
    return _RANGE


def _number(reading: Reading, locale: str | None) -> float | None:
    """Return a reading as a number; None if it is not one, such as <0.5.

    5,4 has a decimal comma. 1,234 is 1234 in an English report and 1.234 in others; in a report of
    unknown language it stays a text.
    """
    if isinstance(reading, str):
        text = reading.strip()
        is_english = (locale or "").lower().startswith("en")
        if _GROUPED.fullmatch(text):
            if not locale:
                return None
            text = text.replace(",", "" if is_english else ".")
        elif not is_english and _DECIMAL_COMMA.fullmatch(text):
            text = text.replace(",", ".")
        reading = float(text) if _NUMBER.fullmatch(text) else None
    return reading if reading is not None and isfinite(reading) else None


def _text(reading: Reading) -> str | None:
    """Return a reading as the lab wrote it; None if it is blank."""
    return None if reading is None or not str(reading).strip() else storable(str(reading))
