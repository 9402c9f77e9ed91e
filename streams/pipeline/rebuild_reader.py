"""The stateless half of a rebuild: read deliveries, and normalize those that need no state.

The rows of a delivery depend on it alone, once its owner is known. So several processes read some
partitions each, and send results to the process that has the state of all partitions. Deliveries
that need state (to resolve their user, because they are parked, or for a wipe) are passed on
unchanged.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self, TypeAlias, cast

import msgspec

from headwater.processors.columns import RowDeleted, RowUpdate, Update
from headwater.processors.providers.provider import AfterWipe, DeliveryType, Placement, reroute
from headwater.processors.providers.results import updates_of
from headwater.processors.wipes import wipe_order_of
from headwater.schemas.codec import decode
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.schemas.records import Stamp, WebhookReceived
from headwater.schemas.tables import DAILY_SUMMARY, SLEEP_SESSIONS, USERS, Table, Value
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import REPLAY_OF, text_header
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, partition_of
from headwater.streams.pipeline.processing import admitted
from headwater.streams.pipeline.wiping import Names, names_of

#: Deliveries in one chunk, and bytes of them: a row is encoded once for all of these.
_CHUNK_RECORDS: Final = 5_000
_CHUNK_BYTES: Final = 16 * 1024 * 1024

_StampFields: TypeAlias = tuple[int, int, int, str, int, int, int]


class Patch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is sent of an update between processes: its values that are not null.

    Attributes:
        values: None if the row is deleted.
    """

    table: str
    key: tuple[str, ...]
    values: Mapping[str, Value] | None
    stamp: _StampFields
    parts: Mapping[str, Mapping[str, Value]] = {}

    @property
    def update(self) -> Update:
        """Return the update."""
        table, stamp = TABLE_BY_NAME[self.table], Stamp(*self.stamp)
        if self.values is None:
            return RowDeleted(table, self.key, stamp)
        return RowUpdate(table, self.key, self.values, stamp, self.parts)


