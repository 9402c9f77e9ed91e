"""Rebuild rows from the first offset of the topic `webhooks`, with the current code.

Rows are decided by the code of intake: with the same state of partitions in separate stores, and
the same hops between them, which are taken at once. Time is that of the log: a wait ends when a
record of its partition is as much later. Nothing is appended.

A store is written after those that its deliveries have hopped to, with its position. So a process
that is killed continues, and what it does again changes nothing.
"""

from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Final, NamedTuple

from typing_extensions import override

from headwater.processors.columns import adopt
from headwater.processors.providers.provider import Placement, reroute
from headwater.processors.providers.results import Effect, NormalizeResult
from headwater.processors.runs.claims import Claims
from headwater.processors.triggers.decide import RejectedEffect
from headwater.processors.wipes import wipe_order_of
from headwater.schemas.codec import decode, decode_row, encode_row
from headwater.schemas.epochs import CLAIM_KEY, epoch_of
from headwater.schemas.errors import NotYetReadable, RowTooLarge
from headwater.schemas.records import UserForgotten, WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import USERS, Row, Table, TimeColumn
from headwater.schemas.topics import EVENTS, UNRESOLVED, WEBHOOKS, WIPES
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.state_store import Family, StateStore, StoreCorrupted
from headwater.streams.pipeline.deduplication import is_replayed, original_of
from headwater.streams.pipeline.partition_state import (
    Claim,
    PartitionCheckpoint,
    PartitionState,
)
from headwater.streams.pipeline.processing import Processing
from headwater.streams.pipeline.rebuild_reader import Chunk, NormalizedDelivery, RebuildReader, Span
from headwater.streams.pipeline.record_batch import RecordBatch
from headwater.streams.pipeline.wiping import (
    accept_here,
    accepted_by,
    comes_back,
    forget,
    is_skipped,
    is_wiped,
    subject_of,
    was_wiped,
)

_HOPS: Final = (EVENTS, UNRESOLVED)
#: The rows as their owners have them, stored with the rebuilt ones.
_LIVE: Final = Family("l")
_PAGE: Final = 1_000
#: Waits last a day, and are expired as rarely as that allows, because it costs a scan.
_EXPIRE_EVERY_MS: Final = 60_000


class _Hops(RecordBatch):
    """Collects hops only; all other records of the delivery were appended when it was live."""

    @override
    def add(self, record: Outgoing) -> None:
        if record.topic in _HOPS:
            self.records.append(record)

    @override
    def normalized(self, event: WebhookAdmitted, record: Incoming, result: NormalizeResult) -> None:
        """Do nothing."""

    @override
    def outcome(self, *_: object, **__: object) -> None:
        """Do nothing."""

    @override
    def effect(
        self, event: WebhookAdmitted, record: Incoming, effect: Effect | RejectedEffect
    ) -> None:
        """Do nothing."""

    @override
    def dead(self, *_: object, **__: object) -> None:
        """Do nothing."""

    @override
    def failed(self, record: Incoming, event: WebhookAdmitted | None, error: Exception) -> None:
        """Do nothing."""


class RebuiltRow(NamedTuple):
    """A row before and after the rebuild, as records of its topic.

    Attributes:
        before: The row that its owner has; None if there is none.
        after: The rebuilt row, with the values of later deliveries.
        is_changed: Whether its owner has other values.
        is_hidden: Whether only its owner knows the row after the rebuild.
    """

    partition: int
    key: bytes
    before: bytes | None
    after: bytes | None
    is_changed: bool
    is_hidden: bool


class _LiveTopic:
    """How far a partition of the table's topic was read."""

    def __init__(self) -> None:
        self.offset = 0
        self.claims = Claims()


