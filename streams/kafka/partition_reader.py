"""Read a partition from an offset to an end, for example to restore memory.

A reader never hangs silently. One that gets nothing for `STALL_S` fails and names the offset it
waited for; one that reads for long logs its progress.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.clients import standalone_consumer
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming

log = logging.getLogger(__name__)

#: Records per batch, and bytes of their values (or one record): some ten milliseconds of decoding,
#: so that other tasks get their turn, and little memory. A record may hold a thousand claims.
_BATCH_RECORDS: Final = 1_000
_BATCH_BYTES: Final = 512 * 1024
#: Compressed, as in the log; unpacked, twenty times as many.
_FETCH_BYTES: Final = 2 * 1024 * 1024
_POLL_MS: Final = 1_000
#: A reader that gets nothing for as long has no broker, or its records do not exist.
STALL_S: Final = 30.0
_REPORT_EVERY_S: Final = 10.0


async def read_partition(
    cluster: Cluster,
    topics: Sequence[str],
    partition: int,
    *,
    start: int | Mapping[str, int] | None = None,
    end: int | None = None,
    stall_s: float = STALL_S,
) -> AsyncGenerator[list[Incoming]]:
    """Yield the records of a partition of some topics in batches, those of a topic in order.

    Wrap it in `aclosing` if iteration may stop early: its consumer is open until then.

    Args:
        cluster: The cluster.
        topics: The topics.
        partition: The partition, of every topic.
        start: First offset, inclusive; a mapping has one by topic. None for the first there is.
        end: Last offset, exclusive; the log must have reached it. None for the current end.
        stall_s: Seconds without progress after which reading fails.

    Yields:
        Records of one topic. Compaction may leave gaps among the offsets.

    Raises:
        BrokerUnavailable: No broker answered, or nothing was read for `stall_s`.
    """
    if isinstance(start, int) and end is not None and start >= end:
        return
    partitions = [TopicPartition(topic, partition) for topic in topics]
    opened = standalone_consumer(
        cluster,
        purpose=f"partition {partition} of {', '.join(topics)}",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_wait_ms=100,
    )
    async with opened as consumer:
        starts = await _starts(consumer, partitions, start)
        if end is None:
            ends = await consumer.end_offsets(partitions)
        else:
            ends = dict.fromkeys(partitions, end)
        reading = _Progress(cluster, starts, ends, stall_s)
        # Only if there is something to read: fetches that have just begun do not stop cleanly.
        if reading.is_unfinished():
            consumer.assign(partitions)
            for tp in partitions:
                consumer.seek(tp, starts[tp])
        while reading.is_unfinished():
            fetched = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
            for tp, records in fetched.items():
                # After a seek below its first record a partition is read from that one on.
                first, last = starts[tp], ends[tp]
                for batch in batches([one for one in records if first <= one.offset < last]):
                    yield batch
                    await asyncio.sleep(0)
            # Positions also advance over gaps that compaction and control records leave.
            async with asyncio.timeout(stall_s):
                reading.reached({tp: await consumer.position(tp) for tp in partitions})


def batches(records: list[Incoming]) -> Iterator[list[Incoming]]:
    """Split records into batches of a limited size of their values."""
    first, size = 0, 0
    for index, record in enumerate(records):
        size += record.serialized_value_size
        if size > _BATCH_BYTES and index > first:
            yield records[first:index]
            first, size = index, record.serialized_value_size
    if records:
        yield records[first:]


async def _starts(
    consumer: AIOKafkaConsumer,
    partitions: Sequence[TopicPartition],
    start: int | Mapping[str, int] | None,
) -> Mapping[TopicPartition, int]:
    if isinstance(start, int):
        return dict.fromkeys(partitions, start)
    first: Mapping[TopicPartition, int] = await consumer.beginning_offsets(partitions)
    offsets = start or {}
    return {tp: max(offset, offsets.get(tp.topic, 0)) for tp, offset in first.items()}


class _Progress:
    """Positions of a reader, and the time of its last progress."""

    def __init__(
        self,
        cluster: Cluster,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        stall_s: float,
    ) -> None:
        self._now = asyncio.get_running_loop().time
        self._cluster = cluster
        self._ends = ends
        self._stall_s = stall_s
        self._positions = starts
        self._moved_at = self._reported_at = self._now()

    def is_unfinished(self) -> bool:
        return any(self._positions[tp] < end for tp, end in self._ends.items())

    def reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Record positions.

        Raises:
            BrokerUnavailable: They have not changed for too long.
        """
        now = self._now()
        if positions != self._positions:
            self._positions, self._moved_at = positions, now
        elif self.is_unfinished() and now - self._moved_at > self._stall_s:
            raise BrokerUnavailable(
                f"expected more of {self._left()} at {self._cluster}, found nothing for "
                f"{self._stall_s} s"
            )
        if self.is_unfinished() and now - self._reported_at > _REPORT_EVERY_S:
            self._reported_at = now
            log.info("reading %s", self._left())

    def _left(self) -> str:
        return ", ".join(
            f"{tp.topic}/{tp.partition}@{self._positions[tp]} up to {end}"
            for tp, end in self._ends.items()
            if self._positions[tp] < end
        )
