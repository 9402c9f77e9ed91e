"""Terra's lab reports, in both of their structures.

The older structure has no type, and its `data` is an array of reports; today's
`lab_report.completed` has one report as its `data`. Their results differ as well, so a value may be
in one of several fields. All of them are decoded here, and `processors` chooses. A field of the
wrong type is left out and named; a result that is no object is `Unreadable`.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.errors import PARSE_ERRORS, MalformedPayload
from headwater.schemas.providers.terra import Unreadable, lenient_record

#: A number, or the lab's text in its place.
Reading: TypeAlias = float | str | None


class Range(msgspec.Struct, frozen=True):
    """A reference range: `reference_range`, or one of `reference_ranges`."""

    lower: Reading = None
    upper: Reading = None


class Marker(msgspec.Struct, frozen=True):
    """`biomarker` in today's structure."""

    key: str | None = None
    display_name: str | None = None
    loinc_code: str | None = None


class Printed(msgspec.Struct, frozen=True):
    """`source` of a result: the text printed in the report."""

    name: str | None = None
    value: Reading = None
    units: str | None = None
    collection_date: str | None = None


class Measured(msgspec.Struct, frozen=True):
    """`measurement` of a result: Terra's interpretation."""

    numeric: float | None = None
    units: str | None = None


class Interpretation(msgspec.Struct, frozen=True):
    """The lab's interpretation of a result."""

    flag: str | None = None
    applied_range: Range | None = None


class Result(msgspec.Struct, frozen=True):
    """One result of a report, in either structure."""

    biomarker: str | Marker | None = None
    name: str | None = None
    value: Reading = None
    unit: str | None = None
    classification: str | None = None
    collection_date: str | None = None
    reference_range: Range | None = None
    source: Printed | None = None
    measurement: Measured | None = None
    interpretation: Interpretation | None = None
    reference_ranges: tuple[Range, ...] | None = None


class Report(msgspec.Struct, frozen=True):
    """A lab report.

    Attributes:
        path: Its path in the delivery: data, or data[0] and so on.
        locale: Its language and country, such as en-GB, by which it writes numbers.
    """

    path: str
    report_date: str | None
    collection_date: str | None
    locale: str | None
    results: tuple[Result | Unreadable, ...]


class LabDelivery(msgspec.Struct, frozen=True):
    """A delivery of lab reports.

    Attributes:
        wrong: Paths of fields with a wrong type, which were left out.
    """

    upload_id: str | None
    reports: tuple[Report | Unreadable, ...]
    wrong: tuple[str, ...] = ()


class LabError(msgspec.Struct, frozen=True):
    """Why a report could not be read."""

    code: str | None = None


class _Failure(msgspec.Struct, frozen=True):
    error: LabError = LabError()
    reference_id: str | None = None


class LabFailure(msgspec.Struct, frozen=True):
    """A delivery about a report that could not be read."""

    upload_id: str | None = None
    data: _Failure = _Failure()


class _Body(msgspec.Struct, frozen=True):
    upload_id: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"[]")


class _RawReport(msgspec.Struct, frozen=True):
    report_date: str | None = None
    collection_date: str | None = None
    report_locale: str | None = None
    results: tuple[msgspec.Raw, ...] | None = None


class _Referenced(msgspec.Struct, frozen=True):
    reference_id: str | None = None


_NULL: Final = b"null"
_BODY: Final = msgspec.json.Decoder(_Body)
_REPORTS: Final = msgspec.json.Decoder(tuple[msgspec.Raw, ...])
_REPORT: Final = msgspec.json.Decoder(_RawReport)
_RESULT: Final = msgspec.json.Decoder(Result)
_FAILURE: Final = msgspec.json.Decoder(LabFailure)
_REFERENCED: Final = msgspec.json.Decoder(_Referenced)


def decode_lab_report(body: bytes) -> LabDelivery:
    """Decode a lab report of either structure.

    Raises:
        MalformedPayload: A field outside the reports is invalid; the message has its path.
    """
    try:
        whole = _BODY.decode(body)
        many = bytes(whole.data).lstrip()[:1] == b"["
        raw = _REPORTS.decode(whole.data) if many else (whole.data,)
    except PARSE_ERRORS as error:
        raise MalformedPayload(str(error)) from error
    if bytes(whole.data).strip() == _NULL:
        raw = ()
    wrong: list[str] = []
    reports = tuple(
        _report(report, f"data[{number}]" if many else "data", wrong)
        for number, report in enumerate(raw)
    )
    return LabDelivery(whole.upload_id, reports, tuple(wrong))


def decode_lab_failure(body: bytes) -> LabFailure:
    """Decode a `lab_report.failed` delivery.

    Raises:
        MalformedPayload: It is invalid.
    """
    try:
        return _FAILURE.decode(body)
    except PARSE_ERRORS as error:
        raise MalformedPayload(str(error)) from error


def reference_in(data: msgspec.Raw) -> str | None:
    """Return Headwater's id in the data of today's structure; None if it cannot be decoded."""
    try:
        return _REFERENCED.decode(data).reference_id
    except PARSE_ERRORS:
        return None


def _report(raw: msgspec.Raw, path: str, wrong: list[str]) -> Report | Unreadable:
    try:
        report = _REPORT.decode(raw)
    except PARSE_ERRORS as error:
        lenient = lenient_record(_RawReport, raw, path, wrong)
        if lenient is None or f"{path}.results" in wrong:
            return Unreadable(str(error))
        report = lenient
    results = tuple(
        _result(result, f"{path}.results[{number}]", wrong)
        for number, result in enumerate(report.results or ())
    )
    return Report(path, report.report_date, report.collection_date, report.report_locale, results)


def _result(raw: msgspec.Raw, path: str, wrong: list[str]) -> Result | Unreadable:
    try:
        return _RESULT.decode(raw)
    except PARSE_ERRORS as error:
        return lenient_record(Result, raw, path, wrong) or Unreadable(str(error))
