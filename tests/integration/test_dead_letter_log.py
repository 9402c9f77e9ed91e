"""Dead letters put back, and deliveries appended again, on a real broker."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import cast

import pytest

from headwater.schemas.codec import encode
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.records import WebhooksClaimed
from headwater.schemas.topics import ADMISSIONS, DEAD_LETTERS, MAX_RECORD_BYTES, WEBHOOKS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import (
    CONNECT_PREFIX,
    EXPIRED,
    KEY,
    REPLAY_OF,
    REPLAYED,
    text_header,
)
from headwater.streams.kafka.readers import read_partition, read_records_at
from headwater.streams.kafka.records import Outgoing
from headwater.streams.kafka.topics import create_topics
from headwater.streams.pipeline.reprocessing import DeadLetters, DeliveryToReplay
from tests.fakes.delivery_log import a_delivery
from tests.integration.consumers import open_consumers
from tests.integration.projecting import forget
from tests.integration.test_gateway_log import app_on, real_log
from tests.throwaway_kafka import ThrowawayKafka


def test_dead_letters_that_do_not_exist_are_not_replayed(topics: str) -> None:
    body = {"positions": [{"partition": 0, "offset": 99}, {"partition": 77, "offset": 0}]}
    with app_on(topics) as client:
        answer = client.post(
            "/admin/dlq/replay", json=body, headers={"x-admin-key": "dev-admin-key"}
        ).json()
    assert (answer["replayed"], answer["failed"]) == (0, 2)
    assert [result["detail"][:8] for result in answer["results"]] == ["no such ", "no such "]


async def expire(topics: str, partition: int) -> int:
    """The place of a dead letter that was the last, and is gone."""
    cluster = Cluster(topics)
    appender = Appender(cluster=cluster, client_id="expiry")
    try:
        sent = await appender.send([Outgoing(DEAD_LETTERS, partition, b"k", b"v")])
        (offset,) = await appender.acknowledged(sent)
    finally:
        await appender.stop()
    await forget(topics, (DEAD_LETTERS, partition), offset + 1)
    return offset


async def marks(topics: str, topic: str, header: str, partition: int) -> list[str | None]:
    reading = read_partition(Cluster(topics), [topic], partition)
    return [text_header(record, header) async for records in reading for record in records]


def test_a_dead_letter_that_its_topic_has_no_more_is_marked(topics: str) -> None:
    partition = 2

    removed = asyncio.run(expire(topics, partition))
    body = {"positions": [{"partition": partition, "offset": removed}]}
    with app_on(topics) as client:
        answer = client.post(
            "/admin/dlq/replay", json=body, headers={"x-admin-key": "dev-admin-key"}
        ).json()
    assert (answer["replayed"], answer["failed"]) == (0, 1)
    assert answer["results"][0]["detail"].startswith("expired: the topic has")
    assert f"{partition}@{removed}" in asyncio.run(marks(topics, DEAD_LETTERS, EXPIRED, partition))


def test_a_place_that_has_no_record_yet_is_not_marked(topics: str) -> None:
    """Though the topic grows while it is looked for: by the mark of the one before it."""
    partition = 1
    removed = asyncio.run(expire(topics, partition))
    positions = [{"partition": partition, "offset": item} for item in (removed, removed + 1)]
    with app_on(topics) as client:
        answer = client.post(
            "/admin/dlq/replay",
            json={"positions": positions},
            headers={"x-admin-key": "dev-admin-key"},
        ).json()
    details = [result["detail"][:8] for result in answer["results"]]
    assert details == ["expired:", "no such "]


#: Headers of dead letters, and why each cannot be put back; "" if it can.
FATES = [
    ({"topic": WEBHOOKS, "partition": "1"}, ""),
    ({"topic": "nobody-made-it", "partition": "1"}, "no topic nobody-made-it of Headwater's"),
    ({"topic": WEBHOOKS, "partition": "99"}, "no partition 99 of webhooks"),
    ({"topic": WEBHOOKS, "partition": "-1"}, "no partition -1 of webhooks"),
    ({"topic": WEBHOOKS, "partition": "one"}, "no partition one of webhooks"),
    ({"topic": WEBHOOKS}, "not a dead letter"),
    ({"partition": "1"}, "not a dead letter"),
    ({"topic": ADMISSIONS, "partition": "1"}, ""),
    ({"topic": WEBHOOKS, "partition": "1"}, ""),
]


def fated(number: int, fields: dict[str, str], *key: tuple[str, bytes]) -> Outgoing:
    headers = [(CONNECT_PREFIX + name, value.encode()) for name, value in fields.items()]
    # What is put back is read by other tests, too.
    claimed = encode(WebhooksClaimed(["fate"], [0], [0], 0))
    value = claimed if fields.get("topic") == ADMISSIONS else encode(a_delivery("fate"))
    return Outgoing(DEAD_LETTERS, 1, f"fate-{number}".encode(), value, [*headers, *key])


def test_a_dead_letter_that_cannot_be_put_back_hinders_no_other(topics: str) -> None:
    """Each says why, however often it is asked for; the others are put back once."""
    fates = [*FATES, ({"topic": WEBHOOKS, "partition": "1"}, "")]
    keys = [() if fields.get("topic") == ADMISSIONS else ((KEY, b"k"),) for fields, _ in FATES]
    letters = [
        fated(number, fields, *key)
        for number, ((fields, _), key) in enumerate(zip(fates, [*keys, ()], strict=True))
    ]
    details = [*(why for _, why in FATES), "no key, without which webhooks takes no record"]

    async def whole() -> None:
        appender = Appender(cluster=Cluster(topics), client_id="fates")
        log = DeadLetters(cluster=Cluster(topics), clock=now_ms)
        try:
            (at,) = await appender.acknowledged(await appender.send(letters))
            reported = await log.replay([(1, at + number) for number in range(len(letters))])
            assert [(item.ok, item.detail) for item in reported] == [
                (not why, why) for why in details
            ]
            refused = [item for item in reported if not item.ok]
            assert await log.replay([(1, item.offset) for item in refused]) == refused
        finally:
            await appender.stop()
            await log.stop()
        places = {f"1@{item.offset}": item for item in reported}
        back = [
            mark
            for topic in (WEBHOOKS, ADMISSIONS)
            for mark in await marks(topics, topic, REPLAY_OF, 1)
            if mark in places
        ]
        said = [mark for mark in await marks(topics, DEAD_LETTERS, REPLAYED, 1) if mark in places]
        put_back = [position for position, item in places.items() if item.ok]
        assert sorted(back) == sorted(said) == sorted(put_back)

    asyncio.run(whole())


def test_a_delivery_is_appended_again_as_it_was_and_one_that_is_gone_is_not(topics: str):
    partition, delivery = 1, a_delivery("again-1")
    key, value = b"again-1", encode(delivery)
    kept = [("ce_id", key)]

    async def whole() -> None:
        appender = Appender(cluster=Cluster(topics), client_id="again")
        log, letters = real_log(topics), DeadLetters(cluster=Cluster(topics), clock=now_ms)
        try:
            first = Outgoing(WEBHOOKS, partition, key, value, kept)
            tombstone = Outgoing(WEBHOOKS, partition, b"again-2", None)
            (at,) = await appender.acknowledged(await appender.send([first, tombstone]))
            places = [(partition, at), (partition, at + 1), (partition, at + 99), (77, 0)]
            named = ["again-1", "again-2", "again-3", "again-4"]
            again = await letters.reprocess(
                [
                    DeliveryToReplay(*one)
                    for one in zip(named, ((at,) for at in places), strict=True)
                ]
            )
            assert again == {"again-1": (partition, at + 2)}
            stored = [await log.read(*position) for position in [*places, (partition, at + 2)]]
        finally:
            await appender.stop()
            await letters.stop()
        assert [one and one.delivery for one in stored] == [delivery, None, None, None, delivery]
        assert stored[-1] is not None
        mark = ("headwater.replay_of", f"webhooks/{partition}@{at}")
        assert stored[-1].headers == (("ce_id", "again-1"), mark)

    asyncio.run(whole())


def test_headers_without_a_value_are_read(topics: str):
    """Kafka has such, and programs of others may add them."""
    null = cast("bytes", None)
    delivery = Outgoing(WEBHOOKS, 1, b"nulls", encode(a_delivery("nulls")), [("trace", null)])
    letter = Outgoing(DEAD_LETTERS, 1, b"nulls", b"v", [(CONNECT_PREFIX + "topic", null)])

    async def whole() -> None:
        appender = Appender(cluster=Cluster(topics), client_id="nulls")
        log, letters = real_log(topics), DeadLetters(cluster=Cluster(topics), clock=now_ms)
        try:
            first, second = await appender.acknowledged(await appender.send([delivery, letter]))
            stored = await log.read(1, first)
            assert stored is not None
            assert stored.headers == (("trace", ""),)
            (reported,) = await letters.replay([(1, second)])
            assert reported.detail == "not a dead letter"
        finally:
            await appender.stop()
            await letters.stop()

    asyncio.run(whole())


def test_many_that_are_appended_again_are_each_found_where_that_is_said(topics: str):
    """Of several partitions, in any order, each at the one of its positions where it is."""
    ids = [f"many-again-{number}" for number in range(300)]
    records = [
        Outgoing(WEBHOOKS, number % 4, item.encode(), encode(a_delivery(item)))
        for number, item in enumerate(ids)
    ]

    async def whole() -> None:
        appender = Appender(cluster=Cluster(topics), client_id="again")
        letters = DeadLetters(cluster=Cluster(topics), clock=now_ms)
        try:
            sent = await appender.send(records)
            firsts = await appender.acknowledged(sent)
            places = [
                (item.partition, first + number)
                for item, first in zip(sent, firsts, strict=True)
                for number in range(item.records)
            ]
            stored = await read_records_at(Cluster(topics), WEBHOOKS, places)
            at = {(stored[place].key or b"").decode(): place for place in places}
            Random(7).shuffle(places)
            deliveries = [
                DeliveryToReplay(item, (other, at[item]))
                for item, other in zip(ids, places, strict=True)
            ]
            again = await letters.reprocess(deliveries, "replay")
            assert again.keys() == at.keys()
            assert not set(again.values()) & set(places)
            result = await read_records_at(Cluster(topics), WEBHOOKS, list(again.values()))
            assert {item: (result[to].key or b"").decode() for item, to in again.items()} == {
                item: item for item in ids
            }
        finally:
            await appender.stop()
            await letters.stop()

    asyncio.run(whole())


@pytest.fixture
def spoilt(scratch: Path) -> Iterator[str]:
    """A broker of a test's own, for records that nobody else could read."""
    broker = ThrowawayKafka(scratch / "kafka of the gateway's log", port=0, report=print)
    try:
        address = broker.start()
        asyncio.run(create_topics(Cluster(address), partitions=2, replication=1))
        yield address
    finally:
        broker.kill()


def test_whoever_cannot_append_again_what_was_read_leaves_no_consumer_open(spoilt: str):
    """A record as large as they may be: with the mark of a replay it is too large."""

    async def too_large(appender: Appender) -> int:
        value = os.urandom(MAX_RECORD_BYTES)
        for left in range(64, 512, 8):
            record = Outgoing(WEBHOOKS, 1, b"large", value[left:])
            with contextlib.suppress(BrokerUnavailable):
                (offset,) = await appender.acknowledged(await appender.send([record]))
                return offset
        raise AssertionError("expected one that fits")

    async def whole() -> None:
        cluster = Cluster(spoilt)
        appender = Appender(cluster=cluster, client_id="large")
        letters = DeadLetters(cluster=cluster, clock=now_ms)
        try:
            position = (1, await too_large(appender))
            before = open_consumers()
            with pytest.raises(BrokerUnavailable, match="MessageSizeTooLarge"):
                await letters.reprocess([DeliveryToReplay("large", (position,))], "replay")
            assert open_consumers() == before
        finally:
            await appender.stop()
            await letters.stop()

    asyncio.run(whole())
