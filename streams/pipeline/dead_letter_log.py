"""The topic `dead-letters`, as operators see it: putting records back where they came from.

What is put back is marked as a replay, so it is no copy. That it was put back is said by a record
of its own, once the other one is durable.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.topics import DEAD_LETTERS, WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.clients import consumer_of
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import (
    CONNECT_PREFIX,
    EXPIRED,
    REPLAY_OF,
    REPLAYED,
    REPLAYED_AT,
    key_of,
    original,
    text_header,
)
from headwater.streams.kafka.record_lookup import iter_records_at
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.topics import TopicState, describe_catalogue

_TOPIC: Final = CONNECT_PREFIX + "topic"
_PARTITION: Final = CONNECT_PREFIX + "partition"

#: How long a producer that is of no more use may take to end.
_STOP_S: Final = 5.0


class Replayed(msgspec.Struct, frozen=True):
    """What came of replaying a dead letter."""

    partition: int
    offset: int
    topic: str
    ok: bool
    detail: str


class Again(msgspec.Struct, frozen=True):
    """A delivery that was appended once more: to which offset; None if it lies there no more."""

    partition: int
    offset: int
    again_at: int | None


class _Bounds(NamedTuple):
    """The first offset of a partition that there is, and its end."""

    first: int
    end: int


class DeadLetters:
    """Dead letters, and deliveries to be looked at again."""

    def __init__(self, *, cluster: Cluster, clock: Callable[[], int]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._appender = Appender(cluster=cluster, client_id="headwater-replay")

    async def start(self) -> None:
        """Connects at the first replay; nothing to do before."""

    async def stop(self) -> None:
        """Disconnects."""
        await self._appender.stop()

    async def replay(self, positions: Sequence[tuple[int, int]]) -> list[Replayed]:
        """Puts dead letters back where they came from, key and value untouched.

        Shape:  (partition, offset) of the topic dead-letters -> one answer each, in order.
        Errors: BrokerUnavailable; replaying again is safe.
        """
        # Before they are read: what comes to the topic after that is not missing.
        bounds = await self._bounds({partition for partition, _ in positions})
        topics = await describe_catalogue(self._cluster)
        back: dict[tuple[int, int], Replayed] = {}
        async with aclosing(iter_records_at(self._cluster, DEAD_LETTERS, positions)) as batches:
            async for letters in batches:
                told = await self._put_back(letters, topics)
                back |= {(each.partition, each.offset): each for each in told}
        missing = {place for place in positions if place not in back}
        gone = [
            place for place in missing if place[0] in bounds and place[1] < bounds[place[0]].end
        ]
        await self._appender.append_or_stop([_expired(place) for place in gone])
        for place in missing:
            why = _why_missing(place[1], bounds.get(place[0]))
            back[place] = Replayed(*place, "", ok=False, detail=why)
        return [back[place] for place in positions]

    async def _bounds(self, partitions: Collection[int]) -> dict[int, _Bounds]:
        async with consumer_of(self._cluster, DEAD_LETTERS) as consumer:
            where = [each for each in consumer.assignment() if each.partition in partitions]
            first, end = await consumer.beginning_offsets(where), await consumer.end_offsets(where)
        return {each.partition: _Bounds(first[each], end[each]) for each in where}

    async def _put_back(
        self, letters: Sequence[Incoming], topics: Mapping[str, TopicState]
    ) -> list[Replayed]:
        """Puts dead letters back, and says so of each when all of these are durable."""
        told = []
        back, marks = [], []
        for letter in letters:
            topic, partition = (text_header(letter, name) or "" for name in (_TOPIC, _PARTITION))
            fault = _fault(letter, topic, partition, topics)
            told.append(
                Replayed(letter.partition, letter.offset, topic, ok=not fault, detail=fault)
            )
            if not fault:
                back.append(_back(letter, topic, int(partition)))
                marks.append(_replayed(letter, self._clock()))
        await self._appender.append_or_stop(back)
        await self._appender.append_or_stop(marks)
        return told

    async def again(self, places: Sequence[tuple[int, int]]) -> list[Again]:
        """Appends deliveries once more, so that they are looked at again now.

        Shape:  (partition, offset) of the topic webhooks -> one answer each, in order. They are
                marked as replays, so they are no copies.
        Errors: BrokerUnavailable; asking again is safe.
        """
        again: dict[tuple[int, int], int] = {}
        # A few at a time: all of them may be more than there is memory for.
        async with aclosing(iter_records_at(self._cluster, WEBHOOKS, places)) as batches:
            async for records in batches:
                there = [record for record in records if record.value is not None]
                offsets = await self._appended([_once_more(record) for record in there])
                for record in there:
                    again[record.partition, record.offset] = next(offsets[record.partition])
        return [Again(*place, again.get(place)) for place in places]

    async def _appended(self, records: Sequence[Outgoing]) -> Mapping[int, Iterator[int]]:
        """Appends records; returns the offsets of each partition's, in order."""
        try:
            sent = await self._appender.send(records)
            firsts = await self._appender.acknowledged(sent)
        except BrokerUnavailable:
            await self._appender.stop(_STOP_S)
            raise
        offsets: dict[int, list[range]] = defaultdict(list)
        for each, first in zip(sent, firsts, strict=True):
            offsets[each.partition].append(range(first, first + each.records))
        return {partition: chain.from_iterable(found) for partition, found in offsets.items()}


