"""Bodies of dead letters, for the command line and the console."""

import contextlib
from base64 import b64decode

from headwater.schemas.codec import decode
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.records import WebhookAdmitted, WebhookReceived


def body_of(value: str | None) -> bytes | None:
    """Return the body of the delivery in a dead letter; None if it is not a delivery.

    Args:
        value: Value of the record, in base64.
    """
    if value is None:
        return None
    data = b64decode(value)
    with contextlib.suppress(UndecodableRecord, UnknownSchema):
        return decode(data, WebhookReceived).body
    with contextlib.suppress(UndecodableRecord, UnknownSchema):
        return decode(data, WebhookAdmitted).body
    return None
