"""Single deliveries of the topic `webhooks`, read at their places for people who look at them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming

#: How long a fetch waits for a record that may not exist, before its place is looked at.
_FETCH_MS: Final = 200


class WebhookReader:
    """Reads single records of `webhooks`, each within a time.

    Errors: BrokerUnavailable, also when a record takes longer.
    """

    def __init__(self, consumer: AIOKafkaConsumer, cluster: Cluster, within_s: float) -> None:
        self._consumer = consumer
        self._cluster = cluster
        self._within_s = within_s

    async def record(self, partition: int, offset: int) -> Incoming | None:
        """The record at a place; None where there is none, or none any more.

        Shape:  without a value it is the tombstone of a delivery.
        """
        with _edge(self._cluster):
            async with asyncio.timeout(self._within_s):
                return await self._record(TopicPartition(WEBHOOKS, partition), offset)

    async def _record(self, where: TopicPartition, offset: int) -> Incoming | None:
        consumer = self._consumer
        if where not in consumer.assignment():
            return None
        first = (await consumer.beginning_offsets([where]))[where]
        end = (await consumer.end_offsets([where]))[where]
        if not first <= offset < end:
            return None
        consumer.seek(where, offset)
        # Compaction may have left nothing from here on: then no record ever comes, but the
        # consumer gets past the place.
        while await consumer.position(where) <= offset:
            found = await consumer.getmany(where, timeout_ms=_FETCH_MS, max_records=1)
            for record in found.get(where, ()):
                return record if record.offset == offset else None
        return None


@asynccontextmanager
async def webhook_reader(cluster: Cluster, within_s: float) -> AsyncIterator[WebhookReader]:
    """A reader of single records, for as long as they are asked for.

    Errors: BrokerUnavailable.
    """
    consumer = AIOKafkaConsumer(WEBHOOKS, **cluster.options())
    try:
        with _edge(cluster):
            async with asyncio.timeout(within_s):
                await consumer.start()
        yield WebhookReader(consumer, cluster, within_s)
    finally:
        # aiokafka cancels a task of its own here and lets that through when it just started.
        with contextlib.suppress(KafkaError, OSError, asyncio.CancelledError):
            await consumer.stop()


@contextlib.contextmanager
def _edge(cluster: Cluster) -> Iterator[None]:
    try:
        yield
    except (KafkaError, OSError) as error:  # a time-out is an OSError
        raise BrokerUnavailable(f"expected Kafka at {cluster}, found: {error!r}") from error
