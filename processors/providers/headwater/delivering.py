"""A fact as a delivery: like one that was posted, but for a signature."""

import msgspec

from headwater.processors.providers.envelope import event_id
from headwater.schemas.providers.headwater import HOUSE, Fact
from headwater.schemas.records import WebhookReceived


def delivery_of(fact: Fact, *, request_id: str, now_ms: int) -> WebhookReceived:
    """The delivery that tells of a fact.

    Shape:  the same fact makes the same event id, so telling it again changes nothing.
    """
    body = msgspec.json.encode(fact)
    return WebhookReceived(
        event_id=event_id(HOUSE, fact.type, fact.subject, body),
        request_id=request_id,
        source=HOUSE,
        type=fact.type,
        subject=fact.subject,
        reference=fact.user_id,
        sent_at_ms=fact.at_ms,
        updated_at_ms=0,
        received_at_ms=now_ms,
        body=body,
    )
