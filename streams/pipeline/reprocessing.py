"""Reprocess dead letters and deliveries: append them to their topics again, marked as replays.

Intake processes a record with that mark although it is a duplicate. Its rows do not change; a dead
or parked delivery may be processed successfully this time.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from headwater.schemas.topics import DEAD_LETTERS, WEBHOOKS
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
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.topics import TopicState, describe_catalog

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
                records.append(_record(letter, topic, int(partition)))
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
        for turn in range(max((len(delivery.positions) for delivery in deliveries), default=0)):
            # Compaction keeps the last record of an id: try one position after the other.
            positions = [
                delivery.positions[turn]
                for delivery in pending.values()
                if turn < len(delivery.positions)
            ]
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


def _record(letter: Incoming, topic: str, partition: int) -> Outgoing:
    """Return the record that puts a dead letter back."""
    headers = [*original(letter), (REPLAY_OF, _position(letter.partition, letter.offset))]
    return Outgoing(topic, partition, key_of(letter), letter.value, headers)


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
