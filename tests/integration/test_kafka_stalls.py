"""A broker that stands still: what its clients hold, and what of it comes into the log."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest

from headwater.processors.providers.provider import Placement
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import PauseRun
from headwater.schemas.topics import DEAD_LETTERS, WEBHOOKS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.readers import iter_records_at, read_partition
from headwater.streams.kafka.records import Outgoing, partition_of
from headwater.streams.kafka.topics import create_topics
from headwater.streams.pipeline.webhook_log import WebhookLog
from headwater.streams.workflows import publishing
from headwater.streams.workflows.client import OutcomeUnknown
from tests.conftest import PARTITIONS
from tests.fakes.delivery_log import a_delivery
from tests.integration.test_publishing import Told, a_topic, found_in, posts
from tests.suspended import suspended
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import until
from tests.workflow_parts import a_client


class Broker:
    """A broker of these tests alone, which can be suspended."""

    def __init__(self, embedded: EmbeddedKafka, bootstrap: str) -> None:
        self._embedded = embedded
        self.bootstrap = bootstrap

    @contextmanager
    def suspended(self) -> Iterator[None]:
        pid = self._embedded.pid
        assert pid is not None
        with suspended(pid):
            yield


@pytest.fixture(scope="module")
def broker(scratch: Path) -> Iterator[Broker]:
    embedded = ThrowawayKafka(scratch / "kafka that stalls", port=0, report=print)
    try:
        bootstrap = embedded.start()
        asyncio.run(create_topics(Cluster(bootstrap), partitions=PARTITIONS, replication=1))
        yield Broker(embedded, bootstrap)
    finally:
        embedded.kill()


def webhook_log(broker: Broker, append_timeout_s: float) -> WebhookLog:
    return WebhookLog(
        cluster=Cluster(broker.bootstrap),
        append_timeout_s=append_timeout_s,
        placement=Placement({}, "user_"),
        clock=now_ms,
    )


async def durable(log: WebhookLog, event_ids: Sequence[str]) -> None:
    """Sends deliveries again and again, as a producer would, until each is answered."""
    async with asyncio.timeout(60):
        unanswered = list(event_ids)
        while unanswered:
            sends = (log.append(a_delivery(event_id)) for event_id in unanswered)
            answers = await asyncio.gather(*sends, return_exceptions=True)
            unanswered = [
                event_id
                for event_id, answer in zip(unanswered, answers, strict=True)
                if isinstance(answer, BaseException)
            ]


async def copies(bootstrap: str, topic: str) -> Counter[bytes]:
    """How often each key is in a topic."""
    result: Counter[bytes] = Counter()
    for partition in range(PARTITIONS):
        async for records in read_partition(Cluster(bootstrap), [topic], partition):
            result.update(record.key or b"" for record in records)
    return result


def test_deliveries_that_are_sent_again_while_kafka_stalls_are_in_the_log_once(broker: Broker):
    async def whole() -> None:
        log = webhook_log(broker, 0.3)
        await log.start()
        await until(lambda: log.ready)
        await durable(log, ["before"])
        deliveries = [a_delivery(f"stalled-{number}") for number in range(1_500)]
        with broker.suspended():
            for _ in range(4):
                answers = await asyncio.gather(*map(log.append, deliveries), return_exceptions=True)
                assert all(isinstance(answer, BrokerUnavailable) for answer in answers)
            assert not log.ready
        await durable(log, [delivery.event_id for delivery in deliveries])
        assert log.ready
        await log.stop()
        result = await copies(broker.bootstrap, "webhooks")
        assert {result[delivery.event_id.encode()] for delivery in deliveries} == {1}

    asyncio.run(whole())


def test_deliveries_that_nobody_waits_for_any_more_are_never_sent(broker: Broker):
    async def whole() -> None:
        log = webhook_log(broker, 0.3)
        await log.start()
        await until(lambda: log.ready)
        left = [a_delivery(f"left-{number}") for number in range(5_000)]
        with broker.suspended():
            answers = await asyncio.gather(*map(log.append, left), return_exceptions=True)
            assert all(isinstance(answer, BrokerUnavailable) for answer in answers)
        await durable(log, [f"later-{number}" for number in range(100)])
        await log.stop()
        result = await copies(broker.bootstrap, "webhooks")
        # A group of each partition is with the producer at most; the others were taken back.
        assert sum(result[item.event_id.encode()] for item in left) <= PARTITIONS * 500

    asyncio.run(whole())


def test_commands_that_nobody_waits_for_any_more_are_never_sent(broker: Broker):
    async def whole() -> None:
        not_sent: list[bool] = []
        client = a_client(broker.bootstrap, "impatient", timeout_s=0.3)
        await client.start()
        await until(lambda: client.ready)
        with broker.suspended():
            for _ in range(5):
                try:
                    await client.send("stalled", "one", PauseRun())
                except BrokerUnavailable as error:
                    not_sent.append("they were not sent" in error.message)
                except OutcomeUnknown:
                    not_sent.append(False)
        # Whoever waits for this one does so with a worker that answers; here there is none.
        with pytest.raises((OutcomeUnknown, BrokerUnavailable)):
            await client.send("stalled", "one", PauseRun())
        await client.stop()
        result = await copies(broker.bootstrap, "workflow-commands")
        # Two groups of a partition are with the producer at most; the others were taken back, and
        # who sent them was told.
        assert sum(not_sent) >= 3
        assert sum(result.values()) <= 6 - sum(not_sent)

    asyncio.run(whole())


def test_a_reader_that_gets_nothing_says_which_offset_it_waits_for(broker: Broker):
    async def whole() -> None:
        partition = partition_of(a_delivery("read").subject.encode(), PARTITIONS)
        log = webhook_log(broker, 5)
        await log.start()
        await until(lambda: log.ready)
        await durable(log, ["read"])
        await log.stop()
        reading = read_partition(
            Cluster(broker.bootstrap), ["webhooks"], partition, end=10**6, stall_s=0.5
        )
        offsets: list[int] = []

        async def read() -> None:
            async for records in reading:
                offsets.extend(record.offset for record in records)

        with pytest.raises(BrokerUnavailable) as error:
            await read()
        expected = f"expected more of webhooks/{partition}@{offsets[-1] + 1} up to 1000000 "
        assert error.value.message.startswith(expected)

    asyncio.run(whole())


def test_a_reader_of_single_records_gives_up_while_kafka_stalls(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headwater.streams.kafka.readers._LOOKUP_STALL_S", 1.0)
    cluster, partition = Cluster(broker.bootstrap), 1

    async def whole() -> None:
        appender = Appender(cluster=cluster, client_id="places")
        sent = await appender.send([Outgoing(DEAD_LETTERS, partition, b"k", b"v")] * 2_000)
        first, *_ = await appender.acknowledged(sent)
        await appender.stop()
        # Too far from each other to be read over.
        places = [(partition, first), (partition, first + 1_999)]
        async with (
            asyncio.timeout(60),
            aclosing(iter_records_at(cluster, DEAD_LETTERS, places)) as read,
        ):
            assert [one.offset for one in await anext(read)] == [first]
            with broker.suspended(), pytest.raises(BrokerUnavailable, match="2 records of dead-"):
                await anext(read)

    asyncio.run(whole())


def test_a_reader_that_reads_for_long_says_how_far_it_is(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("headwater.streams.kafka.readers._REPORT_EVERY_S", 0.0)
    caplog.set_level("INFO", "headwater.streams.kafka.readers")
    cluster, partition = Cluster(broker.bootstrap), 3

    async def whole() -> None:
        appender = Appender(cluster=cluster, client_id="long")
        await appender.append([Outgoing(DEAD_LETTERS, partition, b"k", b"v")] * 3_000)
        await appender.stop()
        async for _ in read_partition(cluster, [DEAD_LETTERS], partition):
            pass

    asyncio.run(whole())
    assert "reading dead-letters/3@1000 up to 3000" in caplog.messages


def test_a_reader_reads_from_an_offset_up_to_an_end_and_not_beyond(broker: Broker):
    async def whole() -> None:
        log = webhook_log(broker, 5)
        await log.start()
        await until(lambda: log.ready)
        await durable(log, [f"many {number}" for number in range(50)])
        await log.stop()
        async for records in read_partition(Cluster(broker.bootstrap), ["webhooks"], 0):
            last = records[-1].offset
        reading = read_partition(
            Cluster(broker.bootstrap), ["webhooks"], 0, start=last - 3, end=last
        )
        offsets = [record.offset async for records in reading for record in records]
        assert offsets == [last - 3, last - 2, last - 1]
        reading = read_partition(Cluster(broker.bootstrap), ["webhooks"], 0, start=last, end=last)
        assert [records async for records in reading] == []

    asyncio.run(whole())


def test_stopping_while_kafka_stalls_ends_and_leaves_nothing_behind(
    broker: Broker, caplog: pytest.LogCaptureFixture
):
    async def whole() -> None:
        log = webhook_log(broker, 60)
        await log.start()
        await until(lambda: log.ready)
        with broker.suspended():
            waiting = [
                asyncio.create_task(log.append(a_delivery(f"never {number}")))
                for number in range(10)
            ]
            await asyncio.wait(waiting, timeout=0.1)
            async with asyncio.timeout(60):
                await log.stop()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(answer, BrokerUnavailable) for answer in answers)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_producer_that_is_stopped_while_it_connects_leaves_nothing_behind(
    broker: Broker, caplog: pytest.LogCaptureFixture
):
    async def whole() -> None:
        appender = Appender(cluster=Cluster(broker.bootstrap), client_id="in vain")
        appending = asyncio.create_task(appender.append([Outgoing(WEBHOOKS, 0, b"key", None)]))
        await asyncio.sleep(0)
        await appender.stop()
        with pytest.raises(BrokerUnavailable, match="was stopped"):
            await appending
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_transaction_ends_in_time_while_kafka_stalls_and_what_it_held_is_published_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(publishing, "_TRANSACTION_S", 1.0)
    monkeypatch.setattr(publishing, "_STOP_S", 0.5)

    async def whole() -> None:
        topic, reported = await a_topic(broker.bootstrap), Told()
        publisher = publishing.Publisher(
            cluster=Cluster(broker.bootstrap), partition=0, topic=topic, sent=reported
        )
        running = asyncio.create_task(publisher.run())
        publisher.queue("a", posts(topic, (0, 5)))
        await reported.until(1)
        with broker.suspended():
            publisher.queue("a", posts(topic, (1, 7)))
            await until(lambda: "have to wait" in caplog.text)
        await reported.until(2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await found_in(broker.bootstrap, topic) == [("a#0", "0"), ("a#1", "1")]

    asyncio.run(whole())
