"""Headers of deliveries and of records that follow from them, for other programs.

The binding of CloudEvents for Kafka, in binary mode, and W3C Trace Context.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from headwater.processors.trace_context import TRACEPARENT, TraceContext, delivery_context
from headwater.schemas.records import Delivery, WebhookReceived
from headwater.streams.kafka.records import Headers

_CE_VERSION: Final = ("ce_specversion", b"1.0")
_CONTENT_TYPE: Final = ("content-type", b"application/vnd.apache.avro")


def delivery_headers(delivery: WebhookReceived, domain: str = "") -> Headers:
    """Return the headers of a delivery's record: a CloudEvent, and the trace that it continues.

    An attribute without a value is left out: the specification has no empty ones.

    Args:
        delivery: The delivery.
        domain: Reversed domain of its sender, which defines what its types mean; or empty.
    """
    key, (second, ms) = delivery.event_id.encode(), divmod(delivery.received_at_ms, 1_000)
    headers = [
        _CE_VERSION,
        _CONTENT_TYPE,
        ("ce_id", key),
        ("ce_source", _ce_source(delivery.source)),
        ("ce_type", _ce_type(domain or delivery.source, delivery.type)),
        ("ce_time", b"%b.%03dZ" % (_second(second), ms)),
    ]
    if delivery.subject:
        headers.append(("ce_subject", delivery.subject.encode()))
    if delivery.trace:
        return headers + _encoded(delivery_context(delivery.event_id, delivery.trace))
    # As `delivery_context` has it; most deliveries have none, and this is a tenth of the cost.
    headers.append((TRACEPARENT, b"00-%b-%b-00" % (key, key[:16])))
    return headers


def trace_headers(event: Delivery) -> Headers:
    """Return the headers by which readers continue the trace of a delivery that came with one."""
    return _encoded(delivery_context(event.event_id, event.trace)) if event.trace else []


def _encoded(context: TraceContext) -> Headers:
    return [(name, text.encode()) for name, text in context.headers()]


@lru_cache(maxsize=256)
def _ce_source(source: str) -> bytes:
    return f"/webhooks/{source}".encode()


@lru_cache(maxsize=1024)
def _ce_type(prefix: str, kind: str) -> bytes:
    return f"{prefix}.{kind}".encode()


@lru_cache(maxsize=16)
def _second(second: int) -> bytes:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
