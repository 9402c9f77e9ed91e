"""Publishes what steps have given to `tx.publish`: every record once.

A partition of the history is the input, and how far it is published is committed together with the
records, in one transaction of Kafka's. Each (partition, topic) has a producer of its own, whose
transactional id says so: when it begins, the producer of an owner before it is fenced off and what
that had not committed is undone; then the group's offset says which records are there already.

Records are sent in their `order`, a portion of those that wait in each transaction. So the offset
parts what was published from what was not, and no record before it is unsent: an owner queues all
records that its predecessors left before any of its own.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import Post
from headwater.schemas.topics import MAX_RECORD_BYTES, WORKFLOW_HISTORY
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import partition_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.topics import create_topic_hint

log = logging.getLogger(__name__)

#: How long a transaction may stay open: nobody reads past it meanwhile, if its producer dies.
_TRANSACTION_S: Final = 15.0
#: How long a producer may take to be ready: a partition of the topic may have no leader.
_BEGIN_S: Final = 30.0
#: How long a producer may take to end.
_STOP_S: Final = 5.0
#: How often it is looked whether the partition is surely owned.
_LOOK_S: Final = 0.05

#: What goes into a transaction at most, but for records of one order: a third of a second's worth.
#: It has to end in time, however many records have waited for a topic that was away.
PORTION_RECORDS: Final = 5_000
PORTION_BYTES: Final = 16 * 1024 * 1024
#: What is over by itself, or when somebody has mended it.
_COME_BACK: Final = (KafkaError, OSError, BrokerUnavailable)

#: Called when a post is durable: whose it is, and its number.
Sent: TypeAlias = Callable[[str, int], None]


class Waiting(NamedTuple):
    """A record that is to be published."""

    key: str
    post: Post


_order: Final = attrgetter("post.order")


def portion(waiting: Sequence[Waiting]) -> Sequence[Waiting]:
    """The first of those that wait, in their order, and whole orders of them."""
    size = 0
    for index, (key, post) in enumerate(waiting):
        full = index >= PORTION_RECORDS or size >= PORTION_BYTES
        if full and post.order != waiting[index - 1].post.order:
            return waiting[:index]
        size += len(key) + len(post.key or "") + len(post.value or "")
    return waiting


class Publisher:
    """What the owner of a partition publishes to one topic."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        partition: int,
        topic: str,
        sent: Sent,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._ready = ready
        self._cluster = cluster
        self._topic = topic
        self._sent = sent
        self._name = f"headwater-publish-{partition}-{topic}"
        self._group = f"headwater-publish-{topic}"
        self._input = TopicPartition(WORKFLOW_HISTORY, partition)
        self._waiting: list[Waiting] = []
        self._wake = asyncio.Event()
        self._producer: AIOKafkaProducer | None = None
        #: What lies before is published.
        self._reached = 0

    def queue(self, key: str, posts: Sequence[Post]) -> None:
        """Takes posts of an instance; those of one call of the owner come before the next await."""
        self._waiting.extend(Waiting(key, post) for post in posts)
        self._wake.set()

    async def run(self) -> None:
        """Publishes until it is cancelled."""
        retrying = Retrying(log, f"records for {self._topic} have to wait", longest_s=5.0)
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await retrying.until_done(self._publish_waiting, _COME_BACK)
        finally:
            await self._end_producer()

    async def _publish_waiting(self) -> None:
        while not self._ready():  # noqa: ASYNC110, another thread confirms it
            await asyncio.sleep(_LOOK_S)
        try:
            async with asyncio.timeout(_BEGIN_S):
                producer = self._producer or await self._begin()
            self._waiting.sort(key=_order)
            waiting = list(portion(self._waiting))
            fresh = [each for each in waiting if self._is_fresh(each.post)]
            if fresh:
                await self._transact(producer, fresh)
        except _COME_BACK:
            # Whether it was committed, the next producer will learn.
            await self._end_producer()
            raise
        del self._waiting[: len(waiting)]
        for key, post in waiting:
            self._sent(key, post.number)

    def _is_fresh(self, post: Post) -> bool:
        return post.order >= self._reached

    async def _begin(self) -> AIOKafkaProducer:
        """Fences off who published before, and learns how far that was."""
        producer = AIOKafkaProducer(
            **self._cluster.options(),
            client_id=self._name,
            transactional_id=self._name,
            transaction_timeout_ms=int(_TRANSACTION_S * 1000),
            max_request_size=MAX_RECORD_BYTES,
        )
        self._producer = producer
        await producer.start()
        # Before a transaction holds anything open.
        await self._find_topic(producer)
        consumer = AIOKafkaConsumer(
            **self._cluster.options(), group_id=self._group, enable_auto_commit=False
        )
        try:
            await consumer.start()
            self._reached = await consumer.committed(self._input) or 0
        finally:
            await consumer.stop()
        return producer

    async def _find_topic(self, producer: AIOKafkaProducer) -> None:
        """Sees that there is such a topic; aiokafka would wait for one, and not say for what.

        Errors: BrokerUnavailable.
        """
        client = producer.client
        await client.add_topic(self._topic)
        looked = await client.force_metadata_update()
        if looked and client.cluster.partitions_for_topic(self._topic) is None:
            raise BrokerUnavailable(
                f"expected a topic of that name: {create_topic_hint(self._topic)}"
            )

    async def _transact(self, producer: AIOKafkaProducer, waiting: Sequence[Waiting]) -> None:
        reached = max(self._reached, _order(waiting[-1]) + 1)
        count = len(await producer.partitions_for(self._topic))
        try:
            async with asyncio.timeout(_TRANSACTION_S):
                await producer.begin_transaction()
                acknowledged = [await self._send(producer, count, *each) for each in waiting]
                await asyncio.gather(*acknowledged)
                await producer.send_offsets_to_transaction({self._input: reached}, self._group)
                await producer.commit_transaction()
        except BaseException:
            # Else it stays open until the next producer begins. It may be of no more use, or have
            # been committed after all: then this fails, or waits for a broker that is away.
            with contextlib.suppress(KafkaError, OSError, AssertionError):
                await asyncio.wait_for(producer.abort_transaction(), _STOP_S)
            raise
        self._reached = reached

    async def _send(
        self, producer: AIOKafkaProducer, count: int, sender: str, post: Post
    ) -> asyncio.Future[object]:
        key = None if post.key is None else post.key.encode()
        acknowledged: asyncio.Future[object] = await producer.send(
            self._topic,
            (post.value or "null").encode(),
            key=key,
            partition=partition_of(key or sender.encode(), count),
            headers=[("headwater-id", f"{sender}#{post.number}".encode())],
        )
        return acknowledged

    async def _end_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            stopping = asyncio.create_task(producer.stop())
            await asyncio.wait([stopping], timeout=_STOP_S)
            if not stopping.done():
                # A producer that was fenced, or whose broker is away, may never end by itself.
                stopping.cancel()
                producer._sender.sender_task.cancel()  # noqa: SLF001 (nothing else ends it)
                await producer.client.close()
            await asyncio.gather(stopping, return_exceptions=True)