def _why_missing(offset: int, bounds: _Bounds | None) -> str:
    """Why there is no dead letter at an offset of a partition."""
    if bounds is None:
        return "no such partition"
    last = bounds.end - 1
    if offset > last:
        return f"no such offset: the partition holds {bounds.first} to {last}"
    if offset < bounds.first:
        return f"expired: the topic has {bounds.first} to {last}"
    # Compaction keeps the last of those that are alike.
    return "expired: it was wiped, or written again behind it"


def _fault(letter: Incoming, topic: str, partition: str, topics: Mapping[str, TopicState]) -> str:
    """Why a dead letter cannot be put back; "" if it can."""
    if not topic or not partition or letter.value is None:
        return "not a dead letter"
    if topic not in topics:
        return f"no topic {topic} of Headwater's"
    # As text: what somebody else wrote may be no number.
    if partition not in map(str, range(topics[topic].partitions)):
        return f"no partition {partition} of {topic}"
    if key_of(letter) is None and "compact" in topics[topic].config["cleanup.policy"]:
        return f"no key, without which {topic} takes no record"
    return ""


def _back(letter: Incoming, topic: str, partition: int) -> Outgoing:
    """A dead letter as it is put back."""
    headers = [*original(letter), (REPLAY_OF, _place(letter.partition, letter.offset))]
    return Outgoing(topic, partition, key_of(letter), letter.value, headers)


def _once_more(record: Incoming) -> Outgoing:
    """A delivery as it is appended again: marked, so it is no copy."""
    mark = (REPLAY_OF, f"{WEBHOOKS}/{record.partition}@{record.offset}".encode())
    headers = [*original(record), mark]
    return Outgoing(WEBHOOKS, record.partition, record.key, record.value, headers)


def _replayed(letter: Incoming, now_ms: int) -> Outgoing:
    """A record that says of a dead letter that it was put back."""
    mark = (REPLAYED, _place(letter.partition, letter.offset))
    return _marker(letter.partition, [mark, (REPLAYED_AT, str(now_ms).encode())])


def _expired(place: tuple[int, int]) -> Outgoing:
    """A record that says of a dead letter that its topic has it no more."""
    return _marker(place[0], [(EXPIRED, _place(*place))])


def _marker(partition: int, headers: list[tuple[str, bytes]]) -> Outgoing:
    """A record of the topic `dead-letters` that says something of another one.

    Shape:  it has a key and a value of its own, so that compaction keeps it beside the other. The
            first header says what, and of which.
    """
    what, of = headers[0]
    return Outgoing(DEAD_LETTERS, partition, b":".join((what.encode(), of)), b"", headers)


def _place(partition: int, offset: int) -> bytes:
    return f"{partition}@{offset}".encode()
