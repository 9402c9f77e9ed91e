"""Convert system events to deliveries: like webhooks, but without a signature."""

import msgspec

from headwater.processors.providers.envelope import event_id
from headwater.schemas.providers.headwater import SYSTEM_SOURCE, SystemEvent
from headwater.schemas.records import WebhookReceived


def delivery_of(system_event: SystemEvent, *, request_id: str, now_ms: int) -> WebhookReceived:
    """Return the delivery of a system event.

    Equal system events have equal event ids, so publishing one again changes nothing.
    """
    body = msgspec.json.encode(system_event)
    return WebhookReceived(
        event_id=event_id(SYSTEM_SOURCE, system_event.type, system_event.subject, body),
        request_id=request_id,
        source=SYSTEM_SOURCE,
        type=system_event.type,
        subject=system_event.subject,
        reference=system_event.user_id,
        sent_at_ms=system_event.at_ms,
        updated_at_ms=0,
        received_at_ms=now_ms,
        body=body,
    )