class NormalizedDelivery(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """A normalized delivery of an owner in the same partition.

    Attributes:
        offset: Offset of its record.
        timestamp: Timestamp of its record.
        event_id: Its id.
        names: Names by which a wipe finds it.
        patches: Updates of rows.
        skippable: Names for which it is skipped after a wipe.
        received_ms: When it was received, in Unix milliseconds.
        origin: Position of its record in a source's topic; empty for a webhook.
    """

    offset: int
    timestamp: int
    event_id: str
    names: Names
    patches: tuple[Patch, ...]
    skippable: tuple[str | None, ...]
    received_ms: int
    origin: str

    @property
    def key(self) -> bytes:
        """Return the key of its record."""
        return self.event_id.encode()


class RawDelivery(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The record of a delivery that cannot be normalized without state."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, record: Incoming) -> Self:
        """Make one from a record that has a value."""
        key, value = record.key or b"", cast("bytes", record.value)
        return cls(record.offset, record.timestamp, key, value, tuple(record.headers))

    def record(self, partition: int) -> Incoming:
        """Return the record."""
        key, value, headers = self.key, self.value, cast("Any", self.headers)
        position = (WEBHOOKS, partition, self.offset, self.timestamp, 0)
        return Incoming(*position, key, value, None, len(key), len(value), headers)


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some deliveries of a partition, in order; irrelevant ones are omitted.

    Attributes:
        partition: The partition.
        end: Offset after the last record.
        timestamp: Timestamp of the last record.
        deliveries: The deliveries.
    """

    partition: int
    end: int
    timestamp: int
    deliveries: tuple[NormalizedDelivery | RawDelivery, ...]


class Span(NamedTuple):
    """Offsets to read of a partition: `start` inclusive, `end` exclusive."""

    partition: int
    start: int
    end: int


class RebuildReader:
    """Reads deliveries for the rebuild of a table.

    Args:
        placement: The providers.
        partitions: Number of partitions.
        table: The table; None for all tables. All deliveries are passed on unchanged then.
    """

    def __init__(self, placement: Placement, partitions: int, table: Table | None = None) -> None:
        #: Without the types of deliveries that are irrelevant for the table.
        self.placement = placement if table is None else _narrowed(placement, table)
        self._partitions = partitions
        #: Whether everything is passed on: all deliveries determine when a user was first seen.
        self.passes_on = table in (None, USERS)
        self._tables = frozenset(_tables(placement, table)) if table else frozenset()

    def chunk(self, records: Sequence[Incoming]) -> Chunk:
        """Return the chunk of one or more records of a partition."""
        last = records[-1]
        read = [self._read(record) for record in records if record.value is not None]
        relevant = tuple(delivery for delivery in read if delivery is not None)
        return Chunk(last.partition, last.offset + 1, last.timestamp, relevant)

    def _read(self, record: Incoming) -> NormalizedDelivery | RawDelivery | None:
        try:
            delivery = decode(record.value, WebhookReceived)
            if wipe_order_of(delivery) is not None:
                return RawDelivery.of(record)
            delivery = reroute(delivery, self.placement.providers)
            kind = self.placement.kind_of(delivery)
            if kind is None or record.key != delivery.event_id.encode():
                return None  # It has no relevant rows, or was a dead letter.
            delivered = self._normalized(kind, delivery, record)
        except Exception:  # noqa: BLE001, the process with the state handles it
            delivered = None
        return delivered or RawDelivery.of(record)

    def _normalized(
        self, kind: DeliveryType[Any], delivery: WebhookReceived, record: Incoming
    ) -> NormalizedDelivery | None:
        """Normalize a delivery; return None if that needs state."""
        user = self.placement.user_of(delivery)
        owner = user if kind.of_user else delivery.subject or delivery.event_id
        needs_rows = kind.unnamed is not None and not delivery.subject
        if self.passes_on or kind.fills_lookup or owner is None or needs_rows:
            return None
        is_here = partition_of(owner.encode(), self._partitions) == record.partition
        if not is_here or text_header(record, REPLAY_OF) is not None:
            return None
        event = admitted(delivery, record, user, record.offset, record.timestamp)
        result = self.placement.providers[event.source].normalize(event)
        patches = tuple(
            _patch(update) for update in updates_of(result) if update.table in self._tables
        )
        is_accepted = kind.after_wipe is AfterWipe.ACCEPTED
        return NormalizedDelivery(
            offset=record.offset,
            timestamp=record.timestamp,
            event_id=event.event_id,
            names=names_of(delivery, user),
            patches=patches,
            skippable=() if is_accepted else (user, delivery.reference, delivery.subject),
            received_ms=delivery.received_at_ms,
            origin=delivery.origin,
        )


async def read_here(
    cluster: Cluster, reader: RebuildReader, spans: Sequence[Span]
) -> AsyncGenerator[Chunk]:
    """Read partitions one after the other, in this process.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    for number, start, end in spans:
        records = read_partition(cluster, [WEBHOOKS], number, start=start, end=end)
        async with aclosing(records) as batches:
            async for gathered in _gathered(batches):
                yield reader.chunk(gathered)


async def _gathered(reader: AsyncIterator[list[Incoming]]) -> AsyncIterator[list[Incoming]]:
    """Join several batches of a reader into one."""
    gathered: list[Incoming] = []
    size = 0
    async for records in reader:
        gathered += records
        size += sum(record.serialized_value_size for record in records)
        if len(gathered) >= _CHUNK_RECORDS or size >= _CHUNK_BYTES:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _patch(update: Update) -> Patch:
    table, stamp = update.table.name, msgspec.structs.astuple(update.stamp)
    if isinstance(update, RowDeleted):
        return Patch(table, update.key, None, stamp)
    values = {name: value for name, value in update.values.items() if value is not None}
    return Patch(table, update.key, values, stamp, update.parts)


def _narrowed(placement: Placement, table: Table) -> Placement:
    """Return a placement without the types of deliveries that are irrelevant for a table.

    These have no rows in the table, and do not resolve users. All types determine when a user was
    first seen.
    """
    if table is USERS:
        return placement
    tables = _tables(placement, table)
    return placement._replace(
        providers={
            name: replace(
                provider,
                types={
                    type_: kind
                    for type_, kind in provider.types.items()
                    if not tables.isdisjoint(kind.tables)
                },
            )
            for name, provider in placement.providers.items()
        }
    )


def _tables(placement: Placement, table: Table) -> set[Table]:
    """Return a table, those on which its rows depend, and those in which users are looked up."""
    kinds = [kind for provider in placement.providers.values() for kind in provider.types.values()]
    depends_on = {DAILY_SUMMARY} if table is SLEEP_SESSIONS else set()
    lookups = (kind.lookup.table for kind in kinds if kind.lookup is not None)
    about = (kind.unnamed.table for kind in kinds if kind.unnamed and table in kind.tables)
    return {table, *depends_on, *lookups, *about}
