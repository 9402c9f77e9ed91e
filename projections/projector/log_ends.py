"""Whether topics still have what a projection has applied of them.

A broker may lose the end of a partition. If the log ends before the applied offset, the offsets
show the loss. If new records have made it as long again, only leader epochs show it (KIP-320), so
Postgres keeps one with every offset.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from headwater.projections.errors import LogTruncated
from headwater.projections.projector.plan import Partition
from headwater.projections.projector.store import Place
from headwater.schemas.history import NO_LEADER_EPOCH

#: A new leader may show an older end of its log for a moment; a log shorter than that is cut.
_LOOKS: Final = 5
_LOOK_PAUSE_S: Final = 1.0


class TruncationDetector(Protocol):
    """What knows the leader epochs of records that were read; see `streams.kafka.truncation`."""

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
    places: Mapping[Partition, Place],
    detector: TruncationDetector,
    stop: asyncio.Event,
) -> None:
    """Make sure that what was applied is still there: else all to come would be left out.

    Raises:
        LogTruncated: It is not.
        KafkaError: A broker does not answer.
    """
    applied = {TopicPartition(*of): place for of, place in places.items() if place.next_offset > 0}
    cut: dict[TopicPartition, int] = {}
    for where, (offset, _, leader_epoch) in applied.items():
        if leader_epoch != NO_LEADER_EPOCH:
            end = await detector.truncation_before(consumer, where, offset, leader_epoch)
            if end is not None:
                cut[where] = end
    unknown = {w: p.next_offset for w, p in applied.items() if p.leader_epoch == NO_LEADER_EPOCH}
    cut |= await _shorter(consumer, unknown, stop)
    if not cut:
        return
    lost = ", ".join(_lost(where, end, applied[where]) for where, end in sorted(cut.items()))
    raise LogTruncated(
        f"Kafka has lost records that Postgres has: {lost}. If a broker lost the end of its "
        "log, run: headwater topics accept-loss. If all of Kafka's data was removed, start "
        "with an empty database"
    )


async def _shorter(
    consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, int], stop: asyncio.Event
) -> dict[TopicPartition, int]:
    """Return where partitions end that end before an offset, and go on doing so."""
    cut: dict[TopicPartition, int] = {}
    for _ in range(_LOOKS):
        ends = await consumer.end_offsets(list(offsets)) if offsets else {}
        cut = {where: end for where, end in ends.items() if end < offsets[where]}
        if not cut:
            break
        if stop.is_set():
            return {}
        await pause(stop, _LOOK_PAUSE_S)
    return cut


def _lost(where: TopicPartition, end: int, place: Place) -> str:
    first = "an unknown one" if end < 0 else end
    return f"{where.topic}/{where.partition} from offset {first} to {place.next_offset - 1}"


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Waits for a while, or until it is to stop."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
