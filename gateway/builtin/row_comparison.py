"""Compare rows in Postgres with their records, and with what their deliveries come to."""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from aiokafka import TopicPartition

from headwater.processors.auditor.state import RowState
from headwater.processors.columns import RowUpdate
from headwater.processors.lineage import admitted, same_key, updates_of
from headwater.processors.providers.provider import Providers
from headwater.projections.deliveries.lineage import SourcedRow, deliveries_by_id
from headwater.projections.deliveries.lineage import row as find_row
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.projector.growth import topic_growths
from headwater.projections.projector.store import next_offsets
from headwater.schemas.codec import decode, decode_row
from headwater.schemas.epochs import HIDDEN, is_claim
from headwater.schemas.errors import (
    BrokerUnavailable,
    StoreUnavailable,
    UndecodableRecord,
    UnknownSchema,
)
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import Column, Row, Table, Value
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets, Span, read_spans
from headwater.streams.kafka.records import Incoming, position_of
from headwater.streams.pipeline.delivery_lookup import read_deliveries_at

log = logging.getLogger("headwater.auditor")

_MINUTE_MS: Final = 60_000
_EVERY_MS: Final = 10_000
#: Rows that are compared together at least: each time costs two connections to Kafka.
_TOGETHER: Final = 6
#: Records after a row's among which a later one of the same row is searched.
_AHEAD: Final = 2_000
#: Differing rows that are remembered, and compared again each time.
_DIFFERING_MAX: Final = 50
#: Columns that a finding names.
_COLUMNS_SHOWN: Final = 5
_DAY_CHARS: Final = len("2026-07-01")
_Offsets: TypeAlias = Mapping[str, Sequence[int]]
_BY_TOPIC: Final = {table.topic: table for table in ALL_TABLES}


class _Sample(NamedTuple):
    """A record of a row.

    Attributes:
        table: Its table.
        record: The record.
        row: The row in it.
        is_newest: Whether the topic has no later record of the row.
    """

    table: Table
    record: Incoming
    row: Row
    is_newest: bool

    @property
    def position(self) -> str:
        """Position of the record."""
        return position_of(self.record)


