"""The gateway's log of deliveries on a real broker: the contract, and what happens without one."""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import cast

import pytest
from aiokafka import AIOKafkaConsumer
from litestar.testing import TestClient

from headwater.gateway.local.demo_day import demo_deliveries, terra_signature
from headwater.gateway.providers import installed_providers
from headwater.gateway.request_ids import ulid_source
from headwater.processors.providers.placement import Placement
from headwater.schemas.codec import decode, encode, record_name
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.records import RequestAnswered, WebhookReceived, WebhooksClaimed
from headwater.schemas.topics import ADMISSIONS, DEAD_LETTERS, MAX_RECORD_BYTES, TRACES, WEBHOOKS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender, Sent
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import (
    CONNECT_PREFIX,
    EXPIRED,
    KEY,
    REPLAY_OF,
    REPLAYED,
    text_header,
)
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.places import read_places
from headwater.streams.kafka.records import Outgoing, partition_of
from headwater.streams.kafka.topics import create_topics
from headwater.streams.pipeline import webhook_log
from headwater.streams.pipeline.answer_log import AnswerLog
from headwater.streams.pipeline.dead_letter_log import DeadLetters
from headwater.streams.pipeline.replaying import Again, DeliveryReplay
from headwater.streams.pipeline.webhook_log import WebhookLog
from tests.conftest import PARTITIONS
from tests.fakes.delivery_log import DeliveryLogContract, Scenario, a_delivery, an_answer
from tests.integration.consumers import open_consumers
from tests.integration.test_projector import forget
from tests.throwaway_kafka import ThrowawayKafka
from tests.unit.gateway.memory_app import memory_app
from tests.waiting import until

#: The port of nobody: refused at once.
NOBODY = "127.0.0.1:1"
PLACEMENT = Placement(installed_providers(), "user_")


def real_log(
    bootstrap: str, append_timeout_s: float = 60.0, producers: "FailingProducer | None" = None
) -> WebhookLog:
    return WebhookLog(
        cluster=Cluster(bootstrap),
        append_timeout_s=append_timeout_s,
        placement=PLACEMENT,
        clock=now_ms,
        producers=producers,
    )


class TestWebhookLog(DeliveryLogContract):
    @pytest.fixture(autouse=True)
    def _on(self, topics: str) -> None:
        self.bootstrap = topics

    def run(self, scenario: Scenario) -> None:
        async def whole() -> None:
            log = real_log(self.bootstrap)
            await log.start()
            try:
                await until(lambda: log.ready)
                await scenario(log)
            finally:
                await log.stop()

        asyncio.run(whole())


def test_without_a_broker_the_log_starts_is_not_ready_and_says_so() -> None:
    async def whole() -> None:
        log = real_log(NOBODY, append_timeout_s=0.3)
        await log.start()
        try:
            assert not log.ready
            with pytest.raises(BrokerUnavailable):
                await log.append(a_delivery("nobody-1"))
        finally:
            await log.stop()

    asyncio.run(whole())


class FailingProducer:
    """Takes what it is given, and loses it when the test says so."""

    def __init__(self) -> None:
        self.connects = 0
        self.under_way: list[asyncio.Future[None]] = []

    async def partitions(self, topic: str) -> int:
        self.connects += 1
        return 1

    async def send(self, records: Sequence[Outgoing]) -> list[Sent]:
        self.under_way.append(asyncio.get_running_loop().create_future())
        return [Sent(WEBHOOKS, 0, len(records), self.under_way[-1])]

    async def acknowledged(self, sent: Sequence[Sent]) -> list[int]:
        for batch in sent:
            await batch.acknowledged
        return [0 for _ in sent]

    def of(self, partition: int) -> "FailingProducer":
        return self

    def failed(self, partition: int, producer: "FailingProducer") -> None:
        assert producer is self

    async def stop(self, within_s: float) -> None:
        """Nothing is left to send."""


