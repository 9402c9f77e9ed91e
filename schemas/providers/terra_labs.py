"""Terra's lab reports, in both of their structures.

The older structure has no type, and its `data` is an array of reports; today's
`lab_report.completed` has one report as its `data`. Their results differ as well, so a value may be
in one of several fields. All of them are decoded here, and `processors` chooses. A result that does
not match is `Unreadable`, with the path; the others are decoded.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.errors import PARSE_ERRORS, MalformedPayload
from headwater.schemas.providers.terra import Unreadable

#: A number, or the lab's text in its place.
Reading: TypeAlias = float | str | None


class Range(msgspec.Struct, frozen=True):
    """The range of a healthy population."""

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
    reference_range: Range | None = None


class Measured(msgspec.Struct, frozen=True):
    """`measurement` of a result: Terra's interpretation."""

    numeric: float | None = None
    units: str | None = None


class Interpretation(msgspec.Struct, frozen=True):
    """The lab's interpretation of a result."""

    flag: str | None = None
    reference_range: Range | None = None


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


class Report(msgspec.Struct, frozen=True):
    """A lab report."""

    report_date: str | None
    collection_date: str | None
    results: tuple[Result | Unreadable, ...]


class LabDelivery(msgspec.Struct, frozen=True):
    """A delivery of lab reports."""

    upload_id: str | None
    reports: tuple[Report | Unreadable, ...]


class LabError(msgspec.Struct, frozen=True):
    """Why a report could not be read."""

    code: str | None = None


class _Failure(msgspec.Struct, frozen=True):
    error: LabError = LabError()


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
    results: tuple[msgspec.Raw, ...] = ()


class _Referenced(msgspec.Struct, frozen=True):
    reference_id: str | None = None


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
    return LabDelivery(whole.upload_id, tuple(map(_report, raw)))


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


def _report(raw: msgspec.Raw) -> Report | Unreadable:
    try:
        report = _REPORT.decode(raw)
    except PARSE_ERRORS as error:
        return Unreadable(str(error))
    return Report(report.report_date, report.collection_date, tuple(map(_result, report.results)))


def _result(raw: msgspec.Raw) -> Result | Unreadable:
    try:
        return _RESULT.decode(raw)
    except PARSE_ERRORS as error:
        return Unreadable(str(error))
