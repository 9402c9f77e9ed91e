"""Check whether topics still have the records that a projection has applied.

A broker may lose the end of a partition. If the log ends before the applied offset, the offsets
show the loss. If new records have made it as long again, only leader epochs show it (KIP-320), so
Postgres stores one with every offset.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from headwater.projections.errors import LogTruncated
from headwater.projections.projector.plan import Partition
from headwater.projections.projector.store import AppliedPosition
from headwater.schemas.history import NO_LEADER_EPOCH

#: A new leader may briefly report an older end of its log; if it stays short, the log was cut.
_CHECKS: Final = 5
_CHECK_PAUSE_S: Final = 1.0


class TruncationDetector(Protocol):
    """Knows the leader epochs of records that were read; see `streams.kafka.truncation`."""

    def leader_epoch_of(self, consumer: AIOKafkaConsumer, where: TopicPartition) -> int:
        """Return the leader epoch of the record before the position of a partition."""

    def seek_with_epoch(
        self, consumer: AIOKafkaConsumer, where: TopicPartition, offset: int, leader_epoch: int
    ) -> None:
        """Seek to an offset before which records were read in a leader epoch."""

    async def truncation_before(
        self, consumer: AIOKafkaConsumer, where: TopicPartition, offset: int, leader_epoch: int
    ) -> int | None:
        """Return where a log was cut before an offset: None if it was not, -1 if unknown."""


async def check_ends(
    consumer: AIOKafkaConsumer,
    positions: Mapping[Partition, AppliedPosition],
    detector: TruncationDetector,
    stop: asyncio.Event,
) -> None:
    """Verify that applied records still exist. Otherwise new ones would be skipped as applied.

    Raises:
        LogTruncated: Applied records are missing.
        KafkaError: A broker does not answer.
    """
    applied = {
        TopicPartition(*partition): position
        for partition, position in positions.items()
        if position.next_offset > 0
    }
    cut: dict[TopicPartition, int] = {}
    for topic_partition, (offset, _, leader_epoch) in applied.items():
        if leader_epoch != NO_LEADER_EPOCH:
            end = await detector.truncation_before(consumer, topic_partition, offset, leader_epoch)
            if end is not None:
                cut[topic_partition] = end
    unknown = {
        topic_partition: position.next_offset
        for topic_partition, position in applied.items()
        if position.leader_epoch == NO_LEADER_EPOCH
    }
    cut |= await _cut_ends(consumer, unknown, stop)
    if not cut:
        return
    lost = ", ".join(
        _lost(topic_partition, end, applied[topic_partition])
        for topic_partition, end in sorted(cut.items())
    )
    raise LogTruncated(
        f"Kafka has lost records that Postgres has: {lost}. If a broker lost the end of its "
        "log, run: headwater topics accept-loss. If all of Kafka's data was removed, start "
        "with an empty database"
    )


async def _cut_ends(
    consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, int], stop: asyncio.Event
) -> dict[TopicPartition, int]:
    """Return the ends of partitions that stay shorter than an offset."""
    cut: dict[TopicPartition, int] = {}
    for _ in range(_CHECKS):
        ends = await consumer.end_offsets(list(offsets)) if offsets else {}
        cut = {
            topic_partition: end
            for topic_partition, end in ends.items()
            if end < offsets[topic_partition]
        }
        if not cut:
            break
        if stop.is_set():
            return {}
        await pause(stop, _CHECK_PAUSE_S)
    return cut


def _lost(topic_partition: TopicPartition, end: int, position: AppliedPosition) -> str:
    first = "an unknown one" if end < 0 else end
    topic, partition = topic_partition
    return f"{topic}/{partition} from offset {first} to {position.next_offset - 1}"


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait for some seconds, or until `stop` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
