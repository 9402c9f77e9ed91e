"""Goal: what steps publish is in its topic once, whoever dies between sending it and noting that.

Method: publishers of one partition that follow each other on a real broker, as owners do, with the
posts that each of them would be handed by the log.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.trace_context import TraceContext
from headwater.schemas.history import Post
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.topics import create_authors_topics
from headwater.streams.workflows.publishing import (
    PORTION_BYTES,
    PORTION_RECORDS,
    PendingRecord,
    Publisher,
    Publishing,
    portion,
)

PARTITIONS = 2
_NAMES = itertools.count(1)


async def a_topic(bootstrap: str) -> str:
    name = f"published-{next(_NAMES)}"
    size = {"partitions": PARTITIONS, "replication": 1}
    assert await create_authors_topics(Cluster(bootstrap), [name], **size) == [name]
    return name


async def found_in(bootstrap: str, topic: str) -> list[tuple[str, str]]:
    """Number and value of every record that is committed, in the order of each partition."""
    records = await records_in(bootstrap, topic)
    return [
        (dict(record.headers)["headwater-id"].decode(), str(record.value or b"", "utf-8"))
        for record in records
    ]


async def records_in(bootstrap: str, topic: str) -> list[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    await consumer.start()
    try:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)
        result: list[Any] = []
        while [
            position for position in places if await consumer.position(position) < ends[position]
        ]:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                result += records
        return result
    finally:
        await consumer.stop()


def posts(topic: str, *places: tuple[int, int]) -> list[Post]:
    """Records of one instance, from (number, order)."""
    return [
        Post(number, topic=topic, key="k", value=str(number), order=at) for number, at in places
    ]


class Told:
    """Whose posts are durable."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, int]] = []
        self._news = asyncio.Event()

    def __call__(self, key: str, number: int) -> None:
        self.posts.append((key, number))
        self._news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.posts) < count:
                await self._news.wait()
                self._news.clear()


async def publish(bootstrap: str, topic: str, handed: list[tuple[str, list[Post]]]) -> Told:
    """Lets an owner of partition 0 publish, to the end."""
    reported = Told()
    publisher = Publisher(cluster=Cluster(bootstrap), partition=0, topic=topic, sent=reported)
    for key, group in handed:
        publisher.queue(key, group)
    running = asyncio.create_task(publisher.run())
    try:
        await reported.until(sum(len(group) for _, group in handed))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return reported


