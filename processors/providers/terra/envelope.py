"""Routing of Terra's deliveries."""

import re
from collections.abc import Mapping
from typing import Final

from headwater.processors.input_texts import read_date, text_problem, unix_ms
from headwater.processors.providers.envelope import MISSING_TYPE, Malformed, Routing
from headwater.processors.providers.terra.auth import USER_REAUTH
from headwater.schemas.providers.terra import Envelope, User, decode_envelope
from headwater.schemas.providers.terra_labs import reference_in

#: Type of a lab report without a type.
LAB_REPORT: Final = "lab_report"
#: Prefix of today's lab types: lab_report.completed, lab_report.failed and so on.
LAB_REPORT_FAMILY: Final = "lab_report."
LAB_COMPLETED: Final = "lab_report.completed"
LAB_FAILED: Final = "lab_report.failed"
#: When Terra received the data, in Unix milliseconds; equal in all retries of a delivery.
ORDERING_HEADER: Final = "x-terra-ordering-timestamp"

_MS: Final = re.compile("[0-9]{1,15}")


def read_envelope(body: bytes, headers: Mapping[str, str]) -> Routing | Malformed:
    """Return the routing of a delivery.

    The subject is Terra's id of the connection, or an upload id for labs. A body without a type is
    a lab report if it has that structure, else malformed. For a user_reauth, the new user counts.
    A retried delivery is signed again, hours later; its ordering timestamp stays the same.

    Returns:
        The routing, or Malformed with the code missing_type or malformed_id, and the field.

    Raises:
        MalformedPayload: The body cannot be decoded.
    """
    envelope = decode_envelope(body)
    kind = LAB_REPORT if envelope.is_lab_report else envelope.type
    if not kind:
        return Malformed(
            MISSING_TYPE,
            "type: expected Terra's event type, found none; a body without one must be a lab "
            "report, with upload_id and an array of data",
        )
    ordered_ms = _ordered_ms(headers)
    if kind == LAB_REPORT or kind.startswith(LAB_REPORT_FAMILY):
        return _of_upload(kind, envelope, ordered_ms)
    if kind == USER_REAUTH:
        return _of_user("new_user", envelope.new_user, kind, envelope, ordered_ms)
    return _of_user("user", envelope.user, kind, envelope, ordered_ms)


def _of_upload(kind: str, envelope: Envelope, ordered_ms: int) -> Routing | Malformed:
    """Return the routing of a lab report: by the upload that it names, or by its reference."""
    reference = envelope.reference_id or reference_in(envelope.data)
    problem = (
        text_problem("type", kind)
        or text_problem("upload_id", envelope.upload_id)
        or text_problem("reference_id", reference)
    )
    if problem is not None:
        return Malformed("malformed_id", problem)
    subject = envelope.upload_id or ""
    return Routing(kind, subject, None if subject else reference, ordered_ms=ordered_ms)


def _of_user(
    field: str, user: User | None, kind: str, envelope: Envelope, ordered_ms: int
) -> Routing | Malformed:
    problem = text_problem("type", kind)
    if user is None:
        problem = problem or text_problem("reference_id", envelope.reference_id)
        routing = Routing(kind, "", envelope.reference_id, ordered_ms=ordered_ms)
    else:
        problem = problem or text_problem(f"{field}.user_id", user.user_id)
        problem = problem or text_problem(f"{field}.reference_id", user.reference_id)
        updated_ms = _updated_at_ms(user)
        routing = Routing(kind, user.user_id or "", user.reference_id, updated_ms, ordered_ms)
    return routing if problem is None else Malformed("malformed_id", problem)


def _ordered_ms(headers: Mapping[str, str]) -> int:
    """Return when Terra first had the delivery; 0 if the header is not a number."""
    text = headers.get(ORDERING_HEADER, "")
    return int(text) if _MS.fullmatch(text) else 0


def _updated_at_ms(user: User) -> int:
    """Return when Terra last had data of the user; only breaks ties, so a bad date is ignored."""
    if user.last_webhook_update is None:
        return 0
    moment = read_date(user.last_webhook_update)
    return 0 if moment is None else max(0, unix_ms(moment))
