"""A fact as a delivery: like one that was posted, but for a signature."""

import msgspec

from headwater.processors.providers.envelope import event_id
from headwater.schemas.providers.headwater import SYSTEM_SOURCE, SystemEvent
from headwater.schemas.records import WebhookReceived


def delivery_of(fact: SystemEvent, *, request_id: str, now_ms: int) -> WebhookReceived:
    """The delivery that tells of a fact.

    Shape:  the same fact makes the same event id, so telling it again changes nothing.
    """
    body = msgspec.json.encode(fact)
    return WebhookReceived(
        event_id=event_id(SYSTEM_SOURCE, fact.type, fact.subject, body),
        request_id=request_id,
        source=SYSTEM_SOURCE,
        type=fact.type,
        subject=fact.subject,
        reference=fact.user_id,
        sent_at_ms=fact.at_ms,
        updated_at_ms=0,
        received_at_ms=now_ms,
        body=body,
    )
