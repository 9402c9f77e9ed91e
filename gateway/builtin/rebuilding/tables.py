"""Rebuild a projection table: build, compare, switch, and switch back.

A switch changes the rows that differ in one Postgres transaction, so readers see all of the changes
or none. Then it publishes the rows to their owners, which adopt them unless a later delivery has
set other values. A row that gets a delivery in between may show its old values until its owner has
read the new ones.
"""

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Final, Self

from headwater.gateway.builtin.rebuilding.reading import placement_of, readers_of
from headwater.gateway.builtin.rebuilding.watching import folder_of, note_wipes
from headwater.gateway.settings.addresses import dsn_of
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.settings import Settings
from headwater.processors.columns import adopt
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.projector.store import Store
from headwater.projections.rebuilds.rebuilds import (
    ChangedRow,
    Example,
    Rebuild,
    RebuildWork,
    RowRecord,
    Wipes,
)
from headwater.schemas.codec import decode_row, encode, encode_row
from headwater.schemas.epochs import HIDDEN
from headwater.schemas.records import RowRebuilt
from headwater.schemas.tables import Row, Table
from headwater.schemas.topics import EVENTS, UNRESOLVED, WEBHOOKS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import cluster_id
from headwater.streams.kafka.readers import Offsets
from headwater.streams.kafka.records import Outgoing
from headwater.streams.kafka.state_store import StoreIdentity
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.pipeline import rebuilding
from headwater.streams.pipeline.partition_state import FORM

log = logging.getLogger("headwater.rebuild")

_MIB: Final = 1024 * 1024
_EXAMPLES: Final = 10
#: Seconds to wait for the pipeline; if it is down, the comparison uses its current rows.
_PIPELINE_S: Final = 60.0
_POLL_EVERY_S: Final = 0.2


