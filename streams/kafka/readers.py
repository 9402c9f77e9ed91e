"""Read from Kafka outside of consumer groups: ranges of a partition, single records, offsets.

A reader never hangs silently. One that gets nothing for some seconds fails and names the offset it
waited for; one that reads for long logs its progress.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import NO_LEADER_EPOCH
from headwater.streams.kafka.cluster import Cluster, standalone_consumer, start_consumer
from headwater.streams.kafka.records import Incoming
from headwater.streams.kafka.truncation import UNKNOWN_END, leader_epoch_of, truncation_before

_ANSWER_S: Final = 10.0

T = TypeVar("T")


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

    async def query(self, ask: Callable[[AIOKafkaConsumer], Awaitable[T]]) -> T:
        """Return what a consumer of the group answers, which is not assigned any partitions.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await ask(await self._connected())
        except (KafkaError, OSError) as error:  # also TimeoutError
            raise await self._away(error) from error

    async def ends(self, topics: Sequence[str], partition: int) -> dict[str, int]:
        """Return the end offset of a partition, by topic.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        partitions = [TopicPartition(topic, partition) for topic in topics]
        ends = await self.query(lambda consumer: consumer.end_offsets(partitions))
        return {tp.topic: end for tp, end in ends.items()}

    async def ends_of(self, topics: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return the end offsets of all partitions of topics; a topic may be missing.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        return await self._of_all(topics, lambda consumer, tps: consumer.end_offsets(tps))

    async def begins_of(self, topics: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return the first offsets of all partitions of topics; a topic may be missing.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        return await self._of_all(topics, lambda consumer, tps: consumer.beginning_offsets(tps))

    async def _of_all(
        self,
        topics: Sequence[str],
        offsets_of: Callable[
            [AIOKafkaConsumer, list[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]
        ],
    ) -> dict[str, tuple[int, ...]]:
        async def ask(consumer: AIOKafkaConsumer) -> Mapping[TopicPartition, int]:
            metadata = await consumer._client.fetch_all_metadata()  # noqa: SLF001 (no public way)
            partitions = [
                TopicPartition(topic, partition)
                for topic in topics
                for partition in sorted(metadata.partitions_for_topic(topic) or ())
            ]
            return await offsets_of(consumer, partitions) if partitions else {}

        grouped: dict[str, tuple[int, ...]] = {}
        for tp, offset in sorted((await self.query(ask)).items()):
            grouped[tp.topic] = (*grouped.get(tp.topic, ()), offset)
        return grouped

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

        async def ask(consumer: AIOKafkaConsumer) -> Cut | None:
            end = (await consumer.end_offsets([tp]))[tp]
            if leader_epoch == NO_LEADER_EPOCH:
                return Cut(end, leader_epoch) if end < offset else None
            cut = await truncation_before(consumer, tp, offset, leader_epoch)
            if cut == UNKNOWN_END:
                return Cut(min(end, offset), NO_LEADER_EPOCH)
            return None if cut is None else Cut(cut, leader_epoch)

        return await self.query(ask)

    async def committed(self, topics: Sequence[str], partition: int) -> dict[str, int]:
        """Return up to where the group has read a partition, by topic.

        That is the committed offset, but at least the first offset that there is.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        partitions = [TopicPartition(topic, partition) for topic in topics]

        async def ask(consumer: AIOKafkaConsumer) -> dict[str, int]:
            firsts = await consumer.beginning_offsets(partitions)
            return {
                tp.topic: max(await consumer.committed(tp) or 0, firsts[tp]) for tp in partitions
            }

        return await self.query(ask)

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


# -- ranges

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
_FETCH_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "auto_offset_reset": "earliest",
        "max_partition_fetch_bytes": _FETCH_BYTES,
        "fetch_max_wait_ms": 100,
    }
)
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
        **_FETCH_OPTIONS,
    )
    async with opened as consumer:
        starts = await _starts(consumer, partitions, start)
        if end is None:
            ends = await consumer.end_offsets(partitions)
        else:
            ends = dict.fromkeys(partitions, end)
        reading = _Progress(cluster, starts, ends, stall_s)
        async with aclosing(_read_up_to(consumer, reading)) as fetched:
            async for batch in fetched:
                yield batch