class Rebuild:
    """The rows of all partitions, rebuilt in stores.

    Args:
        placement: The providers.
        stores: One store for each partition of `webhooks`.
        park_for_ms: Duration of waits, in milliseconds.
        table: The only table with correct rows, because deliveries that are irrelevant for it are
            skipped; None for all tables.
    """

    def __init__(
        self,
        placement: Placement,
        stores: Sequence[StateStore],
        park_for_ms: int,
        table: Table | None = None,
    ) -> None:
        self.reader = RebuildReader(placement, len(stores), table)
        self._placement = self.reader.placement
        self._has_users = table in (None, USERS)
        self._stores = stores
        self._states = [PartitionState(number, store) for number, store in enumerate(stores)]
        self._positions = [state.checkpoint().positions.get(WEBHOOKS, 0) for state in self._states]
        self._park_for_ms = park_for_ms
        #: When waits were last expired, by the time of the log.
        self._expired_ms = [0] * len(self._states)
        #: Stores with rows that came by a hop and are not written yet.
        self._touched: set[int] = set()
        self._live = [_LiveTopic() for _ in stores]

    @property
    def applied(self) -> int:
        """Return its progress, as the sum of the offsets of all partitions."""
        return sum(self._positions)

    def spans(self, ends: Sequence[int]) -> list[Span]:
        """Return the spans still to be read up to some ends."""
        spans = map(Span, range(len(ends)), self._positions, ends)
        return [span for span in spans if span.start < span.end]

    async def follow(
        self,
        ends: Sequence[int],
        readers: Iterable[AsyncGenerator[Chunk]],
        progressed: Callable[[], Awaitable[None]],
    ) -> None:
        """Apply the chunks of readers of the spans up to some ends, in turn.

        Args:
            ends: End offsets by partition.
            readers: The readers.
            progressed: Called whenever more is durable.

        Raises:
            BrokerUnavailable: No broker answered. The rebuild may continue later.
            NotYetReadable: A newer release wrote a record. The rebuild may continue later.
            StoreCorrupted: A store could not be read or written, and starts over.
        """
        async with AsyncExitStack() as exits:
            active = [await exits.enter_async_context(aclosing(reader)) for reader in readers]
            while active:
                for reader in tuple(active):
                    chunk = await anext(reader, None)
                    if chunk is None:
                        active.remove(reader)
                    else:
                        self.apply(chunk)
                        await progressed()
        self._positions = list(map(max, self._positions, ends))
        for state in self._states:
            state.purge_wiped()

    def apply(self, chunk: Chunk) -> None:
        """Process deliveries of a partition, and write the changed rows."""
        number = chunk.partition
        claims = self._states[number].claims
        claims.load(delivery.key for delivery in chunk.deliveries if delivery.key)
        processing = self._processing(number, chunk.timestamp)
        for delivery in chunk.deliveries:
            self._advance(delivery.timestamp, number, processing)
            if isinstance(delivery, NormalizedDelivery):
                self._merge(number, delivery)
            else:
                self._process(processing, delivery.record(number))
        self._advance(chunk.timestamp, number, processing)
        self._write_users_seen(processing)
        claims.changed(chunk.timestamp)
        claims.expire(chunk.timestamp)
        self._positions[number] = chunk.end
        self._touched.discard(number)
        for other in (*self._touched, number):
            state = self._states[other]
            state.rows.changed()
            state.write(PartitionCheckpoint(positions={WEBHOOKS: self._positions[other]}))
        self._touched.clear()

    def _advance(self, now_ms: int, number: int, processing: Processing) -> None:
        """Advance a partition to a time of the log, and expire waits."""
        processing.output.now_ms = now_ms
        if now_ms - self._expired_ms[number] >= _EXPIRE_EVERY_MS:
            self._expired_ms[number] = now_ms
            processing.expire_waits(self._park_for_ms)

    def _merge(self, number: int, delivery: NormalizedDelivery) -> None:
        """Write the rows of a normalized delivery, unless it is a duplicate or was wiped."""
        state, offset = self._states[number], delivery.offset
        fences = state.wipes.fences
        at_ms, origin = delivery.received_ms, delivery.origin
        if fences.skips_since(delivery.skippable, at_ms, origin) is not None:
            return
        first = state.claims.known(delivery.event_id)
        state.claims.claim([delivery.event_id], Claim(offset, 0))
        is_copy = first is not None and first.offset < offset
        if not is_copy and not fences.cover(delivery.names, number, offset):
            with suppress(RowTooLarge):  # It was a dead letter.
                state.rows.merge_delivery(patch.update for patch in delivery.patches)

    def _process(self, processing: Processing, record: Incoming) -> None:
        """Process a delivery as intake does."""
        _guarded(processing, record, self._admit)
        output = processing.output
        if output.records:
            hops, output.records = output.records, []
            self._hop(hops, record)

    def _admit(self, processing: Processing, record: Incoming) -> None:
        received = decode(record.value, WebhookReceived)
        state = self._states[record.partition]
        order = wipe_order_of(received)
        if order is not None:
            self._write_users_seen(processing)
            forget(state, order, received, record)
            return
        delivery = reroute(received, self._placement.providers)
        if self._placement.kind_of(delivery) is None:
            return  # It has no relevant rows.
        original = original_of(state, self._placement, received, record)
        user = self._placement.user_of(delivery)
        returns = comes_back(state, self._placement, delivery, user)
        if was_wiped(state, self._placement, delivery, original.offset) or (
            not returns and is_skipped(state, self._placement, delivery, user)
        ):
            return
        # A duplicate has a later signature and the same data: it must not count as later.
        if original.offset >= record.offset or is_replayed(record):
            state.claims.claim(original.claims, Claim(record.offset, received.sent_at_ms))
            if returns:
                names = accepted_by(delivery, user, state.partition, original.offset)
                state.wipes.accept(names)
            processing.admit(delivery, record, original.offset, comes_back=returns)

    def _hop(self, hops: Sequence[Outgoing], origin: Incoming) -> None:
        """Process hops at their partitions, at once."""
        pending = deque(hops)
        while pending:
            hop = pending.popleft()
            processing = self._processing(hop.partition, origin.timestamp)
            self._touched.add(hop.partition)

            def taken(processing: Processing, record: Incoming, hop: Outgoing = hop) -> None:
                event = decode(hop.value, WebhookAdmitted)
                state = self._states[hop.partition]
                if is_wiped(state, event):
                    return
                accept_here(state, event)
                if hop.topic == EVENTS:
                    processing.process_owned(event, record, replayed=False)
                else:
                    processing.process_subject(subject_of(hop.key), event, record)

            _guarded(processing, origin, taken)
            self._write_users_seen(processing)
            pending.extend(processing.output.records)

    def _write_users_seen(self, processing: Processing) -> None:
        if self._has_users:
            processing.write_users_seen()

    def _processing(self, number: int, now_ms: int) -> Processing:
        state = self._states[number]
        output = _Hops(stage="rebuild", partition=number, headers=[], now_ms=now_ms)
        return Processing(self._placement, len(self._states), state, output, ())

    async def read_accepted(self, cluster: Cluster) -> None:
        """Read which wiped names the owners accept again, and since when.

        Partitions are read in any order, so one may need to know it before another has read by what
        delivery the user came back.

        Raises:
            BrokerUnavailable: No broker answered.
        """
        for number in range(len(self._states)):
            async with aclosing(read_partition(cluster, [WIPES], number)) as batches:
                async for records in batches:
                    self.note_accepted(number, records)

    def note_accepted(self, number: int, records: Iterable[Incoming]) -> None:
        """Take over which names a partition accepts again from records of its wipes."""
        for record in records:
            if record.value is not None and record.key != CLAIM_KEY:
                wipe = decode(record.value, UserForgotten)
                self._states[number].wipes.fences.accept(wipe.accepted)

    # -- comparing

    def forget_live(self) -> None:
        """Forget the rows of owners, to read them from the first offset again."""
        self._live = [_LiveTopic() for _ in self._stores]
        for store in self._stores:
            store.drop(_LIVE)

    async def read_live(
        self, cluster: Cluster, table: Table, ends: Mapping[int, int]
    ) -> AsyncGenerator[tuple[int, Collection[bytes]]]:
        """Read on the rows of a table as their owners have them, up to some ends of its topic.

        Yields:
            A partition, and the keys of rows that were read.

        Raises:
            BrokerUnavailable: No broker answered.
            StoreCorrupted: A store could not be written.
        """
        for number, store in enumerate(self._stores):
            live, end = self._live[number], ends.get(number, 0)
            reading = read_partition(cluster, [table.topic], number, start=live.offset, end=end)
            async with aclosing(reading) as batches:
                async for records in batches:
                    rows = {
                        record.key or b"": record.value
                        for record in records
                        if live.claims.admit_epoch(epoch_of(record.headers))
                        and record.key != CLAIM_KEY
                    }
                    store.write({_LIVE: rows}, {})
                    yield number, rows
            live.offset = max(live.offset, end)
            if self._states[number].wipes.known:
                store.purge(_LIVE)  # The topic may still have rows of wiped users.

    def rows(self, table: Table, ends: Sequence[int]) -> Iterator[RebuiltRow]:
        """Yield all rows of a table, rebuilt ones and those of owners.

        Args:
            table: The table.
            ends: Offsets up to which the rebuild has read; rows keep what later deliveries set.
        """
        for number, store in enumerate(self._stores):
            live = _scan(store, _LIVE, b"")
            rebuilt_rows = self._states[number].rows.of_table(table)
            for key, before, rebuilt in _side_by_side(live, rebuilt_rows):
                yield combined_row(table, number, key, before, rebuilt, ends)

    def row(self, table: Table, number: int, key: bytes, ends: Sequence[int]) -> RebuiltRow:
        """Return one of these rows, by its partition and key."""
        before = self._stores[number].get(_LIVE, key)
        rebuilt = self._states[number].rows.stored(table, key)
        return combined_row(table, number, key, before, rebuilt, ends)

    def close(self) -> None:
        """Close the stores."""
        for state in self._states:
            state.close()


