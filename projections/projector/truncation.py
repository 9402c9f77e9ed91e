"""Topics that lost applied records: detect them, and move a projection back to their end.

A broker may lose the end of a partition; a single broker that loses power may lose acknowledged
records. If the log ends before the applied offset, the offsets show the loss. If new records have
made it as long again, only leader epochs show it (KIP-320), so Postgres stores one with every
offset.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

import psycopg
from aiokafka import AIOKafkaConsumer, TopicPartition
from typing_extensions import override

from headwater.processors.runs.claims import Claims
from headwater.projections.errors import LogTruncated
from headwater.projections.postgres.statements import statement
from headwater.projections.projector.projection import LogRecord, Partition, Projection, admit_all
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


# -- accepting a loss

#: Yields the records of a topic partition, from the first to before an offset.
ReadPartition: TypeAlias = Callable[[str, int, int], AsyncIterator[Sequence[LogRecord]]]


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a partition that Postgres has and Kafka lost."""

    projection: Projection
    topic: str
    partition: int
    #: Current end offset of the partition.
    end: int
    #: First offset that the projection had not applied.
    applied: int
    #: Leader epoch at that end, if it is known.
    leader_epoch: int

    @override
    def __str__(self) -> str:
        partition = f"{self.topic}/{self.partition}"
        if self.end == self.applied:
            return f"{partition} up to offset {self.applied - 1}, where Kafka has another log"
        return f"{partition} from offset {self.end} to {self.applied - 1}"


class Applied(NamedTuple):
    """Progress of a projection on a partition: the first offset that is not applied."""

    projection: Projection
    topic: str
    partition: int
    offset: int
    leader_epoch: int


#: Finds where a log was cut before the applied offset, and the leader epoch there, if it is known;
#: None if it was not cut.
FindCut: TypeAlias = Callable[[Applied], Awaitable[tuple[int, int] | None]]


def applied_offsets(
    connection: psycopg.Connection[tuple[str, int, int, int]], projections: Iterable[Projection]
) -> list[Applied]:
    """Return each partition of which a projection has applied records."""
    return [
        Applied(projection, *row)
        for projection in projections
        for row in connection.execute(
            statement("applied_offsets"), {"projection": projection.name}
        ).fetchall()
    ]


async def losses(applied: Iterable[Applied], find_cut: FindCut) -> list[Loss]:
    """Return the partitions that lost applied records."""
    lost_ends = []
    for progress in applied:
        cut = await find_cut(progress)
        if cut is not None:
            end, leader_epoch = cut
            details = (end, progress.offset, leader_epoch)
            lost_ends.append(
                Loss(progress.projection, progress.topic, progress.partition, *details)
            )
    return lost_ends


async def accept(
    connection: psycopg.Connection[tuple[str, int, int, int]],
    loss: Loss,
    read: ReadPartition,
    now_ms: int,
) -> bool:
    """Let a projection continue at the end of a partition, and record the loss.

    The rows of lost records stay in Postgres, because the previous rows are unknown; the projection
    continues with the next record.

    Returns:
        Whether it was moved; False if a projector has moved it in the meantime.
    """
    claims = Claims()
    if loss.projection.read is not admit_all:
        async for records in read(loss.topic, loss.partition, loss.end):
            loss.projection.read(records, claims)
    moved = connection.execute(
        statement("accept_loss"),
        {
            "projection": loss.projection.name,
            "topic": loss.topic,
            "partition": loss.partition,
            "end": loss.end,
            "applied": loss.applied,
            "epoch": claims.epoch,
            "cause": claims.cause,
            "leader_epoch": loss.leader_epoch,
            "error": f"lost from Kafka, and accepted: {loss}",
            "now_ms": now_ms,
        },
    )
    return moved.rowcount == 1
