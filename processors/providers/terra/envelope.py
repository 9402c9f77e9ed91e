"""What the gateway needs to know of a verified body: what it is, whom it is about, who asked.

Rule: the envelope decides where a delivery goes and nothing else. Names and ids become Kafka keys
and Postgres columns, so here is the one place where they are held to what those can hold.
"""

from hashlib import sha256
from typing import Final

import msgspec

from headwater.processors.dates import read_date, unix_ms
from headwater.processors.providers.terra.identity import USER_REAUTH
from headwater.processors.texts import fault_of
from headwater.schemas.providers.terra import Envelope, User

#: The type given to the untyped shape of a lab report.
LAB_REPORT: Final = "lab_report"
#: Today's family of lab types: lab_report.completed, lab_report.failed and so on.
LAB_REPORT_FAMILY: Final = "lab_report."

#: Hexadecimal characters of an event id: 128 bits, beyond any accidental collision.
_EVENT_ID_CHARS: Final = 32


class Routing(msgspec.Struct, frozen=True):
    """Where a delivery goes.

    Shape:  subject is Terra's id of the connection, an upload id for labs, empty for nobody;
            reference is the id of ours that Terra echoes, or None.
    Units:  updated_at_ms in Unix milliseconds; 0 where the producer gives none.
    """

    type: str
    subject: str
    reference: str | None
    updated_at_ms: int


class Malformed(msgspec.Struct, frozen=True):
    """A body that goes nowhere: 400 for its sender."""

    code: str
    detail: str


def read_envelope(envelope: Envelope) -> Routing | Malformed:
    """Reads where a delivery goes.

    Shape:  a body without a type is a lab report if it has that shape, else malformed. Of a
            user_reauth, the new user counts.
    Errors: none; Malformed has the code missing_type or malformed_id, and names the field.
    """
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
    """When the producer last heard of the user; only breaks ties, so a bad date is no fault."""
    if user.last_webhook_update is None:
        return 0
    moment = read_date(user.last_webhook_update)
    return 0 if moment is None else max(0, unix_ms(moment))


def event_id(source: str, type_: str, subject: str, body: bytes) -> str:
    """The id of a delivery, equal for two deliveries exactly when all four are equal.

    Shape:  32 hexadecimal characters. Every part is hashed with its length in front, so that no
            part can borrow characters from its neighbour.
    Source: deduplication by (event type, subject, SHA-256 of the body).
    """
    parts = (source.encode(), type_.encode(), subject.encode(), sha256(body).digest())
    named = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return sha256(named).hexdigest()[:_EVENT_ID_CHARS]
