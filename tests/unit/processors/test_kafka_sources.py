"""Topics as sources: what each of their records becomes, and how they are written."""

from collections.abc import Mapping

import pytest

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.kafka_sources import KafkaSource, TopicRecord, delivery_of
from headwater.processors.providers.envelope import Malformed
from headwater.processors.providers.provider import reroute
from headwater.processors.sources import (
    SourcesInvalid,
    kafka_sources,
    providers_of,
    read_sources,
    webhook_sources,
)

PROVIDERS = installed_providers()
AT_MS = 1_782_900_000_000
DAY_MS = 24 * 60 * 60 * 1_000
ORDERS = """
[[source]]
name = "orders"
kind = "kafka"
topic = "shop.orders"
format = "json"
"""
LOCATED = """
id = { header = "X-Order-Id" }
type = { cel = "value.kind" }
subject = { cel = "value.customer.id" }
time = { cel = "value.at" }
"""
BODY = b'{"kind":"placed","customer":{"id":7},"at":"2026-07-01T00:00:00.5Z"}'


def source(text: str) -> KafkaSource:
    (result,) = read_sources(text, PROVIDERS)
    assert isinstance(result, KafkaSource)
    return result


def record(
    body: bytes = BODY, headers: Mapping[str, str] | None = None, offset: int = 17
) -> TopicRecord:
    named = {"x-order-id": "o-1"} if headers is None else headers
    return TopicRecord("shop.orders", 3, offset, AT_MS, b"key", named, body)


def test_the_fields_of_a_delivery_are_where_the_source_says():
    delivery = delivery_of(source(ORDERS + LOCATED), record(), now_ms=AT_MS + 5)
    assert (delivery.source, delivery.type, delivery.subject) == ("orders", "placed", "7")
    assert delivery.sent_at_ms == 1_782_864_000_500
    assert (delivery.received_at_ms, delivery.body) == (AT_MS + 5, BODY)
    assert delivery.request_id == "shop.orders/3@17"


def test_without_locations_a_record_is_known_by_its_position_and_has_its_own_time():
    orders = source(ORDERS)
    one, again, other = (
        delivery_of(orders, record(offset=offset), now_ms=AT_MS) for offset in (17, 17, 18)
    )
    assert (one.type, one.subject, one.sent_at_ms) == ("unknown", "", AT_MS)
    assert one.event_id == again.event_id != other.event_id


def test_a_record_with_the_same_id_at_another_offset_is_the_same_delivery():
    orders = source(ORDERS + LOCATED)
    one, other = (delivery_of(orders, record(offset=at), now_ms=AT_MS) for at in (17, 90))
    assert one.event_id == other.event_id
    assert one.request_id != other.request_id


@pytest.mark.parametrize(
    ("time", "sent_at_ms"),
    [
        (b"1782864000123", 1_782_864_000_123),
        (b'"1782864000123"', 1_782_864_000_123),
        (b'"2026-07-01T02:00:00+02:00"', 1_782_864_000_000),
        (b"null", AT_MS),
    ],
)
def test_a_time_is_rfc_3339_or_milliseconds_and_else_the_records_own(time: bytes, sent_at_ms: int):
    orders = source(ORDERS + 'time = { cel = "value.at" }')
    delivery = delivery_of(orders, record(b'{"at":%b}' % time), now_ms=AT_MS)
    assert delivery.sent_at_ms == sent_at_ms
    assert delivery_of(orders, record(b"{}"), now_ms=AT_MS).sent_at_ms == AT_MS


def test_a_time_may_be_a_day_ahead_of_its_receipt():
    delivery = delivery_of(source(ORDERS), record(), now_ms=AT_MS - DAY_MS)
    assert (delivery.type, delivery.sent_at_ms) == ("unknown", AT_MS)


@pytest.mark.parametrize("locations", ["", 'time = { cel = "value.at" }'])
@pytest.mark.parametrize("time_ms", [AT_MS + DAY_MS + 1, 999_999_999_999_999])
def test_a_time_further_ahead_is_a_reason_and_not_the_time_of_its_delivery(
    locations: str, time_ms: int
):
    orders = source(ORDERS + locations)
    ahead = record(b'{"at":%d}' % time_ms)._replace(timestamp_ms=time_ms)
    delivery = delivery_of(orders, ahead, now_ms=AT_MS)
    assert (delivery.type, delivery.sent_at_ms) == ("unreadable", AT_MS)
    name, reason = delivery.headers
    assert name == "headwater-problem"
    assert reason == (
        "malformed_payload: time: expected at most a day after its receipt at "
        f"2026-07-01T10:00:00.000Z, found {time_ms} in Unix milliseconds"
    )