def play(bootstrap: str, scene: Callable[[str, str], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        await scene(bootstrap, await a_topic(bootstrap))

    asyncio.run(whole())


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Waits until somebody says so."""
    async with asyncio.timeout(60):
        while text not in caplog.text:  # noqa: ASYNC110 (a log has no event)
            await asyncio.sleep(0.05)


def test_records_of_an_instance_keep_their_order(topics: str):
    async def scene(bootstrap: str, topic: str) -> None:
        reported = await publish(bootstrap, topic, [("a", posts(topic, (0, 5), (1, 5), (3, 9)))])
        assert reported.posts == [("a", 0), ("a", 1), ("a", 3)]
        assert await found_in(bootstrap, topic) == [("a#0", "0"), ("a#1", "1"), ("a#3", "3")]

    play(topics, scene)


def test_a_record_continues_the_trace_of_its_run(topics: str):
    run = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1, "a=1")

    async def scene(bootstrap: str, topic: str) -> None:
        (post,) = posts(topic, (0, 5))
        traced = msgspec.structs.replace(post, trace=run.text)
        await publish(bootstrap, topic, [("a", [traced])])
        (record,) = await records_in(bootstrap, topic)
        assert [(name, value.decode()) for name, value in record.headers] == [
            *[("headwater-id", "a#0"), ("traceparent", run.traceparent), ("tracestate", "a=1")]
        ]

    play(topics, scene)


def test_what_has_waited_for_long_is_published_in_portions(topics: str):
    async def scene(bootstrap: str, topic: str) -> None:
        count = 2 * PORTION_RECORDS + 7
        # Three records have the same order, wherever that is: they stay together.
        reported = await publish(
            bootstrap, topic, [("a", posts(topic, *((n, n // 3) for n in range(count))))]
        )
        assert reported.posts == [("a", number) for number in range(count)]
        assert await found_in(bootstrap, topic) == [(f"a#{n}", str(n)) for n in range(count)]

    play(topics, scene)


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 3)), min_size=1, max_size=8))
def test_portions_are_bounded_and_part_no_order(orders: list[tuple[int, int]]):
    waiting = [
        PendingRecord("a", Post(0, topic="t", value=mebibytes * 1024 * 1024 * "x", order=order))
        for order, (count, mebibytes) in enumerate(orders)
        for _ in range(count if not mebibytes else min(count, 5))
    ]
    left = waiting
    while left:
        taken = portion(left)
        rest = left[len(taken) :]
        assert taken
        assert not rest or rest[0].post.order > taken[-1].post.order
        before = [item for item in taken if item.post.order < taken[-1].post.order]
        assert len(before) < PORTION_RECORDS
        assert sum(len(item.post.value or "") for item in before) < PORTION_BYTES
        left = rest


def test_what_was_published_is_not_sent_again_by_the_next_owner(topics: str):
    async def scene(bootstrap: str, topic: str) -> None:
        first = [("a", posts(topic, (0, 5))), ("b", posts(topic, (0, 7)))]
        await publish(bootstrap, topic, first)
        # That they are sent was lost with the owner: the log hands them over again.
        left = [("b", posts(topic, (0, 7))), ("a", posts(topic, (0, 5), (1, 8)))]
        reported = await publish(bootstrap, topic, left)
        assert sorted(reported.posts) == [("a", 0), ("a", 1), ("b", 0)]
        assert sorted(await found_in(bootstrap, topic)) == [
            ("a#0", "0"),
            ("a#1", "1"),
            ("b#0", "0"),
        ]

    play(topics, scene)


def test_an_open_transaction_of_the_owner_before_is_undone(
    topics: str, monkeypatch: pytest.MonkeyPatch
):
    async def scene(bootstrap: str, topic: str) -> None:
        zombie = Publisher(cluster=Cluster(bootstrap), partition=0, topic=topic, sent=Told())
        sending, goes_on = asyncio.Event(), asyncio.Event()
        producer = await zombie._begin()
        commit = producer.commit_transaction

        async def suspended() -> None:
            sending.set()
            await goes_on.wait()
            await commit()

        monkeypatch.setattr(producer, "commit_transaction", suspended)
        zombie.queue("a", posts(topic, (0, 5), (1, 5)))
        late = asyncio.create_task(zombie._transact(producer, list(zombie._waiting)))
        await sending.wait()
        await publish(bootstrap, topic, [("a", posts(topic, (0, 5), (1, 5), (2, 12)))])
        goes_on.set()
        with pytest.raises(KafkaError):
            await late
        await zombie._end_producer()
        assert await found_in(bootstrap, topic) == [("a#0", "0"), ("a#1", "1"), ("a#2", "2")]

    play(topics, scene)


def test_a_topic_that_is_not_there_holds_up_no_other(topics: str, caplog: pytest.LogCaptureFixture):
    async def scene(bootstrap: str, topic: str) -> None:
        reported = Told()
        publishing = Publishing(
            cluster=Cluster(bootstrap), sent=lambda partition, key, number: reported(key, number)
        )
        later = f"{topic}-later"
        here, nowhere = posts(topic, (1, 5)), posts(later, (0, 5))
        publishing.queue(0, "a", [*nowhere, *here])
        try:
            await reported.until(1)
            assert reported.posts == [("a", 1)]
            assert await found_in(bootstrap, topic) == [("a#1", "1")]
            waits = f"records for {later} have to wait"
            create = f"`headwater topics create {later}` creates it"
            await logged(caplog, f"{waits}: expected a topic of that name: {create}; trying again")
            size = {"partitions": PARTITIONS, "replication": 1}
            assert await create_authors_topics(Cluster(bootstrap), [later], **size) == [later]
            await reported.until(2)
        finally:
            await publishing.stop()
        assert await found_in(bootstrap, later) == [("a#0", "0")]
        await logged(caplog, f"{waits}: over after")

    caplog.set_level(logging.INFO, Publisher.__module__)
    play(topics, scene)
