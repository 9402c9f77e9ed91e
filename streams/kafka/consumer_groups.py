"""Fixes to aiokafka's consumer groups: static members, leader epochs (KIP-320), confirmations."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Int16, Int32, Schema, String
from aiokafka.structs import OffsetAndMetadata
from typing_extensions import override

from headwater.schemas.history import NO_LEADER_EPOCH
from headwater.streams.clock import monotonic
from headwater.streams.kafka.truncation import (
    UNKNOWN_END,
    read_up_to,
    seek_with_epoch,
    truncation_before,
)

_HEARTBEAT: Final = 12
_SYNC_GROUP: Final = 14
#: No error, and REBALANCE_IN_PROGRESS, which members get that have to join again.
_MEMBER: Final = (0, 27)

_SEND: Final = GroupCoordinator._send_req  # noqa: SLF001 (aiokafka has no hook there)


def record_confirmations() -> None:
    """Patch aiokafka for all of this process; calling it again changes nothing.

    aiokafka keeps no time of acknowledged heartbeats. The time that matters is when the request was
    sent: the coordinator keeps a member for a session after it received it, and a process that was
    suspended may have read the response much later.
    """
    GroupCoordinator._send_req = _send_req  # type: ignore[method-assign] # noqa: SLF001


async def _send_req(self: Any, request: Any) -> Any:  # noqa: ANN401 (as aiokafka has it)
    sent_s = monotonic()
    response = await _SEND(self, request)  # type: ignore[no-untyped-call]
    if response.API_KEY in (_HEARTBEAT, _SYNC_GROUP) and response.error_code in _MEMBER:
        confirmed = getattr(self._subscription.listener, "on_confirmed", None)
        if confirmed is not None:
            confirmed(sent_s)
    return response


# -- static members

#: FENCED_INSTANCE_ID of Kafka's protocol.
_FENCED: Final = 82

_REJOIN: Final = GroupCoordinator._do_rejoin_group  # noqa: SLF001
_RESET: Final = GroupCoordinator.reset_generation


class MemberFenced(KafkaError):
    """Another process joined a group under the name of this one."""


class _Answer(Response):
    API_KEY = 12
    API_VERSION = 3
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16))


class _Heartbeat(RequestStruct):
    API_KEY = 12
    API_VERSION = 3
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("generation_id", Int32),
        ("member_id", String("utf-8")),
        ("group_instance_id", String("utf-8")),
    )


class _NamedHeartbeat(Request[_Heartbeat]):
    """A heartbeat with the name of its member; Kafka has it since static membership exists."""

    API_KEY = 12

    def __init__(self, *fields: object) -> None:
        self._fields = fields

    @override
    def build(self, request_struct_class: type[_Heartbeat]) -> _Heartbeat:
        return request_struct_class(*self._fields)


def patch_static_members() -> None:
    """Patch aiokafka for all of this process; calling it again changes nothing.

    A worker with a name (`HEADWATER_MEMBER`) that joins replaces the member of that name, which is
    dead in most cases. If it is alive, Kafka fences it (KIP-345). But aiokafka sends the name only
    when it joins, so it gets UNKNOWN_MEMBER_ID and joins again. Then it replaces its successor,
    which does the same, without end. With this patch a static member sends a heartbeat with its
    name before it rejoins, and fails if it is fenced.
    """
    GroupCoordinator.reset_generation = _reset  # type: ignore[method-assign]
    GroupCoordinator._do_rejoin_group = _rejoin  # type: ignore[method-assign] # noqa: SLF001


def _reset(self: Any) -> None:  # noqa: ANN401 (a GroupCoordinator; it stores `was_member`)
    if self.member_id:
        self.was_member = self.generation, self.member_id
    _RESET(self)  # type: ignore[no-untyped-call]


async def _rejoin(self: Any, subscription: object) -> Any:  # noqa: ANN401 (as aiokafka has it)
    try:
        await _check(self)
    except MemberFenced:
        raise
    except KafkaError:  # no coordinator: it is looked up again by the next attempt
        await asyncio.sleep(self._retry_backoff_ms / 1_000)
        return False
    try:
        return await _REJOIN(self, subscription)  # type: ignore[no-untyped-call]
    except KafkaError:
        await _check(self)
        raise


async def _check(self: Any) -> None:  # noqa: ANN401 (see above)
    """Check whether another process replaced this member.

    Raises:
        MemberFenced: Another process joined under the name of this member.
        KafkaError: No coordinator answered.
    """
    name = self._group_instance_id
    last = getattr(self, "was_member", None)
    member = (self.generation, self.member_id) if self.member_id else last
    if name is None or member is None:
        return
    response = await self._send_req(_NamedHeartbeat(self.group_id, *member, name))
    if response.error_code == _FENCED:
        raise MemberFenced(
            f"expected to be the one member of {self.group_id} that is named {name}, found that "
            "another process joined under this name later; usual cause: two workers with one "
            "HEADWATER_MEMBER. Use a different name for each worker"
        )


# -- committed offsets with leader epochs

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
    """Have all consumers commit the leader epochs of what they read; calling it again is fine.

    aiokafka commits offsets alone. Only leader epochs show whether a log still has what was read up
    to such an offset (`truncation`). So the epoch is written to the metadata text of the offset.
    """
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
