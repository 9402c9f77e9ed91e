"""The half of a rebuild that needs no state: deliveries are read, and normalized where that is all.

What a delivery says of rows depends on it alone, once its owner is known. So other processes read
some partitions each, and give what they found to the one that has the state of all partitions. What
depends on more (whose it is, what waits, a wipe) they pass on as it lies in the log.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self, TypeAlias, cast

import msgspec

from headwater.processors.columns import RowUpdate
from headwater.processors.providers.placement import Placement
from headwater.processors.providers.provider import DeliveryType
from headwater.processors.providers.results import updates_of
from headwater.processors.wipes import wipe_order_of
from headwater.schemas.codec import decode
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.schemas.records import Stamp, WebhookReceived
from headwater.schemas.tables import USERS, Table, Value
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import REPLAY_OF, text_header
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming, partition_of
from headwater.streams.pipeline.processing import admitted
from headwater.streams.pipeline.wiping import Names, names_of

#: Deliveries that are taken together, and bytes of them: a row is encoded once for all of these.
_AT_ONCE: Final = 5_000
_AT_ONCE_BYTES: Final = 16 * 1024 * 1024

_StampFields: TypeAlias = tuple[int, int, int, str, int, int, int]


class Patch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a delivery says of a row, as it is sent: a `RowUpdate` without what says nothing."""

    table: str
    key: tuple[str, ...]
    values: Mapping[str, Value]
    stamp: _StampFields

    @property
    def update(self) -> RowUpdate:
        """The update."""
        return RowUpdate(TABLE_BY_NAME[self.table], self.key, self.values, Stamp(*self.stamp))


class Ready(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """A delivery that was normalized: its owner is known, and lives where it lies.

    Shape:  names are those by which a wipe knows it.
    """

    offset: int
    timestamp: int
    event_id: str
    names: Names
    patches: tuple[Patch, ...]

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return self.event_id.encode()


class Whole(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """A delivery as it lies in the log: what it comes to depends on more than itself."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, record: Incoming) -> Self:
        """A record, which has a value."""
        key, value = record.key or b"", cast("bytes", record.value)
        return cls(record.offset, record.timestamp, key, value, tuple(record.headers))

    def record(self, partition: int) -> Incoming:
        """The record."""
        key, value, headers = self.key, self.value, cast("Any", self.headers)
        where = (WEBHOOKS, partition, self.offset, self.timestamp, 0)
        return Incoming(*where, key, value, None, len(key), len(value), headers)


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some deliveries of a partition, in order; those that do not matter are left out.

    Shape:  end is the offset behind them, timestamp that of the last one.
    """

    partition: int
    end: int
    timestamp: int
    found: tuple[Ready | Whole, ...]


class Span(NamedTuple):
    """What is to be read of a partition: from an offset up to another."""

    partition: int
    start: int
    end: int


class Reading:
    """Reads deliveries for the rebuild of a table.

    Shape:  without a table for those of all: then deliveries are all passed on.
    """

    def __init__(self, placement: Placement, partitions: int, table: Table | None = None) -> None:
        #: It lacks the types of deliveries that do not matter to the table.
        self.placement = placement if table is None else _narrowed(placement, table)
        self._partitions = partitions
        #: Whether everything is passed on: when a user was heard of is found out of all deliveries.
        self.passes_on = table in (None, USERS)
        self._wanted = frozenset(_wanted(placement, table)) if table else frozenset()

    def chunk(self, records: Sequence[Incoming]) -> Chunk:
        """Reads records of a partition, one or more."""
        last = records[-1]
        found = [self._read(record) for record in records if record.value is not None]
        kept = tuple(each for each in found if each is not None)
        return Chunk(last.partition, last.offset + 1, last.timestamp, kept)

    def _read(self, record: Incoming) -> Ready | Whole | None:
        try:
            delivery = decode(record.value, WebhookReceived)
            if wipe_order_of(delivery) is not None:
                return Whole.of(record)
            kind = self.placement.kind_of(delivery)
            if kind is None or record.key != delivery.event_id.encode():
                return None  # It has no rows, or none that matter; or it was a dead letter.
            ready = self._normalized(kind, delivery, record)
        except Exception:  # noqa: BLE001, it is met again by whoever says what becomes of it
            ready = None
        return ready or Whole.of(record)

    def _normalized(
        self, kind: DeliveryType[Any], delivery: WebhookReceived, record: Incoming
    ) -> Ready | None:
        """What a delivery says of rows; None if more has to be known for it."""
        user = self.placement.user_of(delivery)
        owner = user if kind.of_user else delivery.subject or delivery.event_id
        if self.passes_on or kind.fills_lookup or owner is None:
            return None
        lives_here = partition_of(owner.encode(), self._partitions) == record.partition
        if not lives_here or text_header(record, REPLAY_OF) is not None:
            return None
        event = admitted(delivery, record, user, record.offset, record.timestamp)
        result = self.placement.providers[event.source].normalize(event)
        patches = tuple(_patch(each) for each in updates_of(result) if each.table in self._wanted)
        names = names_of(delivery, user)
        return Ready(record.offset, record.timestamp, event.event_id, names, patches)


async def read_here(
    cluster: Cluster, reading: Reading, spans: Sequence[Span]
) -> AsyncGenerator[Chunk]:
    """Reads partitions one after the other, in this process.

    Errors: BrokerUnavailable.
    """
    for number, start, end in spans:
        records = read_partition(cluster, [WEBHOOKS], number, start=start, end=end)
        async with aclosing(records) as batches:
            async for gathered in _gathered(batches):
                yield reading.chunk(gathered)


async def _gathered(reader: AsyncIterator[list[Incoming]]) -> AsyncIterator[list[Incoming]]:
    """The batches of a reader, several as one."""
    gathered: list[Incoming] = []
    size = 0
    async for records in reader:
        gathered += records
        size += sum(record.serialized_value_size for record in records)
        if len(gathered) >= _AT_ONCE or size >= _AT_ONCE_BYTES:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _patch(update: RowUpdate) -> Patch:
    values = {name: value for name, value in update.values.items() if value is not None}
    return Patch(update.table.name, update.key, values, msgspec.structs.astuple(update.stamp))


def _narrowed(placement: Placement, table: Table) -> Placement:
    """Without the types of deliveries that do not matter to a table.

    It has no rows of theirs, and they say nothing of whose a delivery is. All say when a user was
    heard of.
    """
    if table is USERS:
        return placement
    wanted = _wanted(placement, table)
    return placement._replace(
        providers={
            name: replace(
                provider,
                types={
                    type_: kind
                    for type_, kind in provider.types.items()
                    if not wanted.isdisjoint(kind.tables)
                },
            )
            for name, provider in placement.providers.items()
        }
    )


def _wanted(placement: Placement, table: Table) -> set[Table]:
    """A table, and those in which users are looked up."""
    kinds = [kind for each in placement.providers.values() for kind in each.types.values()]
    return {table, *(kind.lookup.table for kind in kinds if kind.lookup is not None)}
