"""Reprocess dead letters and deliveries: append them to their topics again, marked as replays.

Intake processes a record with that mark although it is a duplicate. Its rows do not change; a dead
or parked delivery may be processed successfully this time.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from headwater.schemas.codec import decode
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.topics import (
    DEAD_LETTERS,
    EVENTS,
    UNRESOLVED,
    WEBHOOKS,
    WORKFLOW_COMMANDS,
)
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster, standalone_consumer
from headwater.streams.kafka.dead_letters import (
    CONNECT_PREFIX,
    EXPIRED,
    IF_WAITING,
    NO_EFFECTS,
    REPLAY_OF,
    REPLAYED,
    REPLAYED_AT,
    key_of,
    original,
    text_header,
)
from headwater.streams.kafka.readers import iter_records_at
from headwater.streams.kafka.records import (
    Incoming,
    Outgoing,
    former_counts,
    moved_to,
    partition_of,
)
from headwater.streams.kafka.topics import TopicState, describe_catalog
from headwater.streams.pipeline.wiping import subject_of

_TOPIC: Final = CONNECT_PREFIX + "topic"
_PARTITION: Final = CONNECT_PREFIX + "partition"

#: Partition and offset in `webhooks`; traces include the topic.
WEBHOOKS_POSITION: Final = re.compile(rf"(?:{WEBHOOKS}/)?([0-9]{{1,9}})@([0-9]{{1,18}})")


class ReplayResult(msgspec.Struct, frozen=True):
    """Result of replaying a dead letter."""

    partition: int
    offset: int
    topic: str
    ok: bool
    detail: str


class DeliveryToReplay(NamedTuple):
    """A delivery to replay.

    Attributes:
        event_id: Its id.
        positions: Partitions and offsets where its record may be.
        has_had_effects: Whether its effects on workflows have happened, and do not happen again.
        if_waiting: Whether it is processed only if it is still waiting for its user.
    """

    event_id: str
    positions: tuple[tuple[int, int], ...]
    has_had_effects: bool = False
    if_waiting: bool = False


def known_positions(partition: int, offset: int, *others: str) -> tuple[tuple[int, int], ...]:
    """Return the positions where a delivery may be stored, the likeliest first.

    A delivery is stored at the offset that its outcome names, until a replay or a gateway appends
    another record with the same id; then compaction keeps only the later record.

    Args:
        partition: Partition that the outcome names.
        offset: Offset that the outcome names.
        others: Positions where it was read later, as in traces; other texts are ignored.
    """
    matches = [WEBHOOKS_POSITION.fullmatch(other) for other in others]
    later = [(int(match[1]), int(match[2])) for match in matches if match is not None]
    return tuple(dict.fromkeys([(partition, offset), *later]))


class _Bounds(NamedTuple):
    """First offset and end of a partition."""

    first: int
    end: int


class DeadLetters:
    """Puts dead letters and deliveries back into their topics.

    Once the record that was put back is durable, a separate record marks the dead letter as
    replayed.
    """

    def __init__(self, *, cluster: Cluster, clock: Callable[[], int]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._appender = Appender(cluster=cluster, client_id="headwater-replay")

    async def stop(self) -> None:
        """Disconnect."""
        await self._appender.stop()

    async def replay(self, positions: Sequence[tuple[int, int]]) -> list[ReplayResult]:
        """Put dead letters back into their topics, key and value unchanged.

        Args:
            positions: Partitions and offsets of the topic dead-letters.

        Returns:
            One result per position, in order.

        Raises:
            BrokerUnavailable: The call can be repeated safely.
        """
        # Query bounds first: dead letters that are appended later are not missing.
        bounds = await self._bounds({partition for partition, _ in positions})
        topics = await describe_catalog(self._cluster)
        replayed: dict[tuple[int, int], ReplayResult] = {}
        async with aclosing(iter_records_at(self._cluster, DEAD_LETTERS, positions)) as batches:
            async for letters in batches:
                results = await self._put_back(letters, topics)
                replayed |= {(result.partition, result.offset): result for result in results}
        missing = {position for position in positions if position not in replayed}
        expired = [
            position
            for position in missing
            if position[0] in bounds and position[1] < bounds[position[0]].end
        ]
        await self._appender.append_or_stop([_expired(position) for position in expired])
        for position in missing:
            reason = _why_missing(position[1], bounds.get(position[0]))
            replayed[position] = ReplayResult(*position, "", ok=False, detail=reason)
        return [replayed[position] for position in positions]

    async def _bounds(self, partitions: Collection[int]) -> dict[int, _Bounds]:
        async with standalone_consumer(self._cluster, DEAD_LETTERS) as consumer:
            assigned = [tp for tp in consumer.assignment() if tp.partition in partitions]
            first = await consumer.beginning_offsets(assigned)
            end = await consumer.end_offsets(assigned)
        return {tp.partition: _Bounds(first[tp], end[tp]) for tp in assigned}

    async def _put_back(
        self, letters: Sequence[Incoming], topics: Mapping[str, TopicState]
    ) -> list[ReplayResult]:
        """Put dead letters back, and mark them as replayed when all records are durable."""
        results = []
        records, marks = [], []
        for letter in letters:
            topic, partition = (text_header(letter, name) or "" for name in (_TOPIC, _PARTITION))
            problem = _problem(letter, topic, partition, topics)
            results.append(
                ReplayResult(letter.partition, letter.offset, topic, ok=not problem, detail=problem)
            )
            if not problem:
                records.append(_record(letter, topic, int(partition), topics[topic].partitions))
                marks.append(_replayed(letter, self._clock()))
        await self._appender.append_or_stop(records)
        await self._appender.append_or_stop(marks)
        return results

    async def reprocess(
        self, deliveries: Collection[DeliveryToReplay], replay_id: str | None = None
    ) -> dict[str, tuple[int, int]]:
        """Append deliveries again, marked as replays, so that they are processed again now.

        Args:
            deliveries: The deliveries.
            replay_id: The mark. By default, it is the position of the record that is appended.

        Returns:
            New partition and offset by event id, without deliveries that the log no longer has.

        Raises:
            BrokerUnavailable: Some were appended; all may be appended again.
        """
        pending = {delivery.event_id: delivery for delivery in deliveries}
        appended: dict[str, tuple[int, int]] = {}
        turns = max((len(delivery.positions) for delivery in deliveries), default=0)
        for turn in range(turns + 1):
            # Compaction keeps the last record of an id: try one position after the other.
            positions = [
                delivery.positions[turn]
                for delivery in pending.values()
                if turn < len(delivery.positions)
            ]
            if turn == turns and pending:
                positions = await self._moved(pending.values())
            # In batches: all of them may not fit in memory.
            async with aclosing(iter_records_at(self._cluster, WEBHOOKS, positions)) as batches:
                async for records in batches:
                    present = [
                        (record, pending.pop(_id(record)))
                        for record in records
                        if record.value is not None and _id(record) in pending
                    ]
                    offsets = await self._appended([_marked(*pair, replay_id) for pair in present])
                    for record, delivery in present:
                        offset = next(offsets[record.partition])
                        appended[delivery.event_id] = (record.partition, offset)
        return appended

    async def _moved(self, deliveries: Iterable[DeliveryToReplay]) -> list[tuple[int, int]]:
        """Return where deliveries may be if the topics have got more partitions since."""
        count = await self._appender.partitions(WEBHOOKS)
        return [
            (moved, offset)
            for delivery in deliveries
            for partition, offset in delivery.positions
            for moved in moved_to(partition, count)
        ]

    async def _appended(self, records: Sequence[Outgoing]) -> Mapping[int, Iterator[int]]:
        """Append records; return their offsets in order, by partition."""
        offsets: dict[int, list[range]] = defaultdict(list)
        for batch, first in await self._appender.append_or_stop(records):
            offsets[batch.partition].append(range(first, first + batch.records))
        return {partition: chain.from_iterable(ranges) for partition, ranges in offsets.items()}


def _why_missing(offset: int, bounds: _Bounds | None) -> str:
    """Return why there is no dead letter at an offset of a partition."""
    if bounds is None:
        return "no such partition"
    last = bounds.end - 1
    if offset > last:
        return f"no such offset: the partition holds {bounds.first} to {last}"
    if offset < bounds.first:
        return f"expired: the topic has {bounds.first} to {last}"
    # Compaction keeps the last of several dead letters of the same record.
    return "expired: it was wiped, or replaced by a later one"


def _problem(letter: Incoming, topic: str, partition: str, topics: Mapping[str, TopicState]) -> str:
    """Return why a dead letter cannot be put back; "" if it can."""
    if not topic or not partition or letter.value is None:
        return "not a dead letter"
    if topic not in topics:
        return f"no topic {topic} of Headwater's"
    # Compared as text: in a record of another program it may not be a number.
    if partition not in map(str, range(topics[topic].partitions)):
        return f"no partition {partition} of {topic}"
    if key_of(letter) is None and "compact" in topics[topic].config["cleanup.policy"]:
        return f"no key, without which {topic} takes no record"
    return ""


def _record(letter: Incoming, topic: str, partition: int, count: int) -> Outgoing:
    """Return the record that puts a dead letter back into a topic of some partitions."""
    headers = [*original(letter), (REPLAY_OF, _position(letter.partition, letter.offset))]
    record = Outgoing(topic, partition, key_of(letter), letter.value, headers)
    return record._replace(partition=partition_now(record, count))


def partition_now(record: Outgoing, count: int) -> int:
    """Return the partition of a record that is put back into its topic.

    That is its own, unless the topic got more partitions since: then a hop or a command belongs to
    the partition of its owner. A delivery in `webhooks` is sent on by the pipeline.

    Args:
        record: The record, with the partition that it was read from.
        count: Number of partitions of the topic.
    """
    try:
        owners = [owner.encode() for owner in _owners_of(record) if owner]
    except (HeadwaterError, ValueError, msgspec.MsgspecError):
        return record.partition
    if any(partition_of(owner, count) == record.partition for owner in owners):
        return record.partition
    for owner in owners:
        for former in former_counts(record.partition, count):
            if partition_of(owner, former) == record.partition:
                return partition_of(owner, count)
    return record.partition


def _owners_of(record: Outgoing) -> tuple[str | None, ...]:
    if record.topic == EVENTS:
        event = decode(record.value, WebhookAdmitted)
        return (event.user_id, event.subject, event.event_id)
    if record.topic == UNRESOLVED:
        return (subject_of(record.key),)
    return ((record.key or b"").decode(),) if record.topic == WORKFLOW_COMMANDS else ()


def _marked(record: Incoming, delivery: DeliveryToReplay, replay_id: str | None) -> Outgoing:
    """Return a delivery to append again, marked as a replay."""
    mark = replay_id or f"{WEBHOOKS}/{record.partition}@{record.offset}"
    headers = [*original(record), (REPLAY_OF, mark.encode())]
    if delivery.has_had_effects:
        headers.append((NO_EFFECTS, b"true"))
    if delivery.if_waiting:
        headers.append((IF_WAITING, b"true"))
    return Outgoing(WEBHOOKS, record.partition, record.key, record.value, headers)


def _id(record: Incoming) -> str:
    return (record.key or b"").decode(errors="replace")


def _replayed(letter: Incoming, now_ms: int) -> Outgoing:
    """Return the record that marks a dead letter as replayed."""
    mark = (REPLAYED, _position(letter.partition, letter.offset))
    return _marker(letter.partition, [mark, (REPLAYED_AT, str(now_ms).encode())])


def _expired(position: tuple[int, int]) -> Outgoing:
    """Return the record that marks a dead letter as expired."""
    return _marker(position[0], [(EXPIRED, _position(*position))])


def _marker(partition: int, headers: list[tuple[str, bytes]]) -> Outgoing:
    """Return a record of the topic `dead-letters` that marks another one.

    Its key is its own, so that compaction keeps both. Its value is empty rather than a tombstone.

    Args:
        partition: Partition of both records.
        headers: The first one is the kind of mark, with the position of the other record.
    """
    kind, position = headers[0]
    return Outgoing(DEAD_LETTERS, partition, b":".join((kind.encode(), position)), b"", headers)


def _position(partition: int, offset: int) -> bytes:
    return f"{partition}@{offset}".encode()
