"""Where a delivery of Terra's goes."""

from collections.abc import Mapping
from typing import Final

from headwater.processors.dates import read_date, unix_ms
from headwater.processors.providers.envelope import Malformed, Routing
from headwater.processors.providers.terra.auth import USER_REAUTH
from headwater.processors.texts import fault_of
from headwater.schemas.providers.terra import Envelope, User, decode_envelope

#: The type given to the untyped shape of a lab report.
LAB_REPORT: Final = "lab_report"
#: Today's family of lab types: lab_report.completed, lab_report.failed and so on.
LAB_REPORT_FAMILY: Final = "lab_report."


def read_envelope(body: bytes, headers: Mapping[str, str]) -> Routing | Malformed:
    """Reads where a delivery goes; all of it is in the body.

    Shape:  the subject is Terra's id of the connection, an upload id for labs. A body without a
            type is a lab report if it has that shape, else malformed. Of a user_reauth, the new
            user counts.
    Errors: MalformedPayload. Malformed has the code missing_type or malformed_id, and names the
            field.
    """
    del headers
    envelope = decode_envelope(body)
    if envelope.is_lab_report:
        found = fault_of("upload_id", envelope.upload_id)
        if found is not None:
            return Malformed("malformed_id", found)
        return Routing(LAB_REPORT, envelope.upload_id or "", envelope.upload_id, 0)
    kind = envelope.type
    if not kind:
        return Malformed(
            "missing_type",
            "type: expected Terra's event type, found none; a body without one must be a lab "
            "report, with upload_id and an array of data",
        )
    if kind == USER_REAUTH:
        return _about("new_user", envelope.new_user, kind, envelope)
    return _about("user", envelope.user, kind, envelope)


def _about(field: str, user: User | None, kind: str, envelope: Envelope) -> Routing | Malformed:
    if user is None:
        subject = envelope.upload_id if kind.startswith(LAB_REPORT_FAMILY) else None
        subject_field, reference_field = "upload_id", "reference_id"
        reference, updated_at_ms = envelope.reference_id, 0
    else:
        subject, reference = user.user_id, user.reference_id
        subject_field, reference_field = f"{field}.user_id", f"{field}.reference_id"
        updated_at_ms = _updated_at_ms(user)
    found = (
        fault_of("type", kind)
        or fault_of(subject_field, subject)
        or fault_of(reference_field, reference)
    )
    if found is not None:
        return Malformed("malformed_id", found)
    return Routing(kind, subject or "", reference, updated_at_ms)


def _updated_at_ms(user: User) -> int:
    """When Terra last had data of the user; only breaks ties, so a bad date is no fault."""
    if user.last_webhook_update is None:
        return 0
    moment = read_date(user.last_webhook_update)
    return 0 if moment is None else max(0, unix_ms(moment))
