"""Reading single records of a topic, wherever they lie."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.clients import consumer_of
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming

#: Records that are read over rather than sought past: a seek costs a request of its own.
_BATCH_RECORDS: Final = 500
_FETCH_BYTES: Final = 256 * 1024
_POLL_MS: Final = 500
#: A reader that gets nothing for as long has no broker.
_STALL_S: Final = 20.0


async def read_places(
    cluster: Cluster,
    topic: str,
    places: Collection[tuple[int, int]],
    *,
    within_s: float | None = None,
) -> Mapping[tuple[int, int], Incoming]:
    """Reads the records of a topic at some places.

    Shape:  (partition, offset) -> record; what is not there, or was compacted away, is left out.
    Errors: BrokerUnavailable, also when all of it takes longer than `within_s`.
    """
    try:
        async with asyncio.timeout(within_s):
            return {
                (record.partition, record.offset): record
                async for records in each_place(cluster, topic, places)
                for record in records
            }
    except TimeoutError as error:
        raise BrokerUnavailable(
            f"expected {len(places)} records of {topic} at {cluster} within {within_s} s"
        ) from error


async def each_place(
    cluster: Cluster, topic: str, places: Collection[tuple[int, int]]
) -> AsyncGenerator[list[Incoming]]:
    """Yields the records of a topic at some places, a few at a time: as many as a fetch brings.

    Errors: BrokerUnavailable, also when Kafka stands still.
    """
    offsets: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(set(places)):
        offsets[partition].append(offset)
    if not offsets:
        return
    reading = consumer_of(
        cluster,
        topic,
        wanted=f"{len(places)} records of {topic}",
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_wait_ms=100,
    )
    async with reading as consumer:
        # It keeps all partitions, and rests in those that are not read: where a consumer loses
        # some, aiokafka may wait for ever to stop it.
        there = consumer.assignment()
        consumer.pause(*there)
        for partition, wanted in offsets.items():
            where = TopicPartition(topic, partition)
            if where in there:
                consumer.resume(where)
                async for records in _read(consumer, where, wanted):
                    yield records
                consumer.pause(where)


async def _read(
    consumer: AIOKafkaConsumer, where: TopicPartition, wanted: list[int]
) -> AsyncGenerator[list[Incoming]]:
    """Reads offsets of a partition, which are in order."""
    first = (await consumer.beginning_offsets([where]))[where]
    end = (await consumer.end_offsets([where]))[where]
    left = [offset for offset in wanted if first <= offset < end]
    # As good as far away: the first of them is sought.
    position = -_BATCH_RECORDS
    while left:
        if not 0 <= left[0] - position < _BATCH_RECORDS:
            consumer.seek(where, left[0])
        async with asyncio.timeout(_STALL_S):
            fetched, position = await _fetched(consumer, where)
        named = set(left)
        found = [record for record in fetched if record.offset in named]
        left = [offset for offset in left if offset >= position]
        if found:
            yield found


async def _fetched(
    consumer: AIOKafkaConsumer, where: TopicPartition
) -> tuple[Sequence[Incoming], int]:
    """What a fetch brings, which is nothing where compaction left holes, and where it ends."""
    before = position = await consumer.position(where)
    fetched: Mapping[TopicPartition, Sequence[Incoming]] = {}
    while position == before:
        fetched = await consumer.getmany(where, timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
        position = await consumer.position(where)
    return fetched.get(where, ()), position
