"""What Terra sends of lab reports, in both of its shapes.

The older one has no type, and its `data` is an array of reports; today's `lab_report.completed` has
one report as its `data`. Their results differ too, so a field may be in one of several places; what
is read here is all of them, and `processors` says which counts. A result that is not what this says
is `Unreadable`, with the path; the others are read.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.errors import PARSE_ERRORS, MalformedPayload
from headwater.schemas.providers.terra import Unreadable

#: A number, or what a lab wrote in its place.
Reading: TypeAlias = float | str | None


class Range(msgspec.Struct, frozen=True):
    """The range of a healthy population."""

    lower: Reading = None
    upper: Reading = None


class Marker(msgspec.Struct, frozen=True):
    """`biomarker` as today's shape has it."""

    key: str | None = None
    display_name: str | None = None
    loinc_code: str | None = None


class Printed(msgspec.Struct, frozen=True):
    """`source` of a result: what is printed in the report."""

    name: str | None = None
    value: Reading = None
    units: str | None = None
    collection_date: str | None = None
    reference_range: Range | None = None


class Measured(msgspec.Struct, frozen=True):
    """`measurement` of a result: what Terra read it as."""

    numeric: float | None = None
    units: str | None = None


class Interpretation(msgspec.Struct, frozen=True):
    """What the lab makes of a result."""

    flag: str | None = None
    reference_range: Range | None = None


class Result(msgspec.Struct, frozen=True):
    """One result of a report, in either shape."""

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
    """A delivery that says that a report could not be read."""

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
    """Reads a lab report of either shape.

    Errors: MalformedPayload with the path of what no report is at fault for.
    """
    try:
        whole = _BODY.decode(body)
        many = bytes(whole.data).lstrip()[:1] == b"["
        raw = _REPORTS.decode(whole.data) if many else (whole.data,)
    except PARSE_ERRORS as error:
        raise MalformedPayload(str(error)) from error
    return LabDelivery(whole.upload_id, tuple(map(_report, raw)))


def decode_lab_failure(body: bytes) -> LabFailure:
    """Reads a `lab_report.failed` delivery.

    Errors: MalformedPayload.
    """
    try:
        return _FAILURE.decode(body)
    except PARSE_ERRORS as error:
        raise MalformedPayload(str(error)) from error


def reference_in(data: msgspec.Raw) -> str | None:
    """The id of ours that today's shape has among its data; what cannot be read has none."""
    try:
        return _REFERENCED.decode(data).reference_id
    except PARSE_ERRORS:
        return None


def _report(raw: msgspec.Raw) -> Report | Unreadable:
    try:
        found = _REPORT.decode(raw)
    except PARSE_ERRORS as error:
        return Unreadable(str(error))
    return Report(found.report_date, found.collection_date, tuple(map(_result, found.results)))


def _result(raw: msgspec.Raw) -> Result | Unreadable:
    try:
        return _RESULT.decode(raw)
    except PARSE_ERRORS as error:
        return Unreadable(str(error))
