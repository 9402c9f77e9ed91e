"""Publishes the records of `tx.publish`, each exactly once.

The input is a partition of the history. Its published position is committed together with the
records in one Kafka transaction. Every (partition, topic) has its own producer, whose transactional
id is derived from both: when it starts, the producer of an earlier owner is fenced and its open
transaction is aborted. The group's offset then shows which records were published.

Records are sent in the order of `order`, in portions of one transaction each. The offset thus
separates published from unpublished records: an owner queues all records that its predecessors left
before any of its own.
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

from headwater.processors.trace_context import context_of
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import Post
from headwater.schemas.topics import MAX_RECORD_BYTES, WORKFLOW_HISTORY, is_own_topic
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import partition_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.topics import create_topic_hint

log = logging.getLogger(__name__)

#: Longest time that a transaction may stay open. Readers cannot pass it if its producer dies.
_TRANSACTION_S: Final = 15.0
#: Longest time for a producer to become ready: a partition of the topic may have no leader.
_BEGIN_S: Final = 30.0
#: Longest time to stop a producer, in seconds.
_STOP_S: Final = 5.0
#: Poll interval until the partition is certainly owned.
_POLL_S: Final = 0.05

#: Limits of a transaction, except that records of one order stay together: a third of a second's
#: work. It must end in time, however many records have waited for an unavailable topic.
PORTION_RECORDS: Final = 5_000
PORTION_BYTES: Final = 16 * 1024 * 1024
#: Errors that are transient, or that an operator can resolve.
_TRANSIENT: Final = (KafkaError, OSError, BrokerUnavailable)

#: Called when a post is durable, with the instance's key and the number of the post.
Sent: TypeAlias = Callable[[str, int], None]


class PendingRecord(NamedTuple):
    """A record to be published."""

    key: str
    post: Post


_order: Final = attrgetter("post.order")


def portion(waiting: Sequence[PendingRecord]) -> Sequence[PendingRecord]:
    """Return a prefix of pending records for one transaction. Orders are not split."""
    size = 0
    for index, (key, post) in enumerate(waiting):
        full = index >= PORTION_RECORDS or size >= PORTION_BYTES
        if full and post.order != waiting[index - 1].post.order:
            return waiting[:index]
        size += len(key) + len(post.key or "") + len(post.value or "")
    return waiting


class Publisher:
    """Publishes the records of one partition to one topic."""

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
        self._waiting: list[PendingRecord] = []
        self._wake = asyncio.Event()
        self._producer: AIOKafkaProducer | None = None
        #: Everything before this order is published.
        self._reached = 0

    def queue(self, key: str, posts: Sequence[Post]) -> None:
        """Queue posts of an instance. All posts of one batch must be queued without awaiting."""
        self._waiting.extend(PendingRecord(key, post) for post in posts)
        self._wake.set()

    async def run(self) -> None:
        """Publish until it is cancelled."""
        retrying = Retrying(log, f"records for {self._topic} have to wait", longest_s=5.0)
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await retrying.until_done(self._publish_waiting, _TRANSIENT)
        finally:
            await self._end_producer()

    async def _publish_waiting(self) -> None:
        while not self._ready():  # noqa: ASYNC110, another thread confirms it
            await asyncio.sleep(_POLL_S)
        try:
            async with asyncio.timeout(_BEGIN_S):
                producer = self._producer or await self._begin()
            self._waiting.sort(key=_order)
            waiting = list(portion(self._waiting))
            fresh = [pending for pending in waiting if self._is_fresh(pending.post)]
            if fresh:
                await self._transact(producer, fresh)
        except _TRANSIENT:
            # The next producer finds out whether it was committed.
            await self._end_producer()
            raise
        del self._waiting[: len(waiting)]
        for key, post in waiting:
            self._sent(key, post.number)

    def _is_fresh(self, post: Post) -> bool:
        return post.order >= self._reached

    async def _begin(self) -> AIOKafkaProducer:
        """Start a producer, which fences an earlier one, and fetch the published position."""
        producer = AIOKafkaProducer(
            **self._cluster.options(),
            client_id=self._name,
            transactional_id=self._name,
            transaction_timeout_ms=int(_TRANSACTION_S * 1000),
            max_request_size=MAX_RECORD_BYTES,
        )
        self._producer = producer
        await producer.start()
        # Before a transaction is opened.
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
        """Check that the topic exists. aiokafka would wait for it without saying so.

        Raises:
            BrokerUnavailable: It does not exist, or is Headwater's.
        """
        prefix = self._cluster.prefix
        # Authors' code does not know it; names without a prefix were rejected there.
        if prefix and is_own_topic(prefix, self._topic):
            raise BrokerUnavailable(
                f"expected a topic of your own, found Headwater's {self._topic}"
            )
        client = producer.client
        await client.add_topic(self._topic)
        updated = await client.force_metadata_update()
        if updated and client.cluster.partitions_for_topic(self._topic) is None:
            raise BrokerUnavailable(
                f"expected a topic of that name: {create_topic_hint(self._topic)}"
            )

    async def _transact(self, producer: AIOKafkaProducer, waiting: Sequence[PendingRecord]) -> None:
        reached = max(self._reached, _order(waiting[-1]) + 1)
        count = len(await producer.partitions_for(self._topic))
        try:
            async with asyncio.timeout(_TRANSACTION_S):
                await producer.begin_transaction()
                acknowledged = [await self._send(producer, count, *pending) for pending in waiting]
                await asyncio.gather(*acknowledged)
                await producer.send_offsets_to_transaction({self._input: reached}, self._group)
                await producer.commit_transaction()
        except BaseException:
            # Otherwise it stays open until the next producer starts. The producer may be unusable,
            # or the transaction committed after all: then this fails, or waits for the broker.
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
            headers=[("headwater-id", f"{sender}#{post.number}".encode()), *_trace_of(post)],
        )
        return acknowledged

    async def _end_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            stopping = asyncio.create_task(producer.stop())
            await asyncio.wait([stopping], timeout=_STOP_S)
            if not stopping.done():
                # A producer that was fenced, or whose broker is down, may never stop by itself.
                stopping.cancel()
                producer._sender.sender_task.cancel()  # noqa: SLF001 (nothing else ends it)
                await producer.client.close()
            await asyncio.gather(stopping, return_exceptions=True)


def _trace_of(post: Post) -> list[tuple[str, bytes]]:
    context = context_of(post.trace)
    return [] if context is None else [(name, text.encode()) for name, text in context.headers()]


class Publishing:
    """The publishers of a worker.

    Args:
        cluster: The cluster.
        sent: Called with (partition, instance key, number of a post) when it is durable.
        may_release: Returns whether records of a partition may be published.
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
        """Queue records of an instance, in order."""
        by_topic: dict[str, list[Post]] = {}
        for post in posts:
            by_topic.setdefault(post.topic or "", []).append(post)
        for topic, group in by_topic.items():
            self._publisher(partition, topic).queue(key, group)

    def _publisher(self, partition: int, topic: str) -> Publisher:
        entry = self._publishers.get((partition, topic))
        if entry is None:
            publisher = Publisher(
                cluster=self._cluster,
                partition=partition,
                topic=topic,
                sent=partial(self._sent, partition),
                ready=partial(self._may_release, partition),
            )
            entry = publisher, asyncio.create_task(publisher.run(), name=f"publish to {topic}")
            self._publishers[partition, topic] = entry
        return entry[0]

    def forget(self, partition: int) -> None:
        """Stop publishing for a partition that was released."""
        for key in [key for key in self._publishers if key[0] == partition]:
            self._publishers.pop(key)[1].cancel()

    async def stop(self) -> None:
        """Stop. Uncommitted records are published by the next owner."""
        tasks = [task for _, task in self._publishers.values()]
        self._publishers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