def test_the_records_own_time_does_not_matter_if_the_source_has_another():
    orders = source(ORDERS + 'time = { cel = "value.at" }')
    ahead = record(b'{"at":%d}' % AT_MS)._replace(timestamp_ms=999_999_999_999_999)
    assert delivery_of(orders, ahead, now_ms=AT_MS).sent_at_ms == AT_MS


@pytest.mark.parametrize(
    ("unusual", "code", "detail"),
    [
        (record(headers={}), "malformed_payload", "id: expected a text or number"),
        (record(headers={"x-order-id": "a\0b"}), "malformed_id", "id: expected no control"),
        (record(b'{"kind":null}'), "missing_type", "type: expected a text or number"),
        (record(b'{"kind":["a"]}'), "malformed_payload", "type: expected a text or number"),
        (record(b'{"kind":"a","at":"soon"}'), "malformed_payload", "time: expected RFC 3339"),
        (record(b"{"), "malformed_payload", "expected a value that is JSON"),
        (record(b'{"kind":"a"}')._replace(problem=Malformed("undecodable", "why")),
         "undecodable", "why"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_used_is_kept_with_the_reason(
    unusual: TopicRecord, code: str, detail: str
):
    orders = source(ORDERS + LOCATED)
    delivery = delivery_of(orders, unusual, now_ms=AT_MS)
    assert (delivery.type, delivery.body) == ("unreadable", unusual.body)
    providers = providers_of([orders])
    again = reroute(delivery, providers)
    assert again is delivery
    routing = providers["orders"].route(
        delivery.body, dict(zip(delivery.headers[::2], delivery.headers[1::2], strict=True))
    )
    assert isinstance(routing, Malformed)
    assert (routing.code, detail in routing.detail) == (code, True)


def test_a_provider_reads_a_record_as_it_reads_a_webhook():
    terra = source(ORDERS + 'provider = "terra"')
    body = b'{"type":"daily","user":{"user_id":"t1","reference_id":"user_1"}}'
    header = {"x-terra-ordering-timestamp": str(AT_MS - 1_000)}
    delivery = delivery_of(terra, record(body, header), now_ms=AT_MS)
    assert (delivery.type, delivery.subject, delivery.reference) == ("daily", "t1", "user_1")
    assert delivery.sent_at_ms == AT_MS - 1_000
    unreadable = delivery_of(terra, record(b"{}", header), now_ms=AT_MS)
    assert (unreadable.type, unreadable.headers) == ("unreadable", tuple(*header.items()))
    provider = providers_of([terra])["orders"]
    assert isinstance(provider.route(b"{}", {}), Malformed), "its provider finds the reason"


def test_topics_and_webhooks_are_in_one_file():
    text = f'every_provider = true\n{ORDERS}[[source]]\nname = "eu"\nprovider = "terra"\n'
    sources = read_sources(text, PROVIDERS)
    assert [one.name for one in kafka_sources(sources)] == ["orders"]
    assert [one.name for one in webhook_sources(sources)] == ["eu", "github"]
    assert {"orders", "eu", "headwater"} <= set(providers_of(sources))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ORDERS.replace('"json"', '"xml"'), "format: expected one of json, avro; found 'xml'"),
        (ORDERS.replace("shop.orders", "a b"), "topic: expected the name of a topic"),
        (ORDERS.replace('"orders"', '"Orders"'), "name: expected a name such as my-shop"),
        (ORDERS + 'provider = "nobody"', "provider: expected one of"),
        (ORDERS + 'provider = "terra"\ntype = { header = "x" }', "without a provider only"),
        (ORDERS + "id = {}", "id: expected { header ="),
        (ORDERS + 'id = { header = "a", cel = "key" }', "id: expected { header ="),
        (ORDERS + 'id = { cel = "value." }', "id, "),
        (ORDERS + 'id = { cel = "event.id" }', "id, "),
        (ORDERS + 'id = { path = "/id" }', "unknown field"),
        (ORDERS + 'secrets = ["x"]', "unknown field `secrets`"),
        (ORDERS + ORDERS, "expected each name once, found orders twice"),
    ],
)
def test_what_is_wrong_with_a_topic_is_stated(text: str, problem: str):
    with pytest.raises(SourcesInvalid) as caught:
        read_sources(text, PROVIDERS)
    assert problem in caught.value.message
