"""Rebuilding rows: the topic `webhooks` from its first offset, by the code of today.

What decides on rows is what decides at intake: the same state of partitions in stores of their own,
the same hops between them, which are taken at once. Only time is that of the log: a wait ends when
a record of its partition is as much later. Nothing is appended.

A store is written after those that its deliveries have hopped to, and says how far it is; so a
process that is killed goes on, and what it does once more changes nothing.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Final, NamedTuple

from typing_extensions import override

from headwater.processors.columns import adopt
from headwater.processors.epochs import Newest
from headwater.processors.providers.placement import Placement
from headwater.processors.providers.results import Effect, NormalizeResult
from headwater.processors.triggers.decide import NoEffect
from headwater.processors.wipes import order_of
from headwater.schemas.codec import decode, decode_row
from headwater.schemas.epochs import CLAIM_KEY, epoch_of
from headwater.schemas.errors import NotYetReadable
from headwater.schemas.records import WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import USERS, Row, Table, Value
from headwater.schemas.topics import EVENTS, UNRESOLVED, WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import REPLAY_OF, text_header
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.state_store import Family, StoreCorrupted
from headwater.streams.pipeline.emission import Emission
from headwater.streams.pipeline.partition_state import PartitionState
from headwater.streams.pipeline.processing import Processing
from headwater.streams.pipeline.rebuild_reading import Chunk, Reading, Ready, Span
from headwater.streams.pipeline.staged import Mark, Store
from headwater.streams.pipeline.wiping import forget, is_wiped, subject_of, was_wiped

_HOPS: Final = (EVENTS, UNRESOLVED)
#: The rows as their owners have them, beside those that were made again.
_LIVE: Final = Family("l")
_PAGE: Final = 1_000
#: Waits last a day, and are looked through as seldom as that allows: it costs a scan.
_GIVE_UP_EVERY_MS: Final = 60_000


class _Hops(Emission):
    """Keeps what goes to other owners; whatever else a delivery leads to, it has led to already."""

    @override
    def add(self, record: Outgoing) -> None:
        if record.topic in _HOPS:
            self.records.append(record)

    @override
    def normalized(self, event: WebhookAdmitted, record: Incoming, result: NormalizeResult) -> None:
        """Says nothing."""

    @override
    def outcome(self, *_: object, **__: object) -> None:
        """Says nothing."""

    @override
    def effect(self, event: WebhookAdmitted, record: Incoming, found: Effect | NoEffect) -> None:
        """Does nothing."""

    @override
    def dead(self, *_: object, **__: object) -> None:
        """Says nothing."""

    @override
    def failed(self, record: Incoming, event: WebhookAdmitted | None, error: Exception) -> None:
        """Says nothing."""


class Difference(NamedTuple):
    """A row that comes out otherwise: as it is, and as it would be; one of them may be None."""

    partition: int
    key: bytes
    before: Row | None
    after: Row | None

    @property
    def kind(self) -> str:
        """added, removed or changed."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"

    def columns(self, table: Table) -> dict[str, tuple[Value, Value]]:
        """The columns that differ, with both values."""
        nothing = (None,) * len(table.columns)
        before = self.before.values if self.before else nothing
        after = self.after.values if self.after else nothing
        return {
            name: (one, other)
            for name, one, other in zip(table.column_names, before, after, strict=True)
            if one != other
        }


