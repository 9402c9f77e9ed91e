"""Rebuilding a projection table: made again beside the old one, compared, switched, and back.

The rows that come out otherwise are changed in Postgres in one transaction, so readers see all of
them or none; then their owners are told through the log, who put them in the place of theirs unless
a later delivery says otherwise. A row that gets a delivery in the seconds between may show its old
values until its owner knows.
"""

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Final, Self

from headwater.gateway.commands.cluster import cluster_of
from headwater.gateway.commands.options import dsn_of
from headwater.gateway.rebuilding.reading import placement_of, readers_of
from headwater.gateway.rebuilding.stores import begun_at, folder_of
from headwater.gateway.settings import Settings
from headwater.processors.columns import adopt
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.projector.store import Store
from headwater.projections.rebuilds.rebuilds import Example, Rebuild, Wipes
from headwater.projections.rebuilds.work import ChangedRow, RebuildWork, RowRecord
from headwater.schemas.codec import decode_row, encode, encode_row
from headwater.schemas.records import RowRebuilt
from headwater.schemas.tables import Row, Table
from headwater.schemas.topics import EVENTS, UNRESOLVED, WEBHOOKS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster_id import cluster_id
from headwater.streams.kafka.offsets import Offsets
from headwater.streams.kafka.records import Outgoing
from headwater.streams.kafka.state_store import Identity
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.pipeline import rebuilding
from headwater.streams.pipeline.partition_state import FORM

log = logging.getLogger("headwater.rebuild")

_MIB: Final = 1024 * 1024
_EXAMPLES: Final = 10
#: How long the pipeline is waited for; one that is down is compared with as it is.
_PIPELINE_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.2
_NOTE_EVERY_S: Final = 0.5


class TableRebuild:
    """The rebuild of a table, as far as its state asks for."""

    def __init__(self, settings: Settings, table: Table, found: Rebuild, work: RebuildWork) -> None:
        self._settings = settings
        self._table = table
        self._found = found
        self._work = work
        self._cluster = cluster_of(settings)
        self._offsets = Offsets(self._cluster, settings.app_id)
        self._appender = Appender(cluster=self._cluster, client_id="headwater-rebuild")
        self._exits = AsyncExitStack()
        self._noted_at_s = 0.0
        self._ends: Sequence[int] = found.ends
        self._rebuild: rebuilding.Rebuild

    async def __aenter__(self) -> Self:
        self._exits.push_async_callback(self._appender.stop)
        self._exits.push_async_callback(self._offsets.stop)
        settings = self._settings
        folder = folder_of(settings)
        group = f"rebuild-{self._found.id}"
        if self._found.state == "building":
            for other in folder.glob("rebuild-*"):
                if other.name != group:
                    shutil.rmtree(other, ignore_errors=True)
        begun_at(folder / group, await self._work.wipes())
        self._partitions = await self._appender.partitions(WEBHOOKS)
        cluster = await cluster_id(self._cluster)
        stores = StateStores(folder, settings.state_memory_mib * _MIB, now_ms)
        identities = (
            Identity(cluster=cluster, group=group, topics=(WEBHOOKS,), partition=number, form=FORM)
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
        """Makes the rows again, and says in what they differ."""
        await self._compare()

    async def switch(self) -> None:
        """Puts the rows that differ in the place of those that there are."""
        sent = self._found.sent
        if sent < 0:
            await self._compare()
        if sent <= 0:
            await self._write(lambda row: _record(self._table, row, row.after))
        await self._tell(max(sent, 0), self._ends, back=False)
        await self._work.ended("switched")

    async def switch_back(self) -> None:
        """Puts the rows back that there were, but for what later deliveries have said of them."""
        ends = self._found.ends
        if self._found.sent <= 0:
            await self._pipeline_reaches(await self._webhook_ends())
            await self._rebuild.read_live(self._cluster, self._table)
            await self._write(lambda row: self._row_back(row, ends))
        await self._tell(max(self._found.sent, 0), ends, back=True)
        await self._work.ended("switched_back")

    # -- following and comparing

    async def _follow(self) -> list[int]:
        """Reads up to where the log ends now; returns where that is."""
        ends = await self._webhook_ends()
        loop = asyncio.get_running_loop()

        async def progressed() -> None:
            if loop.time() - self._noted_at_s > _NOTE_EVERY_S:
                self._noted_at_s = loop.time()
                await self._work.progress(self._rebuild.applied, sum(ends))

        rebuild = self._rebuild
        spans = rebuild.spans(ends)
        readers = readers_of(self._settings, rebuild.reading, self._table, len(ends), spans)
        await rebuild.follow(ends, readers, progressed)
        await self._work.progress(sum(ends), sum(ends))
        return ends

    async def _compare(self) -> None:
        """Compares; once more if somebody was wiped meanwhile."""
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
            for number, found in enumerate(self._rebuild.differences(self._table, ends)):
                counts[found.kind] += 1
                if sum(each.kind == found.kind for each in examples) < _EXAMPLES:
                    examples.append(_example(self._table, found))
                before, after = (_encoded(self._table, row) for row in (found.before, found.after))
                yield ChangedRow(number, found.partition, found.key, before, after)

        return await self._work.compared(wipes, rows(), counts, examples, ends)

    async def _webhook_ends(self) -> list[int]:
        return [
            (await self._offsets.ends([WEBHOOKS], number))[WEBHOOKS]
            for number in range(self._partitions)
        ]

    async def _pipeline_reaches(self, ends: Sequence[int]) -> None:
        """Waits until the pipeline has done what the log had at these ends."""
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
                log.warning("the pipeline is behind: compared with the rows that there are")
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    # -- switching

    def _row_back(self, row: ChangedRow, ends: Sequence[int]) -> RowRecord:
        live = self._rebuild.live(self._table, row.partition, row.key)
        before = None if row.before is None else decode_row(self._table, row.before)
        return _record(
            self._table, row, _encoded(self._table, adopt(self._table, live, before, ends))
        )

    async def _write(self, record_of: Callable[[ChangedRow], RowRecord]) -> None:
        """Writes the rows that differ in one transaction: readers see all of them or none."""

        async def pages() -> AsyncIterator[list[RowRecord]]:
            async for page in self._work.rows():
                yield [record_of(row) for row in page]

        store = Store(dsn_of(self._settings), projection=DELIVERIES, clock=now_ms)
        try:
            await store.apply_all(pages())
        finally:
            await store.close()

    async def _tell(self, after: int, ends: Sequence[int], *, back: bool) -> None:
        """Tells the owners of rows what these are now."""
        async for page in self._work.rows(after):
            records = []
            for row in page:
                value = row.before if back else row.after
                told = RowRebuilt(
                    rebuild=self._found.id, table=self._table.name, row=value, ends=list(ends)
                )
                records.append(Outgoing(EVENTS, row.partition, row.key, encode(told)))
            await self._appender.append(records)
            await self._work.sent(page[-1].number + 1)


def _encoded(table: Table, row: Row | None) -> bytes | None:
    return None if row is None else encode_row(table, row)


def _record(table: Table, row: ChangedRow, value: bytes | None) -> RowRecord:
    return RowRecord(table.topic, row.partition, row.key, value)


def _example(table: Table, found: rebuilding.Difference) -> Example:
    row = found.before or found.after
    key = dict(zip(table.key_names, row.key, strict=True)) if row else {}
    return Example(kind=found.kind, table=table.name, key=key, columns=found.columns(table))
