"""Reading single records of a topic, wherever they lie."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping
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
#: Of one fetch.
_WITHIN_S: Final = 20.0


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

    Errors: BrokerUnavailable.
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
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_wait_ms=100,
    )
    async with reading as consumer:
        # Of a partition that there is not, nobody would ever answer for an end.
        there = consumer.partitions_for_topic(topic) or ()
        consumer.unsubscribe()
        for partition, wanted in offsets.items():
            if partition in there:
                async for records in _read(consumer, TopicPartition(topic, partition), wanted):
                    yield records


async def _read(
    consumer: AIOKafkaConsumer, where: TopicPartition, wanted: list[int]
) -> AsyncGenerator[list[Incoming]]:
    """Reads offsets of a partition, which are in order."""
    consumer.assign([where])
    end = (await consumer.end_offsets([where]))[where]
    left = [offset for offset in wanted if offset < end]
    position = -1
    while left:
        if not 0 <= left[0] - position < _BATCH_RECORDS:
            consumer.seek(where, left[0])
        async with asyncio.timeout(_WITHIN_S):
            fetched = await consumer.getmany(where, timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
            position = await consumer.position(where)
        named = set(left)
        found = [record for record in fetched.get(where, ()) if record.offset in named]
        left = [offset for offset in left if offset >= position]
        if found:
            yield found
