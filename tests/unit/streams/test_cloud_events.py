"""The headers of a delivery are those of a CloudEvent, as the specification (1.0.2) demands."""

import re
from urllib.parse import urlsplit

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.settings.providers import installed_providers
from headwater.schemas.records import WebhookReceived
from headwater.streams.kafka.records import Headers
from headwater.streams.pipeline.delivery_headers import delivery_headers

#: RFC 3339, as the attribute `time` is written.
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
REQUIRED = {"id", "source", "type", "specversion"}
DELIVERY = WebhookReceived(
    event_id="0af7651916cd43dd8448eb211c80319c",
    request_id="01JZ2Y0W8M3V9Q6T5R4E3W2Q1A",
    source="terra",
    type="daily",
    subject="person 1",
    sent_at_ms=1_790_000_000_000,
    updated_at_ms=0,
    received_at_ms=1_790_000_000_045,
    body=b"{}",
)


def read(headers: Headers) -> dict[str, str]:
    """Read an event in binary mode, as any SDK does; the content type is not an attribute."""
    names = [name for name, _ in headers]
    assert len(set(names)) == len(names), "a header is there once"
    attributes = {name[3:]: value.decode() for name, value in headers if name.startswith("ce_")}
    assert all(re.fullmatch("[a-z0-9]+", name) for name in attributes)
    assert all(attributes.values()), "no attribute is empty"
    assert attributes.keys() >= REQUIRED
    assert attributes["specversion"] == "1.0"
    assert urlsplit(attributes["source"]).path
    assert TIME.fullmatch(attributes["time"])
    assert dict(headers)["content-type"]
    return attributes


def test_a_delivery_is_an_event():
    assert read(delivery_headers(DELIVERY)) == {
        "specversion": "1.0",
        "id": DELIVERY.event_id,
        "source": "/webhooks/terra",
        "type": "terra.daily",
        "subject": "person 1",
        "time": "2026-09-21T14:13:20.045Z",
    }


def test_a_delivery_without_a_subject_has_no_attribute_for_it():
    event = read(delivery_headers(msgspec.structs.replace(DELIVERY, subject="")))
    assert "subject" not in event


def test_types_begin_with_the_reversed_domain_of_the_sender():
    domains = {name: sender.domain for name, sender in installed_providers().items()}
    assert domains["terra"] == "co.tryterra"
    assert read(delivery_headers(DELIVERY, domains["terra"]))["type"] == "co.tryterra.daily"


@given(
    subject=st.text(max_size=20),
    kind=st.text(min_size=1, max_size=20),
    received_at_ms=st.integers(0, 4_000_000_000_000),
)
def test_any_delivery_is_an_event(subject: str, kind: str, received_at_ms: int):
    delivery = msgspec.structs.replace(
        DELIVERY,
        subject=subject.encode(errors="replace").decode(),
        type=kind.encode(errors="replace").decode(),
        received_at_ms=received_at_ms,
    )
    read(delivery_headers(delivery))