class Rebuild:
    """The rows of all partitions, made again in stores.

    Shape:  stores has one for each partition of `webhooks`. With a `table`, its rows are right, and
            others are as they may be: deliveries that it does not depend on are not looked at.
    """

    def __init__(
        self,
        placement: Placement,
        stores: Sequence[Store],
        park_for_ms: int,
        table: Table | None = None,
    ) -> None:
        self.reading = Reading(placement, len(stores), table)
        self._placement = self.reading.placement
        self._has_users = table in (None, USERS)
        self._stores = stores
        self._states = [PartitionState(number, store) for number, store in enumerate(stores)]
        self._positions = [state.mark().positions.get(WEBHOOKS, 0) for state in self._states]
        self._park_for_ms = park_for_ms
        #: When waits were looked through last, by the time of the log.
        self._gave_up_ms = [0] * len(self._states)
        #: Stores with rows that came by a hop and are not written.
        self._touched: set[int] = set()

    @property
    def applied(self) -> int:
        """How far it is, as offsets of all partitions together."""
        return sum(self._positions)

    def spans(self, ends: Sequence[int]) -> list[Span]:
        """What is left to be read up to some ends."""
        spans = map(Span, range(len(ends)), self._positions, ends)
        return [span for span in spans if span.start < span.end]

    async def follow(
        self,
        ends: Sequence[int],
        readers: Iterable[AsyncGenerator[Chunk]],
        progressed: Callable[[], Awaitable[None]],
    ) -> None:
        """Takes what readers of the spans up to some ends have, in turns.

        Shape:  calls `progressed` whenever more is durable.
        Errors: BrokerUnavailable, NotYetReadable, StoreCorrupted; going on is safe.
        """
        async with AsyncExitStack() as exits:
            left = [await exits.enter_async_context(aclosing(reader)) for reader in readers]
            while left:
                for reader in tuple(left):
                    chunk = await anext(reader, None)
                    if chunk is None:
                        left.remove(reader)
                    else:
                        self.take(chunk)
                        await progressed()
        self._positions = list(map(max, self._positions, ends))
        for state in self._states:
            state.give_up_wiped()

    def take(self, chunk: Chunk) -> None:
        """Takes deliveries of a partition, and writes what became of them."""
        number = chunk.partition
        claims = self._states[number].claims
        claims.load(each.key for each in chunk.found if each.key)
        processing = self._processing(number, chunk.timestamp)
        for each in chunk.found:
            self._at(each.timestamp, number, processing)
            if isinstance(each, Ready):
                self._merge(number, each)
            else:
                self._whole(processing, each.record(number))
        self._at(chunk.timestamp, number, processing)
        self._note_users(processing)
        claims.changed(chunk.timestamp)
        claims.expire(chunk.timestamp)
        self._positions[number] = chunk.end
        self._touched.discard(number)
        for other in (*self._touched, number):
            state = self._states[other]
            state.rows.changed()
            state.write(Mark(positions={WEBHOOKS: self._positions[other]}))
        self._touched.clear()

    def _at(self, now_ms: int, number: int, processing: Processing) -> None:
        """It is as late by the time of the log: ends the waits that are over."""
        processing.emission.now_ms = now_ms
        if now_ms - self._gave_up_ms[number] >= _GIVE_UP_EVERY_MS:
            self._gave_up_ms[number] = now_ms
            processing.give_up(self._park_for_ms)

    def _merge(self, number: int, ready: Ready) -> None:
        """Writes the rows of a delivery that was normalized, unless it is a copy or was wiped."""
        state, offset = self._states[number], ready.offset
        is_copy = state.claims.first(ready.event_id, offset) < offset
        if not is_copy and not state.wipes.fences.cover(ready.names, number, offset):
            for patch in ready.patches:
                state.rows.merge(patch.update)

    def _whole(self, processing: Processing, record: Incoming) -> None:
        """Processes a delivery as intake does."""
        _guarded(processing, record, self._admit)
        emission = processing.emission
        if emission.records:
            hops, emission.records = emission.records, []
            self._hop(hops, record)

    def _admit(self, processing: Processing, record: Incoming) -> None:
        delivery = decode(record.value, WebhookReceived)
        state = self._states[record.partition]
        order = order_of(delivery)
        if order is not None:
            self._note_users(processing)
            forget(state, order, delivery, record)
            return
        if self._placement.kind_of(delivery) is None:
            return  # It has no rows, or none that matter.
        first = state.claims.first(delivery.event_id, record.offset)
        if was_wiped(state, self._placement, delivery, min(first, record.offset)):
            return
        # A copy is signed later, with the same data: it must not count as the later delivery.
        if first >= record.offset or text_header(record, REPLAY_OF) is not None:
            processing.admit(delivery, record, min(first, record.offset))

    def _hop(self, hops: Sequence[Outgoing], origin: Incoming) -> None:
        """Takes what goes to other partitions there, at once."""
        left = deque(hops)
        while left:
            hop = left.popleft()
            processing = self._processing(hop.partition, origin.timestamp)
            self._touched.add(hop.partition)

            def taken(processing: Processing, record: Incoming, hop: Outgoing = hop) -> None:
                event = decode(hop.value, WebhookAdmitted)
                if is_wiped(self._states[hop.partition], event):
                    return
                if hop.topic == EVENTS:
                    processing.own(event, record, replayed=False)
                else:
                    processing.under(subject_of(hop.key), event, record)

            _guarded(processing, origin, taken)
            self._note_users(processing)
            left.extend(processing.emission.records)

    def _note_users(self, processing: Processing) -> None:
        if self._has_users:
            processing.note_users()

    def _processing(self, number: int, now_ms: int) -> Processing:
        state = self._states[number]
        emission = _Hops(stage="rebuild", partition=number, headers=[], now_ms=now_ms)
        return Processing(self._placement, len(self._states), state, emission, ())

    # -- comparing

    async def read_live(self, cluster: Cluster, table: Table) -> None:
        """Reads the rows of a table as their owners have them now.

        Errors: BrokerUnavailable, StoreCorrupted.
        """
        for number, store in enumerate(self._stores):
            store.drop(_LIVE)
            newest = Newest()
            async with aclosing(read_partition(cluster, [table.topic], number)) as batches:
                async for records in batches:
                    rows = {}
                    for record in records:
                        if newest.admit(epoch_of(record.headers)) and record.key != CLAIM_KEY:
                            rows[record.key or b""] = record.value
                    store.write({_LIVE: rows}, {})
            if self._states[number].wipes.known:
                store.purge(_LIVE)  # The topic may still have their rows, from before.

    def differences(self, table: Table, ends: Sequence[int]) -> Iterator[Difference]:
        """The rows of a table that come out otherwise than they are, up to the ends that it has."""
        for number, store in enumerate(self._stores):
            live = _scan(store, _LIVE, b"")
            made = self._states[number].rows.of_table(table)
            for key, before, rebuilt in _side_by_side(live, made):
                held = None if before is None else decode_row(table, before)
                again = None if rebuilt is None else decode_row(table, rebuilt)
                after = adopt(table, held, again, ends)
                if _values(held) != _values(after):
                    yield Difference(number, key, held, after)

    def live(self, table: Table, number: int, key: bytes) -> Row | None:
        """A row as its owner has it, as far as that was read."""
        value = self._stores[number].get(_LIVE, key)
        return None if value is None else decode_row(table, value)

    def close(self) -> None:
        """Closes the stores."""
        for state in self._states:
            state.close()


def _guarded(
    processing: Processing, record: Incoming, take: Callable[[Processing, Incoming], None]
) -> None:
    """Takes a record; one that cannot be taken is a dead letter already, and has no rows."""
    try:
        take(processing, record)
    except (NotYetReadable, StoreCorrupted):
        raise
    except Exception as error:  # noqa: BLE001, as at intake
        processing.failed(record, error)


def _values(row: Row | None) -> Sequence[Value] | None:
    return None if row is None else row.values


def _scan(store: Store, family: Family, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    after: bytes | None = None
    while found := store.scan(family, prefix, after=after, limit=_PAGE):
        yield from found
        after = found[-1][0]


def _side_by_side(
    one: Iterator[tuple[bytes, bytes]], other: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Joins two scans, each in the order of its keys."""
    left, right = next(one, None), next(other, None)
    while left is not None or right is not None:
        if left is not None and (right is None or left[0] < right[0]):
            yield left[0], left[1], None
            left = next(one, None)
        elif right is not None and (left is None or right[0] < left[0]):
            yield right[0], None, right[1]
            right = next(other, None)
        elif left is not None and right is not None:
            yield left[0], left[1], right[1]
            left, right = next(one, None), next(other, None)