def _guarded(
    processing: Processing, record: Incoming, process: Callable[[Processing, Incoming], None]
) -> None:
    """Process a record; one that fails is a dead letter already, and has no rows."""
    try:
        process(processing, record)
    except (NotYetReadable, StoreCorrupted):
        raise
    except Exception as error:  # noqa: BLE001, as at intake
        processing.failed(record, error)


def combined_row(
    table: Table,
    number: int,
    key: bytes,
    before: bytes | None,
    rebuilt: bytes | None,
    ends: Sequence[int],
) -> RebuiltRow:
    """Return a row of an owner and its rebuilt version, which includes later deliveries."""
    new = None if rebuilt is None else decode_row(table, rebuilt)
    if before == rebuilt:
        return RebuiltRow(number, key, before, rebuilt, False, _is_hidden(new))
    old = None if before is None else decode_row(table, before)
    row = adopt(table, old, new, ends)
    after = None if row is None else encode_row(table, row)
    is_changed = _content(table, old) != _content(table, row)
    return RebuiltRow(number, key, before, after, is_changed, _is_hidden(row))


def _is_hidden(row: Row | None) -> bool:
    return row is not None and row.is_hidden


def _content(table: Table, row: Row | None) -> Any:  # noqa: ANN401, comparable
    """Return what a row contains: its values, the times of some of them, and those of its parts."""
    if row is None:
        return None
    values = row.values, [_time_of(table, row, time) for time in table.times]
    parts = {} if row.state is None else row.state.parts
    if parts:
        return values, {name: (part.values, part.counts) for name, part in parts.items()}
    return None if row.is_hidden else values


def _time_of(table: Table, row: Row, time: TimeColumn) -> int | None:
    """Return when the delivery was signed that gave a column the value that the time refers to."""
    position = table.index[time.column]
    stamp = row.stamps[position]
    is_set = stamp is not None and row.values[position] == time.value
    return stamp.sent_at_ms if stamp is not None and is_set else None


def _scan(store: StateStore, family: Family, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    after: bytes | None = None
    while page := store.scan(family, prefix, after=after, limit=_PAGE):
        yield from page
        after = page[-1][0]


def _side_by_side(
    one: Iterator[tuple[bytes, bytes]], other: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Join two scans in the order of their keys."""
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
