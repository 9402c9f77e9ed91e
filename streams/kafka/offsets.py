"""End offsets and committed offsets, queried by a consumer that is no member of the group."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import NO_LEADER_EPOCH
from headwater.streams.kafka.clients import start_consumer
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.truncation import UNKNOWN_END, truncation_before

_ANSWER_S: Final = 10.0


class Cut(NamedTuple):
    """Where a log was cut, and the leader epoch of the remaining log, if known."""

    end: int
    leader_epoch: int


class Offsets:
    """Queries offsets; connects at first use, and is no member of the group."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._consumer: AIOKafkaConsumer | None = None
        #: Of several concurrent callers, one connects.
        self._connecting = asyncio.Lock()

    async def ends(self, topics: Sequence[str], partition: int) -> dict[str, int]:
        """Return the end offset of a partition, by topic.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        partitions = [TopicPartition(topic, partition) for topic in topics]
        try:
            async with asyncio.timeout(_ANSWER_S):
                ends = await (await self._connected()).end_offsets(partitions)
        except (KafkaError, OSError) as error:  # also TimeoutError
            raise await self._away(error) from error
        return {tp.topic: end for tp, end in ends.items()}

    async def cut_before(
        self, topic: str, partition: int, offset: int, leader_epoch: int
    ) -> Cut | None:
        """Return where a partition was cut before an offset up to which it was read, if it was.

        Args:
            topic: The topic.
            partition: Its partition.
            offset: Up to where it was read.
            leader_epoch: That of the record before, if it is known.

        Raises:
            BrokerUnavailable: No broker answered.
        """
        tp = TopicPartition(topic, partition)
        try:
            async with asyncio.timeout(_ANSWER_S):
                consumer = await self._connected()
                end = (await consumer.end_offsets([tp]))[tp]
                if leader_epoch == NO_LEADER_EPOCH:
                    return Cut(end, leader_epoch) if end < offset else None
                cut = await truncation_before(consumer, tp, offset, leader_epoch)
        except (KafkaError, OSError) as error:  # also TimeoutError
            raise await self._away(error) from error
        if cut == UNKNOWN_END:
            return Cut(min(end, offset), NO_LEADER_EPOCH)
        return None if cut is None else Cut(cut, leader_epoch)

    async def committed(self, topics: Sequence[str], partition: int) -> dict[str, int]:
        """Return up to where the group has read a partition, by topic.

        That is the committed offset, but at least the first offset that there is.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        try:
            async with asyncio.timeout(_ANSWER_S):
                consumer = await self._connected()
                partitions = [TopicPartition(topic, partition) for topic in topics]
                firsts = await consumer.beginning_offsets(partitions)
                return {
                    tp.topic: max(await consumer.committed(tp) or 0, firsts[tp])
                    for tp in partitions
                }
        except (KafkaError, OSError) as error:
            raise await self._away(error) from error

    async def stop(self) -> None:
        """Disconnect."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def _connected(self) -> AIOKafkaConsumer:
        async with self._connecting:
            return self._consumer or await self._connect()

    async def _connect(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **self._cluster.options(), group_id=self._group, enable_auto_commit=False
        )
        self._consumer = await start_consumer(consumer)
        return consumer

    async def _away(self, error: Exception) -> BrokerUnavailable:
        await self.stop()
        return BrokerUnavailable(f"expected offsets of {self._cluster}, found: {error!r}")
