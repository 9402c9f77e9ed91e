"""The gateway's log of deliveries on a real broker: the contract, and what happens without one."""

import asyncio
import os
from collections.abc import Sequence
from itertools import count

import pytest
from aiokafka import AIOKafkaConsumer
from litestar.testing import TestClient

from headwater.gateway.client.requests import ulid_source
from headwater.gateway.local.demo_day import demo_deliveries, terra_signature
from headwater.gateway.settings.providers import installed_providers
from headwater.processors.providers.provider import Placement
from headwater.schemas.codec import decode, encode, record_name
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.records import RequestAnswered, WebhookReceived, WebhooksClaimed
from headwater.schemas.topics import ADMISSIONS, TRACES, WEBHOOKS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender, Sent
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Outgoing, partition_of
from headwater.streams.pipeline import webhook_log
from headwater.streams.pipeline.reprocessing import DeadLetters
from headwater.streams.pipeline.request_logs import AnswerLog
from headwater.streams.pipeline.webhook_log import WebhookLog
from tests.conftest import PARTITIONS
from tests.fakes.delivery_log import DeliveryLogContract, Scenario, a_delivery, an_answer
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
        self.sent: list[list[str]] = []

    async def partitions(self, topic: str) -> int:
        self.connects += 1
        return 1

    async def send(self, records: Sequence[Outgoing]) -> list[Sent]:
        self.under_way.append(asyncio.get_running_loop().create_future())
        self.sent.append([(record.key or b"").decode() for record in records])
        return [Sent(WEBHOOKS, 0, len(records), self.under_way[-1])]

    async def acknowledged(self, sent: Sequence[Sent]) -> list[int]:
        for batch in sent:
            await batch.acknowledged
        return [0 for _ in sent]

    def acknowledge(self) -> bool:
        for batch in self.under_way:
            if not batch.done():
                batch.set_result(None)
        return True

    def producer_for(self, partition: int) -> "FailingProducer":
        return self

    def replace_failed(self, partition: int, producer: "FailingProducer") -> None:
        assert producer is self

    async def stop(self, within_s: float) -> None:
        """Nothing is left to send."""


class Prepared:
    """Makes a delivery of each name, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, names: Sequence[str]) -> list[WebhookReceived]:
        self.batches.append(list(names))
        return [a_delivery(name) for name in names]


def test_a_batch_is_prepared_when_the_last_append_ends_or_soon_if_that_is_slow() -> None:
    async def whole() -> None:
        producer, prepared = FailingProducer(), Prepared()
        log = real_log(NOBODY, 5.0, producer)
        await log.start()
        try:
            await until(lambda: log.ready)
            appending = [
                asyncio.create_task(log.append_prepared(name, prepared))
                for name in ("nothing under way", "either")
            ]
            await until(lambda: prepared.batches == [["nothing under way", "either"]])
            await until(lambda: len(producer.under_way) == 1)
            appending.append(asyncio.create_task(log.append_prepared("too slow", prepared)))
            await until(lambda: prepared.batches[1:] == [["too slow"]])
            assert not any(one.done() for one in appending)
            appending.append(asyncio.create_task(log.append_prepared("ended", prepared)))
            await asyncio.sleep(0)
            producer.under_way[0].set_result(None)
            await until(lambda: prepared.batches[2:] == [["ended"]])
            await until(lambda: producer.acknowledge() and all(one.done() for one in appending))
            assert not any(one.result().duplicate for one in appending)
        finally:
            await log.stop()

    asyncio.run(whole())


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_gives_up_is_not_prepared_or_its_delivery_is_withdrawn(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not begun:  # The batch must not be due before the request gives up.
        monkeypatch.setattr(webhook_log, "_BUSY_S", 60.0)

    async def whole() -> None:
        producer, prepared = FailingProducer(), Prepared()
        log = real_log(NOBODY, 5.0, producer)
        await log.start()
        try:
            await until(lambda: log.ready)
            first = asyncio.create_task(log.append_prepared("first", prepared))
            await until(lambda: len(producer.under_way) == 1)
            gives_up = asyncio.create_task(log.append_prepared("gives up", prepared))
            await asyncio.sleep(0)
            if begun:
                await until(lambda: len(prepared.batches) == 2)
            gives_up.cancel()
            await asyncio.wait([gives_up])
            stays = asyncio.create_task(log.append_prepared("stays", prepared))
            producer.under_way[0].set_result(None)
            await until(lambda: len(producer.under_way) == 2)
            producer.under_way[1].set_result(None)
            assert not (await first).duplicate
            assert not (await stays).duplicate
            assert prepared.batches[1:] == ([["gives up"], ["stays"]] if begun else [["stays"]])
            assert producer.sent[1:] == [["stays"]]
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
        result = {}
        for partition in range(PARTITIONS):
            async for records in read_partition(Cluster(topics), ["webhooks"], partition):
                # Other tests write there, too, and what no delivery looks like.
                for record in (record for record in records if record.key in ours):
                    delivery = decode(record.value, WebhookReceived)
                    assert record.key == delivery.event_id.encode()
                    owner = PLACEMENT.owner_of(delivery).encode()
                    assert partition == partition_of(owner, PARTITIONS)
                    result[delivery.event_id] = (delivery.body, delivery.request_id)
        return result

    actual = asyncio.run(appended())
    assert actual == answers


def test_copies_and_refusals_have_a_record_in_kafka(topics: str) -> None:
    body = b'{"type":"daily","user":{"user_id":"answers"},"data":[]}'
    with app_on(topics) as client:
        asyncio.run(until(lambda: client.get("/health/ready").is_success))
        first = client.post("/webhooks/terra", content=body, headers=signed(body)).json()

        async def answered() -> dict[str, RequestAnswered]:
            result = {}
            for partition in range(PARTITIONS):
                async for records in read_partition(Cluster(topics), [TRACES], partition):
                    for record in records:
                        if record_name(record.value) == "request_answered":
                            answer = decode(record.value, RequestAnswered)
                            assert record.key == answer.request_id.encode()
                            result[answer.claimed_request_id or answer.request_id] = answer
            return {name: result[name] for name in ("a-copy-1", "unsigned-1") if name in result}

        copy, unsigned = {"x-request-id": "a-copy-1"}, {"x-request-id": "unsigned-1"}
        actual: dict[str, RequestAnswered] = {}
        for _ in range(100):  # The first may come before the topic is known.
            client.post("/terra", content=body, headers={**signed(body), **copy})
            client.post("/terra", content=body, headers=unsigned)
            actual = asyncio.run(answered())
            if len(actual) == len((copy, unsigned)):
                break
    assert actual["a-copy-1"].event_id == first["raw_event_id"]
    assert actual["a-copy-1"].code == "duplicate"
    assert (actual["unsigned-1"].code, actual["unsigned-1"].reason) == (
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
    assert any("without a trace: 3" in message for message in caplog.messages)


def test_a_start_looks_back_at_the_last_admissions_alone(topics: str):
    """More of them would only be read: what is older, intake knows."""
    partition = 3
    claims = [
        Outgoing(
            ADMISSIONS, partition, None, encode(WebhooksClaimed([f"{number:032x}"], [0], [0], 0))
        )
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
    claimed = encode(WebhooksClaimed(["f" * 32], [0], [0], 0))

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
