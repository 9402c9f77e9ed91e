"""Reading a partition whole: how an agent's tables come back after a restart or a rebalance."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.records import Incoming

_FETCH_BYTES: Final = 8 * 1024 * 1024
_POLL_MS: Final = 1_000


async def read_whole(
    bootstrap: str, topics: Sequence[str], partition: int
) -> AsyncIterator[Incoming]:
    """Yields every record of a partition of some topics, up to the end as of now, then ends.

    Errors: BrokerUnavailable.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_wait_ms=100,
    )
    where = [TopicPartition(topic, partition) for topic in topics]
    try:
        await consumer.start()
        consumer.assign(where)
        ends = await consumer.end_offsets(where)
        await consumer.seek_to_beginning(*where)
        # `position` also moves over what compaction and control records left as holes.
        while [tp for tp in where if await consumer.position(tp) < ends[tp]]:
            fetched = await consumer.getmany(timeout_ms=_POLL_MS)
            for records in fetched.values():
                for record in records:
                    yield record
    except (KafkaError, OSError) as error:
        raise BrokerUnavailable(
            f"expected partition {partition} of {', '.join(topics)} at {bootstrap}, "
            f"found: {error!r}"
        ) from error
    finally:
        await consumer.stop()
