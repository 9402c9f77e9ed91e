"""Reading single records of a topic, wherever they lie."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming

#: Records that are read over rather than sought past: a seek costs a request of its own.
_BATCH_RECORDS: Final = 500
_FETCH_BYTES: Final = 256 * 1024
_POLL_MS: Final = 500
#: Of all that is asked for; a thousand places take some seconds.
_WITHIN_S: Final = 20.0


async def read_places(
    cluster: Cluster, topic: str, places: Collection[tuple[int, int]]
) -> Mapping[tuple[int, int], Incoming]:
    """Reads the records of a topic at some places.

    Shape:  (partition, offset) -> record; what is not there, or was compacted away, is left out.
    Errors: BrokerUnavailable.
    """
    found: dict[tuple[int, int], Incoming] = {}
    offsets: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(places):
        offsets[partition].append(offset)
    if not offsets:
        return found
    consumer = AIOKafkaConsumer(
        **cluster.options(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_wait_ms=100,
    )
    try:
        await consumer.start()
        async with asyncio.timeout(_WITHIN_S):
            for partition, wanted in offsets.items():
                await _read(consumer, TopicPartition(topic, partition), wanted, found)
    except (KafkaError, OSError) as error:  # also TimeoutError
        raise BrokerUnavailable(
            f"expected {len(places)} records of {topic} at {cluster}, found: {error!r}"
        ) from error
    finally:
        # aiokafka cancels a task of its own here and lets that through when it just started.
        with contextlib.suppress(KafkaError, OSError, asyncio.CancelledError):
            await consumer.stop()
    return found


async def _read(
    consumer: AIOKafkaConsumer,
    where: TopicPartition,
    wanted: list[int],
    found: dict[tuple[int, int], Incoming],
) -> None:
    """Reads offsets of a partition, which are in order."""
    consumer.assign([where])
    end = (await consumer.end_offsets([where]))[where]
    left = [offset for offset in wanted if offset < end]
    position = -1
    while left:
        if not 0 <= left[0] - position < _BATCH_RECORDS:
            consumer.seek(where, left[0])
        fetched = await consumer.getmany(where, timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
        by_offset = {record.offset: record for record in fetched.get(where, ())}
        position = await consumer.position(where)
        for offset in left:
            if offset in by_offset:
                found[where.partition, offset] = by_offset[offset]
        left = [offset for offset in left if offset >= position]
