"""Where a delivery of Terra's goes."""

import re
from collections.abc import Mapping
from typing import Final

from headwater.processors.dates import read_date, unix_ms
from headwater.processors.providers.envelope import Malformed, Routing
from headwater.processors.providers.terra.auth import USER_REAUTH
from headwater.processors.texts import text_problem
from headwater.schemas.providers.terra import Envelope, User, decode_envelope
from headwater.schemas.providers.terra_labs import reference_in

#: The type given to the untyped shape of a lab report.
LAB_REPORT: Final = "lab_report"
#: Today's family of lab types: lab_report.completed, lab_report.failed and so on.
LAB_REPORT_FAMILY: Final = "lab_report."
LAB_COMPLETED: Final = "lab_report.completed"
LAB_FAILED: Final = "lab_report.failed"
#: When Terra had the delivery, Unix milliseconds, the same for all of its retries.
ORDERING_HEADER: Final = "x-terra-ordering-timestamp"

_MS: Final = re.compile("[0-9]{1,15}")


def read_envelope(body: bytes, headers: Mapping[str, str]) -> Routing | Malformed:
    """Reads where a delivery goes.

    Shape:  the subject is Terra's id of the connection, an upload id for labs. A body without a
            type is a lab report if it has that shape, else malformed. Of a user_reauth, the new
            user counts. A retried delivery is signed anew, hours later; its ordering timestamp is
            the old one.
    Errors: MalformedPayload. Malformed has the code missing_type or malformed_id, and names the
            field.
    """
    envelope = decode_envelope(body)
    kind = LAB_REPORT if envelope.is_lab_report else envelope.type
    if not kind:
        return Malformed(
            "missing_type",
            "type: expected Terra's event type, found none; a body without one must be a lab "
            "report, with upload_id and an array of data",
        )
    ordered_ms = _ordered_ms(headers)
    if kind == LAB_REPORT or kind.startswith(LAB_REPORT_FAMILY):
        return _of_upload(kind, envelope, ordered_ms)
    if kind == USER_REAUTH:
        return _about("new_user", envelope.new_user, kind, envelope, ordered_ms)
    return _about("user", envelope.user, kind, envelope, ordered_ms)


def _of_upload(kind: str, envelope: Envelope, ordered_ms: int) -> Routing | Malformed:
    """Where a lab report goes: to whose upload it names, whoever else it speaks of.

    Shape:  the reference counts only where no upload is named.
    """
    reference = envelope.reference_id or reference_in(envelope.data)
    found = (
        text_problem("type", kind)
        or text_problem("upload_id", envelope.upload_id)
        or text_problem("reference_id", reference)
    )
    if found is not None:
        return Malformed("malformed_id", found)
    subject = envelope.upload_id or ""
    return Routing(kind, subject, None if subject else reference, ordered_ms=ordered_ms)


def _about(
    field: str, user: User | None, kind: str, envelope: Envelope, ordered_ms: int
) -> Routing | Malformed:
    found = text_problem("type", kind)
    if user is None:
        found = found or text_problem("reference_id", envelope.reference_id)
        about = Routing(kind, "", envelope.reference_id, ordered_ms=ordered_ms)
    else:
        found = found or text_problem(f"{field}.user_id", user.user_id)
        found = found or text_problem(f"{field}.reference_id", user.reference_id)
        updated_ms = _updated_at_ms(user)
        about = Routing(kind, user.user_id or "", user.reference_id, updated_ms, ordered_ms)
    return about if found is None else Malformed("malformed_id", found)


def _ordered_ms(headers: Mapping[str, str]) -> int:
    """When Terra first had the delivery; 0 if it does not say so in digits."""
    text = headers.get(ORDERING_HEADER, "")
    return int(text) if _MS.fullmatch(text) else 0


def _updated_at_ms(user: User) -> int:
    """When Terra last had data of the user; only breaks ties, so a bad date is no fault."""
    if user.last_webhook_update is None:
        return 0
    moment = read_date(user.last_webhook_update)
    return 0 if moment is None else max(0, unix_ms(moment))
