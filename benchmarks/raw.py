"""Records of the raw topics: our record of a delivery, and the same as plain JSON.

The plain form is for the alternatives to Headwater. All topics are partitioned by user, as the
gateway partitions deliveries that name one; the records do not differ otherwise.
"""

import msgspec
import orjson

from benchmarks.payloads import delivery
from headwater.processors.providers.envelope import event_id
from headwater.schemas.codec import encode
from headwater.schemas.records import WebhookReceived
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.records import Outgoing, partition_of


def received(number: int, now_ms: int) -> WebhookReceived:
    """Return a delivery as the gateway would have accepted it."""
    generated = delivery(number)
    name = event_id("terra", "daily", generated.subject, generated.body)
    return WebhookReceived(
        event_id=name,
        request_id=f"bench-{name[:20]}",
        source="terra",
        type="daily",
        subject=generated.subject,
        reference=generated.user,
        sent_at_ms=now_ms,
        updated_at_ms=0,
        received_at_ms=now_ms,
        body=generated.body,
    )


def ours(number: int, now_ms: int, partitions: int) -> Outgoing:
    """Return a record of the topic `webhooks`, as the gateway appends it."""
    record = received(number, now_ms)
    key = record.event_id.encode()
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", key),
        ("ce_source", b"/webhooks/terra"),
        ("ce_type", b"terra.daily"),
        ("ce_subject", record.subject.encode()),
        ("content-type", b"application/vnd.apache.avro"),
    ]
    owner = (record.reference or "").encode()
    return Outgoing(WEBHOOKS, partition_of(owner, partitions), key, encode(record), headers)


def plain(topic: str, number: int, now_ms: int, partitions: int) -> Outgoing:
    """Return the same record as JSON, with the body as text."""
    record = received(number, now_ms)
    fields = {**msgspec.structs.asdict(record), "body": record.body.decode()}
    key = (record.reference or "").encode()
    return Outgoing(topic, partition_of(key, partitions), key, orjson.dumps(fields))