class Span(NamedTuple):
    """Offsets of a partition: the first, inclusive, and the end, exclusive."""

    start: int
    end: int


async def read_spans(
    cluster: Cluster, spans: Mapping[TopicPartition, Span], *, stall_s: float = STALL_S
) -> AsyncGenerator[tuple[list[Incoming], int]]:
    """Yield the records of several partitions in batches, with their leader epochs.

    Wrap it in `aclosing` if iteration may stop early: its consumer is open until then.

    Args:
        cluster: The cluster.
        spans: What to read; the logs must have reached the ends.
        stall_s: Seconds without progress after which reading fails.

    Yields:
        Records of one partition in order, and the leader epoch of the last that was fetched, or
        NO_LEADER_EPOCH.

    Raises:
        BrokerUnavailable: No broker answered, or nothing was read for `stall_s`.
    """
    names = ", ".join(sorted({tp.topic for tp in spans}))
    async with standalone_consumer(cluster, purpose=names, **_FETCH_OPTIONS) as consumer:
        starts = {tp: span.start for tp, span in spans.items()}
        ends = {tp: span.end for tp, span in spans.items()}
        reading = _Progress(cluster, starts, ends, stall_s)
        async with aclosing(_read_up_to(consumer, reading)) as fetched:
            async for batch in fetched:
                tp = TopicPartition(batch[0].topic, batch[0].partition)
                yield batch, leader_epoch_of(consumer, tp)


async def _read_up_to(
    consumer: AIOKafkaConsumer, reading: "_Progress"
) -> AsyncGenerator[list[Incoming]]:
    starts, ends, partitions = reading.starts, reading.ends, list(reading.ends)
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
        async with asyncio.timeout(reading.stall_s):
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
        self.starts = starts
        self.ends = ends
        self.stall_s = stall_s
        self._positions = starts
        self._moved_at = self._reported_at = self._now()

    def is_unfinished(self) -> bool:
        return any(self._positions[tp] < end for tp, end in self.ends.items())

    def reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Record positions.

        Raises:
            BrokerUnavailable: They have not changed for too long.
        """
        now = self._now()
        if positions != self._positions:
            self._positions, self._moved_at = positions, now
        elif self.is_unfinished() and now - self._moved_at > self.stall_s:
            raise BrokerUnavailable(
                f"expected more of {self._left()} at {self._cluster}, found nothing for "
                f"{self.stall_s} s"
            )
        if self.is_unfinished() and now - self._reported_at > _REPORT_EVERY_S:
            self._reported_at = now
            log.info("reading %s", self._left())

    def _left(self) -> str:
        return ", ".join(
            f"{tp.topic}/{tp.partition}@{self._positions[tp]} up to {end}"
            for tp, end in self.ends.items()
            if self._positions[tp] < end
        )


# -- single records

#: Records that are read and skipped rather than sought past: a seek costs a request.
_LOOKUP_RECORDS: Final = 500
_LOOKUP_FETCH_BYTES: Final = 256 * 1024
_LOOKUP_POLL_MS: Final = 500
#: A reader that gets nothing for as long has no broker.
_LOOKUP_STALL_S: Final = 20.0


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
        max_partition_fetch_bytes=_LOOKUP_FETCH_BYTES,
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
    position = -_LOOKUP_RECORDS
    while pending:
        if not 0 <= pending[0] - position < _LOOKUP_RECORDS:
            consumer.seek(tp, pending[0])
        async with asyncio.timeout(_LOOKUP_STALL_S):
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
        fetched = await consumer.getmany(
            tp, timeout_ms=_LOOKUP_POLL_MS, max_records=_LOOKUP_RECORDS
        )
        position = await consumer.position(tp)
    return fetched.get(tp, ()), position
