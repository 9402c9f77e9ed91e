"""Committed offsets with the leader epoch of the record before them (KIP-320).

aiokafka commits offsets alone. Only leader epochs show whether a log still has what was read up to
such an offset (`truncation`). So the epoch is written to the metadata text of the offset.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.structs import OffsetAndMetadata

from headwater.schemas.history import NO_LEADER_EPOCH
from headwater.streams.kafka.truncation import (
    UNKNOWN_END,
    read_up_to,
    seek_with_epoch,
    truncation_before,
)

log = logging.getLogger(__name__)

_TEXT: Final = "leader epoch "
_COMMIT: Final = GroupCoordinator.commit_offsets  # (aiokafka has no hook there)


class Committed(NamedTuple):
    """An offset that a group has committed, and the leader epoch of the record before it."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH

    def as_committed(self) -> OffsetAndMetadata:
        """Return the argument for `commit` of a consumer."""
        text = "" if self.leader_epoch == NO_LEADER_EPOCH else f"{_TEXT}{self.leader_epoch}"
        return OffsetAndMetadata(self.offset, text)


def commit_leader_epochs() -> None:
    """Have all consumers commit the leader epochs of what they read; calling it again is fine."""
    GroupCoordinator.commit_offsets = _commit_offsets  # type: ignore[method-assign]


async def _commit_offsets(
    self: Any,  # noqa: ANN401 (a GroupCoordinator)
    assignment: Any,  # noqa: ANN401 (aiokafka's)
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> None:
    known = {}
    for tp, committed in offsets.items():
        read = read_up_to(assignment, tp)
        if read is not None and not committed.metadata and committed.offset <= read.position:
            known[tp] = Committed(committed.offset, read.leader_epoch).as_committed()
        else:
            known[tp] = committed
    await _COMMIT(self, assignment, known)  # type: ignore[no-untyped-call]


async def committed_offsets(
    consumer: AIOKafkaConsumer, *partitions: TopicPartition
) -> dict[TopicPartition, Committed]:
    """Return a group's committed offsets; partitions without one are omitted.

    Raises:
        KafkaError: The coordinator does not answer.
    """
    coordinator: Any = consumer._coordinator  # noqa: SLF001 (its methods leave out the text)
    offsets = await coordinator.fetch_committed_offsets(list(partitions))
    return {
        tp: Committed(committed.offset, _leader_epoch(committed.metadata))
        for tp, committed in offsets.items()
        if committed.offset >= 0
    }


def _leader_epoch(text: str) -> int:
    number = text.removeprefix(_TEXT)
    return int(number) if number != text and number.isdecimal() else NO_LEADER_EPOCH


async def resume_offset(
    consumer: AIOKafkaConsumer, tp: TopicPartition, committed: Committed
) -> Committed:
    """Return where a group continues: at its committed offset, or where the log was cut before it.

    Args:
        consumer: A consumer to which the partition is assigned.
        tp: The partition.
        committed: The committed offset.

    Raises:
        KafkaError: The leader does not answer.
    """
    offset, leader_epoch = committed
    if leader_epoch == NO_LEADER_EPOCH:
        end = (await consumer.end_offsets([tp]))[tp]
        cut = UNKNOWN_END if end < offset else None
    else:
        cut = await truncation_before(consumer, tp, offset, leader_epoch)
    if cut is None:
        return committed
    if cut == UNKNOWN_END:
        first: int = (await consumer.beginning_offsets([tp]))[tp]
        log.error(
            "%s/%d is not the log any more that %s has read up to offset %d: reading it from "
            "its beginning",
            *(*tp, consumer._group_id, offset - 1),  # noqa: SLF001
        )
        return Committed(first)
    log.error(
        "the broker has lost %s/%d from offset %d to %d, which was read: continuing from there",
        *(*tp, cut, offset - 1),
    )
    return Committed(cut, leader_epoch)


async def seek_to_committed(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int | None]:
    """Seek all assigned partitions to where the group continues; see `resume_offset`.

    Returns:
        New position by partition; None if nothing was committed, and it was not moved.

    Raises:
        KafkaError: A broker does not answer.
    """
    assigned = list(consumer.assignment())
    committed = await committed_offsets(consumer, *assigned)
    starts: dict[TopicPartition, int | None] = dict.fromkeys(assigned)
    for tp, position in committed.items():
        start = await resume_offset(consumer, tp, position)
        seek_with_epoch(consumer, tp, *start)
        starts[tp] = start.offset
    return starts
