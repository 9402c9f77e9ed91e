"""Read single records of a topic by partition and offset."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.clients import standalone_consumer
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming

#: Records that are read and skipped rather than sought past: a seek costs a request.
_BATCH_RECORDS: Final = 500
_FETCH_BYTES: Final = 256 * 1024
_POLL_MS: Final = 500
#: A reader that gets nothing for as long has no broker.
_STALL_S: Final = 20.0


async def read_records_at(
    cluster: Cluster,
    topic: str,
    positions: Collection[tuple[int, int]],
    *,
    within_s: float | None = None,
) -> Mapping[tuple[int, int], Incoming]:
    """Return records of a topic by position.

    Args:
        cluster: The cluster.
        topic: The topic.
        positions: Partitions and offsets.
        within_s: Limit of the whole call in seconds.

    Returns:
        Records by partition and offset; those that do not exist or were compacted are omitted.

    Raises:
        BrokerUnavailable: No broker answered, or the call took longer than `within_s`.
    """
    try:
        async with asyncio.timeout(within_s):
            return {
                (record.partition, record.offset): record
                async for records in iter_records_at(cluster, topic, positions)
                for record in records
            }
    except TimeoutError as error:
        raise BrokerUnavailable(
            f"expected {len(positions)} records of {topic} at {cluster} within {within_s} s"
        ) from error


async def iter_records_at(
    cluster: Cluster, topic: str, positions: Collection[tuple[int, int]]
) -> AsyncGenerator[list[Incoming]]:
    """Yield records of a topic by position, in batches of a fetch.

    Args:
        cluster: The cluster.
        topic: The topic.
        positions: Partitions and offsets.

    Raises:
        BrokerUnavailable: No broker answered, or Kafka is stalled.
    """
    offsets: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(set(positions)):
        offsets[partition].append(offset)
    if not offsets:
        return
    reading = standalone_consumer(
        cluster,
        topic,
        purpose=f"{len(positions)} records of {topic}",
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_wait_ms=100,
    )
    async with reading as consumer:
        # It keeps all partitions assigned, and pauses those that are not read: when a consumer
        # loses partitions, aiokafka may wait forever to stop it.
        assigned = consumer.assignment()
        consumer.pause(*assigned)
        for partition, targets in offsets.items():
            tp = TopicPartition(topic, partition)
            if tp in assigned:
                consumer.resume(tp)
                async for records in _read(consumer, tp, targets):
                    yield records
                consumer.pause(tp)


async def _read(
    consumer: AIOKafkaConsumer, tp: TopicPartition, targets: list[int]
) -> AsyncGenerator[list[Incoming]]:
    """Read offsets of a partition, which are in ascending order."""
    first = (await consumer.beginning_offsets([tp]))[tp]
    end = (await consumer.end_offsets([tp]))[tp]
    pending = [offset for offset in targets if first <= offset < end]
    # Far enough away that the first record is sought.
    position = -_BATCH_RECORDS
    while pending:
        if not 0 <= pending[0] - position < _BATCH_RECORDS:
            consumer.seek(tp, pending[0])
        async with asyncio.timeout(_STALL_S):
            fetched, position = await _fetched(consumer, tp)
        remaining = set(pending)
        records = [record for record in fetched if record.offset in remaining]
        pending = [offset for offset in pending if offset >= position]
        if records:
            yield records


async def _fetched(
    consumer: AIOKafkaConsumer, tp: TopicPartition
) -> tuple[Sequence[Incoming], int]:
    """Return the records of the next fetch, and its end; compaction may leave no records."""
    before = position = await consumer.position(tp)
    fetched: Mapping[TopicPartition, Sequence[Incoming]] = {}
    while position == before:
        fetched = await consumer.getmany(tp, timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
        position = await consumer.position(tp)
    return fetched.get(tp, ()), position
