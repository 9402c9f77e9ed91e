"""Consuming the topic of a source: how much of what was fetched is one batch."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.kafka_sources import KafkaSource
from headwater.processors.sources import read_sources
from headwater.schemas.records import WebhookReceived
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.pipeline import topic_consumer
from headwater.streams.pipeline.topic_consumer import TopicConsumer
from headwater.streams.pipeline.webhook_log import Appended

SOURCE = '[[source]]\nname = "orders"\nkind = "kafka"\ntopic = "orders"\nformat = "json"\n'
ONE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Record(NamedTuple):
    partition: int
    offset: int
    topic: str = "orders"
    value: bytes = b"{}"
    key: None = None
    headers: tuple[()] = ()
    timestamp: int = 1_782_900_000_000


class Topic:
    """A consumer of aiokafka with two partitions; it ends the test when all is committed."""

    def __init__(self, records: int) -> None:
        self.records = {
            tp: [Record(tp.partition, at) for at in range(records)] for tp in (ONE, OTHER)
        }
        self.positions = {ONE: 0, OTHER: 0}
        self.committed: list[tuple[int, int]] = []
        self.polls = 0
        self.lost: TopicPartition | None = None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def getmany(self, **options: object) -> dict[TopicPartition, list[Record]]:
        del options
        self.polls += 1
        fetched = {tp: records[self.positions[tp] :] for tp, records in self.records.items()}
        fetched = {tp: records for tp, records in fetched.items() if records and tp != self.lost}
        if not fetched:
            raise asyncio.CancelledError
        for tp in fetched:
            self.positions[tp] = len(self.records[tp])
        return fetched

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.committed += [(tp.partition, offset) for tp, offset in offsets.items()]

    def seek(self, tp: TopicPartition, offset: int) -> None:
        if tp == self.lost:
            raise IllegalStateError(f"{tp} is not assigned")
        self.positions[tp] = offset


def source() -> KafkaSource:
    (result,) = read_sources(SOURCE, installed_providers())
    assert isinstance(result, KafkaSource)
    return result


def consume(
    monkeypatch: pytest.MonkeyPatch,
    topic: Topic,
    seconds: Callable[[], float],
    appending: Callable[[WebhookReceived], None] = lambda _: None,
) -> list[str]:
    """Consume a topic; return the positions of the appended deliveries."""
    appended: list[str] = []

    async def append(delivery: WebhookReceived) -> Any:  # noqa: ANN401 (a fake)
        appending(delivery)
        appended.append(delivery.request_id)
        return Appended(duplicate=False)

    monkeypatch.setattr(topic_consumer, "AIOKafkaConsumer", lambda *_, **__: topic)
    monkeypatch.setattr(topic_consumer, "monotonic", seconds)
    consumer = TopicConsumer(
        source(),
        cluster=Cluster("kafka:9092"),
        group="g",
        append=append,
        answered=lambda _: None,
        registry=None,
        evaluator=None,
        clock=lambda: 1_782_900_000_000,
    )

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await consumer.run()

    asyncio.run(run())
    return appended


def ticking(step_s: float) -> Callable[[], float]:
    """Return a clock that each reading advances."""
    now_s = 0.0

    def seconds() -> float:
        nonlocal now_s
        now_s += step_s
        return now_s

    return seconds


def test_what_was_fetched_is_one_batch_if_it_is_read_in_time(monkeypatch: pytest.MonkeyPatch):
    topic = Topic(20)
    appended = consume(monkeypatch, topic, ticking(0.001))
    assert (len(appended), topic.polls, topic.committed) == (40, 2, [(0, 20), (1, 20)])


def test_records_that_take_long_are_several_batches_which_are_committed(
    monkeypatch: pytest.MonkeyPatch,
):
    topic = Topic(20)
    appended = consume(monkeypatch, topic, ticking(5.0))
    assert sorted(appended) == sorted({f"orders/{p}@{at}" for p in (0, 1) for at in range(20)})
    assert topic.polls > 5
    assert topic.committed == sorted(topic.committed)
    assert topic.committed[-1] == (1, 20)


def test_a_batch_has_at_least_one_record(monkeypatch: pytest.MonkeyPatch):
    topic = Topic(3)
    consume(monkeypatch, topic, ticking(1_000.0))
    assert topic.committed == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


def test_the_rest_of_a_partition_that_was_revoked_is_dropped(monkeypatch: pytest.MonkeyPatch):
    topic = Topic(3)

    def revoke(delivery: WebhookReceived) -> None:
        if delivery.request_id == "orders/0@1":
            topic.lost = ONE

    appended = consume(monkeypatch, topic, ticking(1_000.0), revoke)
    assert appended == ["orders/0@0", "orders/0@1", *(f"orders/1@{at}" for at in range(3))]
