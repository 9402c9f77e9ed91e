"""Reading a partition from an offset to an end: how what was in memory comes back.

A reader never waits in silence. One that gets nothing for as long as `STALL_S` fails and names the
offset that it waited for; one that reads for long says from time to time how far it is.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.clients import consumer_of
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming

log = logging.getLogger(__name__)

#: Records given at a time, and bytes of their values (or one record): some ten milliseconds of
#: decoding, so that others get their turn, and little memory. A record may hold a thousand claims.
_BATCH_RECORDS: Final = 1_000
_BATCH_BYTES: Final = 512 * 1024
#: As they lie in the log; unpacked, twenty times as many.
_FETCH_BYTES: Final = 2 * 1024 * 1024
_POLL_MS: Final = 1_000
#: A reader that gets nothing for as long has no broker, or wants what is not there.
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
    """Yields the records of a partition of some topics, some at a time, those of a topic in order.

    Shape:  from `start` on, which may be one for each of some topics, else from the first; up to,
            without, `end`, which the log must have reached, else up to the end as of now.
            Compaction leaves holes among the offsets. Whoever may leave it before its end wraps it
            in `aclosing`: its consumer is open until then.
    Errors: BrokerUnavailable.
    """
    if isinstance(start, int) and end is not None and start >= end:
        return
    where = [TopicPartition(topic, partition) for topic in topics]
    opened = consumer_of(
        cluster,
        wanted=f"partition {partition} of {', '.join(topics)}",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_wait_ms=100,
    )
    async with opened as consumer:
        starts = await _starts(consumer, where, start)
        ends = await consumer.end_offsets(where) if end is None else dict.fromkeys(where, end)
        reading = _Progress(cluster, starts, ends, stall_s)
        # Not for nothing: fetches that have only just begun do not end in order.
        if reading.is_unfinished():
            consumer.assign(where)
            for each in where:
                consumer.seek(each, starts[each])
        while reading.is_unfinished():
            fetched = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
            for each, records in fetched.items():
                # After a seek below its first record a partition is read from that one on.
                found = [one for one in records if starts[each] <= one.offset < ends[each]]
                for some in batches(found):
                    yield some
                    await asyncio.sleep(0)
            # Positions also move over the holes that compaction and control records have left.
            async with asyncio.timeout(stall_s):
                reading.reached({each: await consumer.position(each) for each in where})


def batches(records: list[Incoming]) -> Iterator[list[Incoming]]:
    """Divides records so that the values of some do not take more bytes than may be given."""
    first, size = 0, 0
    for at, record in enumerate(records):
        size += record.serialized_value_size
        if size > _BATCH_BYTES and at > first:
            yield records[first:at]
            first, size = at, record.serialized_value_size
    if records:
        yield records[first:]


async def _starts(
    consumer: AIOKafkaConsumer,
    where: Sequence[TopicPartition],
    start: int | Mapping[str, int] | None,
) -> Mapping[TopicPartition, int]:
    if isinstance(start, int):
        return dict.fromkeys(where, start)
    first: Mapping[TopicPartition, int] = await consumer.beginning_offsets(where)
    wanted = start or {}
    return {each: max(offset, wanted.get(each.topic, 0)) for each, offset in first.items()}


class _Progress:
    """How far a reader is, and since when."""

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
        return any(self._positions[each] < end for each, end in self._ends.items())

    def reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Takes note of positions.

        Errors: BrokerUnavailable if they have been the same for too long.
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
            f"{each.topic}/{each.partition}@{self._positions[each]} up to {end}"
            for each, end in self._ends.items()
            if self._positions[each] < end
        )