class Publishing:
    """The publishers of a worker.

    Shape:  `sent` is called with (partition, instance key, number of a post) when it is durable.
            Nothing is published of a partition while `may_release` is false of its number.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        sent: Callable[[int, str, int], None],
        may_release: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._may_release = may_release
        self._cluster = cluster
        self._sent = sent
        self._publishers: dict[tuple[int, str], tuple[Publisher, asyncio.Task[None]]] = {}

    def queue(self, partition: int, key: str, posts: Sequence[Post]) -> None:
        """Takes records of an instance, in their order."""
        by_topic: dict[str, list[Post]] = {}
        for post in posts:
            by_topic.setdefault(post.topic or "", []).append(post)
        for topic, group in by_topic.items():
            self._publisher(partition, topic).queue(key, group)

    def _publisher(self, partition: int, topic: str) -> Publisher:
        known = self._publishers.get((partition, topic))
        if known is None:
            publisher = Publisher(
                cluster=self._cluster,
                partition=partition,
                topic=topic,
                sent=partial(self._sent, partition),
                ready=partial(self._may_release, partition),
            )
            known = publisher, asyncio.create_task(publisher.run(), name=f"publish to {topic}")
            self._publishers[partition, topic] = known
        return known[0]

    def forget(self, partition: int) -> None:
        """Ends what is published of a partition that has another owner now."""
        for place in [place for place in self._publishers if place[0] == partition]:
            self._publishers.pop(place)[1].cancel()

    async def stop(self) -> None:
        """Ends everything; what was not committed is undone by the next owner."""
        tasks = [task for _, task in self._publishers.values()]
        self._publishers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