class TableRebuild:
    """Carries out the phases of a table's rebuild."""

    def __init__(self, settings: Settings, table: Table, row: Rebuild, work: RebuildWork) -> None:
        self._settings = settings
        self._table = table
        self._row = row
        self._work = work
        self._cluster = cluster_of(settings)
        self._offsets = Offsets(self._cluster, settings.app_id)
        self._appender = Appender(cluster=self._cluster, client_id="headwater-rebuild")
        self._exits = AsyncExitStack()
        self._ends: Sequence[int] = row.ends
        self._rebuild: rebuilding.Rebuild

    async def __aenter__(self) -> Self:
        self._exits.push_async_callback(self._appender.stop)
        self._exits.push_async_callback(self._offsets.stop)
        settings = self._settings
        folder = folder_of(settings)
        group = f"rebuild-{self._row.id}"
        if self._row.state == "building":
            for other in folder.glob("rebuild-*"):
                if other.name != group:
                    shutil.rmtree(other, ignore_errors=True)
        note_wipes(folder / group, await self._work.wipes())
        self._partitions = await self._appender.partitions(WEBHOOKS)
        cluster = await cluster_id(self._cluster)
        stores = StateStores(folder, settings.state_memory_mib * _MIB, now_ms)
        identities = (
            StoreIdentity(
                cluster=cluster, group=group, topics=(WEBHOOKS,), partition=number, form=FORM
            )
            for number in range(self._partitions)
        )
        opened = [stores.open(identity) for identity in identities]
        park_for_ms = settings.park_for_s * 1_000
        placement = placement_of(settings)
        self._rebuild = rebuilding.Rebuild(placement, opened, park_for_ms, self._table)
        self._exits.callback(self._rebuild.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    async def build(self) -> None:
        """Build the rows again, and compare them with the current ones."""
        await self._compare()

    async def switch(self) -> None:
        """Replace the current rows with those that differ."""
        sent = self._row.sent
        if sent < 0:
            await self._compare()
        if sent <= 0:
            await self._write(lambda row: _record(self._table, row, row.after))
        await self._publish(max(sent, 0), self._ends, back=False)
        await self._work.end("switched")

    async def switch_back(self) -> None:
        """Restore the old rows, but keep the changes of later deliveries."""
        ends = self._row.ends
        if self._row.sent <= 0:
            await self._pipeline_reaches(await self._webhook_ends())
            await self._rebuild.read_live(self._cluster, self._table)
            await self._write(lambda row: self._restored_row(row, ends))
        await self._publish(max(self._row.sent, 0), ends, back=True)
        await self._work.end("switched_back")

    # -- following and comparing

    async def _follow(self) -> list[int]:
        """Read up to the current ends of the log; return these ends."""
        ends = await self._webhook_ends()

        async def progressed() -> None:
            await self._work.note_progress(self._rebuild.applied, sum(ends))

        rebuild = self._rebuild
        await rebuild.read_accepted(self._cluster)
        spans = rebuild.spans(ends)
        readers = readers_of(self._settings, rebuild.reader, self._table, len(ends), spans)
        await rebuild.follow(ends, readers, progressed)
        await self._work.progress(sum(ends), sum(ends))
        return ends

    async def _compare(self) -> None:
        """Compare the rows; repeat if a user was wiped meanwhile."""
        while True:
            wipes = await self._work.wipes()
            if await self._compare_at(await self._follow(), wipes):
                return

    async def _compare_at(self, ends: list[int], wipes: Wipes) -> bool:
        await self._pipeline_reaches(ends)
        await self._rebuild.read_live(self._cluster, self._table)
        self._ends = ends
        counts = Counter({"added": 0, "removed": 0, "changed": 0})
        examples: list[Example] = []

        def rows() -> Iterator[ChangedRow]:
            for number, change in enumerate(self._rebuild.differences(self._table, ends)):
                counts[change.kind] += 1
                if sum(example.kind == change.kind for example in examples) < _EXAMPLES:
                    examples.append(_example(self._table, change))
                before, after = (
                    _encoded(self._table, row) for row in (change.before, change.after)
                )
                yield ChangedRow(number, change.partition, change.key, before, after)

        return await self._work.store_comparison(wipes, rows(), counts, examples, ends)

    async def _webhook_ends(self) -> list[int]:
        return [
            (await self._offsets.ends([WEBHOOKS], number))[WEBHOOKS]
            for number in range(self._partitions)
        ]

    async def _pipeline_reaches(self, ends: Sequence[int]) -> None:
        """Wait until the pipeline has processed the log up to these ends."""
        deadline_s = asyncio.get_running_loop().time() + _PIPELINE_S
        for number, end in enumerate(ends):
            await self._committed(number, {WEBHOOKS: end}, deadline_s)
        for number in range(self._partitions):
            hops = await self._offsets.ends([EVENTS, UNRESOLVED], number)
            await self._committed(number, hops, deadline_s)

    async def _committed(self, number: int, ends: dict[str, int], deadline_s: float) -> None:
        while True:
            done = await self._offsets.committed(list(ends), number)
            if all(done[topic] >= end for topic, end in ends.items()):
                return
            if asyncio.get_running_loop().time() > deadline_s:
                log.warning("the pipeline is behind: comparing with its current rows")
                return
            await asyncio.sleep(_POLL_EVERY_S)

    # -- switching

    def _restored_row(self, row: ChangedRow, ends: Sequence[int]) -> RowRecord:
        live = self._rebuild.live(self._table, row.partition, row.key)
        before = None if row.before is None else decode_row(self._table, row.before)
        return _record(
            self._table, row, _encoded(self._table, adopt(self._table, live, before, ends))
        )

    async def _write(self, record_of: Callable[[ChangedRow], RowRecord]) -> None:
        """Write the rows that differ in one transaction."""

        async def pages() -> AsyncIterator[list[RowRecord]]:
            async for page in self._work.rows():
                yield [record_of(row) for row in page]

        store = Store(dsn_of(self._settings), projection=DELIVERIES, clock=now_ms)
        try:
            await store.apply_all(pages())
        finally:
            await store.close()

    async def _publish(self, after: int, ends: Sequence[int], *, back: bool) -> None:
        """Publish the new rows to their owners."""
        async for page in self._work.rows(after):
            records = []
            for row in page:
                value = row.before if back else row.after
                rebuilt = RowRebuilt(
                    rebuild=self._row.id, table=self._table.name, row=value, ends=list(ends)
                )
                records.append(Outgoing(EVENTS, row.partition, row.key, encode(rebuilt)))
            await self._appender.append(records)
            await self._work.record_sent(page[-1].number + 1)


def _encoded(table: Table, row: Row | None) -> bytes | None:
    return None if row is None else encode_row(table, row)


def _record(table: Table, row: ChangedRow, value: bytes | None) -> RowRecord:
    is_hidden = value is not None and decode_row(table, value).is_hidden
    headers = (HIDDEN,) if is_hidden else ()
    return RowRecord(table.topic, row.partition, row.key, value, headers=headers)


def _example(table: Table, difference: rebuilding.Difference) -> Example:
    row = difference.before or difference.after
    key = dict(zip(table.key_names, row.key, strict=True)) if row else {}
    return Example(
        kind=difference.kind, table=table.name, key=key, columns=difference.columns(table)
    )