def test_the_next_append_is_when_the_last_one_ends_or_soon_if_that_is_slow() -> None:
    async def whole() -> None:
        producer = FailingProducer()
        log = real_log(NOBODY, 5.0, producer)
        await log.start()
        done: list[str] = []
        try:
            await until(lambda: log.ready)
            log.at_next_append(lambda: done.append("nothing under way"))
            await until(lambda: done == ["nothing under way"])
            appending = asyncio.create_task(log.append(a_delivery("next-1")))
            await until(lambda: len(producer.under_way) == 1)
            log.at_next_append(lambda: done.append("too slow"))
            await until(lambda: done[1:] == ["too slow"])
            assert not appending.done()
            log.at_next_append(lambda: done.append("ended"))
            producer.under_way[0].set_result(None)
            assert not (await appending).duplicate
            await until(lambda: done[2:] == ["ended"])
        finally:
            await log.stop()

    asyncio.run(whole())


def test_a_gateway_that_is_sent_nothing_is_ready_again_after_an_outage() -> None:
    async def whole() -> None:
        producer = FailingProducer()
        log = real_log(NOBODY, 0.1, producer)
        await log.start()
        try:
            await until(lambda: log.ready)
            with pytest.raises(BrokerUnavailable):
                await log.append(a_delivery("outage-1"))
            assert not log.ready
            producer.under_way[0].set_exception(BrokerUnavailable("expected an acknowledgement"))
            await until(lambda: producer.connects == 2)
            await until(lambda: log.ready)
        finally:
            await log.stop()

    asyncio.run(whole())


def app_on(bootstrap: str, append_timeout_s: float = 60.0) -> TestClient:
    app = memory_app(
        log=real_log(bootstrap, append_timeout_s),
        answers=AnswerLog(cluster=Cluster(bootstrap)),
        replays=DeadLetters(cluster=Cluster(bootstrap), clock=now_ms),
        clock=now_ms,
        new_request_id=ulid_source(now_ms, os.urandom),
    )
    return TestClient(app)