class RowComparison:
    """Compares rows in turn: one topic partition after the other, from its beginning.

    Args:
        cluster: The cluster.
        reader: Reads Postgres.
        providers: Installed providers.
        rows: Number of rows a minute.
        clock: Returns Unix milliseconds.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        reader: PooledReader,
        providers: Providers,
        rows: int,
        clock: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._providers = providers
        self._rows = rows
        self._clock = clock
        self._offsets = Offsets(cluster, "headwater-auditor")
        self._due_ms = 0
        self._turn = 0
        self._problem = ""

    async def stop(self) -> None:
        """Disconnect."""
        await self._offsets.stop()

    async def compare(self, state: RowState) -> None:
        """Compare rows if that is due, and update the state."""
        now_ms = self._clock()
        if not self._rows or now_ms < self._due_ms:
            return
        interval_ms = max(_EVERY_MS, _MINUTE_MS * _TOGETHER // self._rows)
        self._due_ms = now_ms + interval_ms
        try:
            begins = await self._offsets.begins_of(list(_BY_TOPIC))
            ends = await self._offsets.ends_of(list(_BY_TOPIC))
            await self._compare_again(state, ends)
            count = max(1, self._rows * interval_ms // _MINUTE_MS)
            await self._compare_next(state, begins, ends, count)
            self._problem = ""
        except (BrokerUnavailable, StoreUnavailable) as error:
            if error.message != self._problem:
                self._problem = error.message
                log.warning("rows are not compared: %s", error.message)

    async def _compare_again(self, state: RowState, ends: _Offsets) -> None:
        """Compare the rows that differed; one whose record was superseded is left to its turn."""
        for position in [*state.differing][:_DIFFERING_MAX]:
            topic, _, rest = position.partition("/")
            number, _, offset = rest.partition("@")
            of_topic = ends.get(topic, ())
            if topic not in _BY_TOPIC or int(number) >= len(of_topic):
                state.differing.pop(position)  # Its provider was removed, or its topic.
                continue
            tp = TopicPartition(topic, int(number))
            samples = await self._samples(tp, int(offset), of_topic[int(number)])
            same = [sample for sample in samples if sample.position == position]
            state.differing.pop(position)
            state.differing.update(await self._differences(same))

    async def _compare_next(
        self, state: RowState, begins: _Offsets, ends: _Offsets, count: int
    ) -> None:
        partitions = [
            TopicPartition(topic, number)
            for topic, of_topic in sorted(ends.items())
            for number, end in enumerate(of_topic)
            if end > begins[topic][number]
        ]
        for _ in partitions:
            tp = partitions[self._turn % len(partitions)]
            begin, end = begins[tp.topic][tp.partition], ends[tp.topic][tp.partition]
            next_offsets = state.next_offsets.setdefault(tp.topic, {})
            start = max(begin, next_offsets.get(tp.partition, begin))
            samples = (await self._samples(tp, start, end))[:count]
            differences = await self._differences(samples)
            room = max(0, _DIFFERING_MAX - len(state.differing))
            state.differing.update(dict([*differences.items()][:room]))
            state.compared += len(samples)
            count -= len(samples)
            if not count and samples:
                next_offsets[tp.partition] = samples[-1].record.offset + 1
                return  # The rows that follow are next.
            after = start + _AHEAD
            next_offsets[tp.partition] = begin if after >= end else after
            self._turn += 1

    async def _samples(self, tp: TopicPartition, start: int, end: int) -> list[_Sample]:
        """Return the latest records of rows among those that follow an offset."""
        span = Span(start, min(end, start + _AHEAD))
        if span.start >= span.end:
            return []
        table, last = _BY_TOPIC[tp.topic], dict[bytes, Incoming]()
        async with aclosing(read_spans(self._cluster, {tp: span})) as batches:
            async for records, _ in batches:
                last.update((record.key or b"", record) for record in records)
        samples = []
        for record in sorted(last.values(), key=lambda one: one.offset):
            if record.value and not is_claim(record.headers) and HIDDEN not in record.headers:
                with contextlib.suppress(UndecodableRecord, UnknownSchema):
                    row = decode_row(table, record.value)
                    samples.append(_Sample(table, record, row, span.end == end))
        return samples

    async def _differences(self, samples: Sequence[_Sample]) -> dict[str, str]:
        """Return how rows in Postgres differ, by the position of their record."""
        differences: dict[str, str] = {}
        stored: list[tuple[_Sample, SourcedRow]] = []
        if not samples:
            return differences
        # Before the rows: a row that is missing then was applied.
        topic = samples[0].record.topic
        applied = await next_offsets(self._reader, DELIVERIES.name, topic)
        for sample in samples:
            row = await find_row(self._reader, sample.table, sample.row.key)
            if row is not None:
                stored.append((sample, row))
            elif (
                sample.is_newest and applied.get(sample.record.partition, 0) > sample.record.offset
            ):
                differences[sample.position] = "expected a row in Postgres, found none"
        computed = await self._computed([row for sample, row in stored if not sample.row.state])
        for sample, row in stored:
            if difference := _difference(sample, row, computed):
                differences[sample.position] = difference
        return differences

    async def _computed(self, rows: Sequence[SourcedRow]) -> list[RowUpdate]:
        """Return the updates of the deliveries that set the values of rows, normalized again."""
        ids = {source.event_id for row in rows for source in row.sources.values()}
        located = await deliveries_by_id(self._reader, sorted(ids)) if ids else []
        at = {(one.partition, one.offset): one for one in located}
        if not at:
            return []
        count = len((await self._offsets.ends_of([WEBHOOKS])).get(WEBHOOKS, ()))
        growths = partial(topic_growths, self._reader)
        updates: list[RowUpdate] = []
        records = await read_deliveries_at(self._cluster, count, growths, at)
        for position, record in records.items():
            with contextlib.suppress(UndecodableRecord, UnknownSchema):
                if record.value is not None:
                    delivery = decode(record.value, WebhookReceived)
                    event = admitted(delivery, self._providers, at[position].user_id, *position)
                    computed = updates_of(event, self._providers)
                    updates += [one for one in computed if isinstance(one, RowUpdate)]
        return updates


def _difference(sample: _Sample, stored: SourcedRow, updates: Sequence[RowUpdate]) -> str:
    """Return how a row in Postgres differs from its record or its deliveries; empty if not.

    The record is compared only if both are of the same deliveries. Otherwise a later record
    follows, or Postgres has not applied it yet.
    """
    columns, table = sample.table.columns, sample.table
    sources = {name: (one.event_id, one.version) for name, one in stored.sources.items()}
    if _sources(sample) == sources:
        differing = [
            column.name
            for column, value in zip(columns, sample.row.values, strict=True)
            if not is_same(column, value, stored.values[column.name])
        ]
        if differing:
            return f"expected the values of the record, found others in {_names(differing)}"
    values: defaultdict[tuple[str, str, int], list[Value]] = defaultdict(list)
    for update in updates if sample.row.state is None else ():
        if update.table is table and same_key(table, update.key, sample.row.key):
            for name, value in update.values.items():
                values[name, update.stamp.event_id, update.stamp.version].append(value)
    differing = [
        column.name
        for column in columns
        if column.name in sources
        and (candidates := values.get((column.name, *sources[column.name])))
        and not any(is_same(column, value, stored.values[column.name]) for value in candidates)
    ]
    if differing:
        return f"expected the values of the deliveries, found others in {_names(differing)}"
    return ""


def _sources(sample: _Sample) -> dict[str, tuple[str, int]]:
    return {
        column.name: (stamp.event_id, stamp.version)
        for column, stamp in zip(sample.table.columns, sample.row.stamps, strict=True)
        if stamp is not None
    }


def _names(columns: Sequence[str]) -> str:
    shown = ", ".join(columns[:_COLUMNS_SHOWN])
    return shown if len(columns) <= _COLUMNS_SHOWN else f"{shown} and others"


def is_same(column: Column, value: Value, stored: Any) -> bool:  # noqa: ANN401 (Postgres's)
    """Return whether Postgres has a value of a record."""
    match stored:
        case datetime():
            return isinstance(value, str) and _is_moment(value, stored)
        case date():
            return isinstance(value, str) and value[:_DAY_CHARS] == stored.isoformat()
        case str():
            return isinstance(value, str) and value.replace("\0", "\ufffd") == stored
        case _:
            return bool(value == stored)


def _is_moment(text: str, stored: datetime) -> bool:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return True  # Postgres reads more spellings than Python.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) == stored