def signed(body: bytes) -> dict[str, str]:
    return {"terra-signature": terra_signature("dev-terra-secret", body, now_ms() // 1000)}


def test_without_a_broker_deliveries_are_503_and_the_gateway_is_not_ready() -> None:
    body = demo_deliveries()[0].body
    with app_on(NOBODY, append_timeout_s=0.3) as client:
        answer = client.post("/webhooks/terra", content=body, headers=signed(body))
        assert (answer.status_code, answer.json()["code"]) == (503, "broker_unavailable")
        assert answer.headers["retry-after"]
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200


def test_what_was_answered_ok_is_in_kafka_byte_for_byte(topics: str) -> None:
    answers = {}
    with app_on(topics) as client:
        asyncio.run(until(lambda: client.get("/health/ready").is_success))
        for delivery in demo_deliveries():
            answer = client.post(
                "/webhooks/terra", content=delivery.body, headers=signed(delivery.body)
            )
            assert answer.status_code == 200
            answers[answer.json()["raw_event_id"]] = (delivery.body, answer.json()["request_id"])
            again = client.post("/terra", content=delivery.body, headers=signed(delivery.body))
            assert again.json()["duplicate"]

    ours = {event_id.encode() for event_id in answers}

    async def appended() -> dict[str, tuple[bytes, str]]:
        found = {}
        for partition in range(PARTITIONS):
            async for records in read_partition(Cluster(topics), ["webhooks"], partition):
                # Other tests write there, too, and what no delivery looks like.
                for record in (each for each in records if each.key in ours):
                    delivery = decode(record.value, WebhookReceived)
                    assert record.key == delivery.event_id.encode()
                    owner = PLACEMENT.owner_of(delivery).encode()
                    assert partition == partition_of(owner, PARTITIONS)
                    found[delivery.event_id] = (delivery.body, delivery.request_id)
        return found

    found = asyncio.run(appended())
    assert found == answers


def test_dead_letters_that_do_not_exist_are_not_replayed(topics: str) -> None:
    body = {"positions": [{"partition": 0, "offset": 99}, {"partition": 77, "offset": 0}]}
    with app_on(topics) as client:
        answer = client.post(
            "/admin/dlq/replay", json=body, headers={"x-admin-key": "dev-admin-key"}
        ).json()
    assert (answer["replayed"], answer["failed"]) == (0, 2)
    assert [result["detail"][:8] for result in answer["results"]] == ["no such ", "no such "]


def test_copies_and_refusals_have_a_record_in_kafka(topics: str) -> None:
    body = b'{"type":"daily","user":{"user_id":"answers"},"data":[]}'
    with app_on(topics) as client:
        asyncio.run(until(lambda: client.get("/health/ready").is_success))
        first = client.post("/webhooks/terra", content=body, headers=signed(body)).json()

        async def answered() -> dict[str, RequestAnswered]:
            found = {}
            for partition in range(PARTITIONS):
                async for records in read_partition(Cluster(topics), [TRACES], partition):
                    for record in records:
                        if record_name(record.value) == "request_answered":
                            answer = decode(record.value, RequestAnswered)
                            assert record.key == answer.request_id.encode()
                            found[answer.request_id] = answer
            return {name: found[name] for name in ("a-copy-1", "unsigned-1") if name in found}

        copy, unsigned = {"x-request-id": "a-copy-1"}, {"x-request-id": "unsigned-1"}
        found: dict[str, RequestAnswered] = {}
        for _ in range(100):  # The first may come before the topic is known.
            client.post("/terra", content=body, headers={**signed(body), **copy})
            client.post("/terra", content=body, headers=unsigned)
            found = asyncio.run(answered())
            if len(found) == len((copy, unsigned)):
                break
    assert found["a-copy-1"].event_id == first["raw_event_id"]
    assert found["a-copy-1"].code == "duplicate"
    assert (found["unsigned-1"].code, found["unsigned-1"].reason) == (
        "invalid_signature",
        "missing_header",
    )


def test_answers_without_a_broker_are_counted_and_nobody_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def whole() -> None:
        log = AnswerLog(cluster=Cluster(NOBODY))
        await log.start()
        for number in range(3):
            log.record(an_answer(f"request-{number}"))
        await log.stop()

    asyncio.run(whole())
    assert any("have no trace: 3" in message for message in caplog.messages)


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
    return [text_header(each, header) async for records in reading for each in records]


def test_a_dead_letter_that_its_topic_has_no_more_is_marked(topics: str) -> None:
    partition = 2

    gone = asyncio.run(expire(topics, partition))
    body = {"positions": [{"partition": partition, "offset": gone}]}
    with app_on(topics) as client:
        answer = client.post(
            "/admin/dlq/replay", json=body, headers={"x-admin-key": "dev-admin-key"}
        ).json()
    assert (answer["replayed"], answer["failed"]) == (0, 1)
    assert answer["results"][0]["detail"].startswith("expired: the topic has")
    assert f"{partition}@{gone}" in asyncio.run(marks(topics, DEAD_LETTERS, EXPIRED, partition))


def test_a_place_that_has_no_record_yet_is_not_marked(topics: str) -> None:
    """Though the topic grows while it is looked for: by the mark of the one before it."""
    partition = 1
    gone = asyncio.run(expire(topics, partition))
    positions = [{"partition": partition, "offset": each} for each in (gone, gone + 1)]
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
NO_KEY = "no key, and webhooks takes no record without one"


def fated(number: int, fields: dict[str, str], *key: tuple[str, bytes]) -> Outgoing:
    headers = [(CONNECT_PREFIX + name, value.encode()) for name, value in fields.items()]
    # What is put back is read by other tests, too.
    claimed = encode(WebhooksClaimed(["fate"], [0], 0))
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
            told = await log.replay([(1, at + number) for number in range(len(letters))])
            assert [(each.ok, each.detail) for each in told] == [(not why, why) for why in details]
            refused = [each for each in told if not each.ok]
            assert await log.replay([(1, each.offset) for each in refused]) == refused
        finally:
            await appender.stop()
            await log.stop()
        places = {f"1@{each.offset}": each for each in told}
        back = [
            each
            for topic in (WEBHOOKS, ADMISSIONS)
            for each in await marks(topics, topic, REPLAY_OF, 1)
            if each in places
        ]
        said = [each for each in await marks(topics, DEAD_LETTERS, REPLAYED, 1) if each in places]
        put_back = [place for place, each in places.items() if each.ok]
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
            again = await letters.again(places)
            assert [one.again_at for one in again] == [at + 2, None, None, None]
            stored = [await log.read(*place) for place in [*places, (partition, at + 2)]]
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
            (told,) = await letters.replay([(1, second)])
            assert told.detail == "not a dead letter"
        finally:
            await appender.stop()
            await letters.stop()

    asyncio.run(whole())


def test_many_that_are_appended_again_are_each_found_where_that_is_said(topics: str):
    """Of several partitions, in any order, two of them asked for twice."""
    ids = [f"many-again-{number}" for number in range(300)]
    records = [
        Outgoing(WEBHOOKS, number % 4, each.encode(), encode(a_delivery(each)))
        for number, each in enumerate(ids)
    ]

    async def whole() -> None:
        appender = Appender(cluster=Cluster(topics), client_id="again")
        letters = DeadLetters(cluster=Cluster(topics), clock=now_ms)
        try:
            sent = await appender.send(records)
            firsts = await appender.acknowledged(sent)
            places = [
                (each.partition, first + number)
                for each, first in zip(sent, firsts, strict=True)
                for number in range(each.records)
            ]
            Random(7).shuffle(places)
            again = await letters.again([*places, *places[:2]])
            assert [(one.partition, one.offset) for one in again] == [*places, *places[:2]]
            to = [(one.partition, one.again_at or -1) for one in again]
            assert len(set(to)) == len(ids), "each was appended once, wherever it was asked for"
            found = await read_places(Cluster(topics), WEBHOOKS, [*places, *to])
            assert [found[place].key for place in to] == [
                found[place].key for place in [*places, *places[:2]]
            ]
        finally:
            await appender.stop()
            await letters.stop()

    asyncio.run(whole())


def test_a_start_looks_back_at_the_last_admissions_alone(topics: str):
    """More of them would only be read: what is older, intake knows."""
    partition = 3
    claims = [
        Outgoing(ADMISSIONS, partition, None, encode(WebhooksClaimed([f"{number:032x}"], [0], 0)))
        for number in range(1_500)
    ]

    async def whole() -> None:
        appender = Appender(cluster=Cluster(topics), client_id="claims")
        await appender.append(claims)
        await appender.stop()
        log = real_log(topics)
        await log.start()
        try:
            await until(lambda: f"{1_499:032x}" in log._known)
            assert f"{500:032x}" in log._known
            assert f"{499:032x}" not in log._known
        finally:
            await log.stop()

    asyncio.run(whole())


def test_work_in_the_background_goes_on_after_an_error_that_nobody_expected(
    topics: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    starts = count()

    class FailsOnce(AIOKafkaConsumer):
        async def start(self) -> None:
            if next(starts) == 0:
                raise RuntimeError("a fault of the library")
            await super().start()

    monkeypatch.setattr(webhook_log, "AIOKafkaConsumer", FailsOnce)
    claimed = encode(WebhooksClaimed(["f" * 32], [0], 0))

    async def whole() -> None:
        log = real_log(topics)
        await log.start()
        appender = Appender(cluster=Cluster(topics), client_id="claims")
        await appender.append([Outgoing(ADMISSIONS, 0, None, claimed)])
        await appender.stop()
        try:
            await until(lambda: "f" * 32 in log._known)
        finally:
            await log.stop()

    asyncio.run(whole())
    assert "a fault of the library" in caplog.text


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
        replay = DeliveryReplay(cluster)
        try:
            place = (1, await too_large(appender))
            before = open_consumers()
            with pytest.raises(BrokerUnavailable) as one:
                await letters.again([place])
            with pytest.raises(BrokerUnavailable) as other:
                await replay.again([Again("large", (place,), has_had_effects=False)], "replay")
            assert all("MessageSizeTooLarge" in str(each.value) for each in (one, other))
            assert open_consumers() == before
        finally:
            await appender.stop()
            await letters.stop()
            await replay.stop()

    asyncio.run(whole())
