"""Rows of a table that are computed from all deliveries again, with the current code."""

import logging
import shutil
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from itertools import islice
from typing import Final, Self

from headwater.gateway.builtin.rebuilding.progress import TableProgress
from headwater.gateway.builtin.rebuilding.projected import LEFT_FOR_THE_LOCK, PASSES
from headwater.gateway.builtin.rebuilding.reading import placement_of, readers_of
from headwater.gateway.builtin.rebuilding.watching import folder_of, note_wipes
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.settings import Settings
from headwater.projections.postgres.connections import schemas_of
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.store import Store
from headwater.projections.rebuilds.rebuilds import ChangedRow, Rebuild, RebuildWork, RowRecord
from headwater.projections.rebuilds.shadow_tables import Offsets, ShadowTables
from headwater.schemas.epochs import HIDDEN
from headwater.schemas.tables import Table
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import cluster_id
from headwater.streams.kafka.state_store import StoreIdentity
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.pipeline import rebuilding
from headwater.streams.pipeline.partition_state import FORM

log = logging.getLogger("headwater.rebuild")

_MIB: Final = 1024 * 1024
_PAGE: Final = 1_000


class RefoldedRows:
    """Rows of a table, rebuilt in stores of their own; an implementation of `RightRows`.

    Rows include what later deliveries have set in the rows of owners. Those that owners have to
    change are stored with the rebuild.
    """

    webhook_ends: Sequence[int] = ()

    def __init__(  # noqa: PLR0913, chosen by the composition root
        self,
        *,
        settings: Settings,
        table: Table,
        projection: Projection,
        tables: ShadowTables,
        row: Rebuild,
        work: RebuildWork,
        progress: TableProgress,
    ) -> None:
        self._settings = settings
        self._table = table
        self._tables = tables
        self._row = row
        self._work = work
        self._progress = progress
        self._cluster = cluster_of(settings)
        dsn = dsn_of(settings)
        rebuilt = [schemas_of(dsn).rebuilt]
        self._store = Store(dsn, projection=projection, clock=now_ms, schemas=rebuilt)
        self._exits = AsyncExitStack()
        self._rebuild: rebuilding.Rebuild
        #: Number of the next row for its owner.
        self._number = 0

    async def open(self, partitions: int) -> Self:
        """Open the stores, which another process may have begun."""
        settings = self._settings
        folder = folder_of(settings)
        group = f"rebuild-{self._row.id}"
        if self._row.state == "building":
            for other in folder.glob("rebuild-*"):
                if other.name != group:
                    shutil.rmtree(other, ignore_errors=True)
        note_wipes(folder / group, await self._work.wipes())
        cluster = await cluster_id(self._cluster)
        stores = StateStores(folder, settings.state_memory_mib * _MIB, now_ms)
        identities = (
            StoreIdentity(
                cluster=cluster, group=group, topics=(WEBHOOKS,), partition=number, form=FORM
            )
            for number in range(partitions)
        )
        opened = [stores.open(identity) for identity in identities]
        park_for_ms = settings.park_for_s * 1_000
        placement = placement_of(settings)
        self._rebuild = rebuilding.Rebuild(placement, opened, park_for_ms, self._table)
        self._exits.callback(self._rebuild.close)
        return self

    async def close(self) -> None:
        """Close the stores, and disconnect."""
        await self._exits.aclose()
        await self._store.close()

    async def begin(self) -> None:
        """Read all deliveries; wait for the pipeline and the projector to have processed them."""
        # Those of a killed process may have rows of users who were wiped since.
        await self._tables.drop()
        await self._progress.note_wipes()
        ends = await self._progress.ends(WEBHOOKS)
        self.webhook_ends = [ends[number] for number in sorted(ends)]
        await self._follow(self.webhook_ends)
        await self._progress.pipeline_arrives(self.webhook_ends)
        await self._progress.projector_arrives()

    async def _follow(self, ends: Sequence[int]) -> None:
        async def progressed() -> None:
            await self._work.note_progress(self._rebuild.applied, sum(ends))

        rebuild = self._rebuild
        await rebuild.read_accepted(self._cluster)
        spans = rebuild.spans(ends)
        readers = readers_of(self._settings, rebuild.reader, self._table, len(ends), spans)
        await rebuild.follow(ends, readers, progressed)
        await self._work.progress(sum(ends), sum(ends))

    async def fill(self) -> None:
        """Create the tables, and write all rows, including what owners have now."""
        await self._tables.make()
        self._number = 0
        self._rebuild.forget_live()
        ends = await self._tables.ends()
        async with aclosing(self._live(ends)) as batches:
            async for _ in batches:
                """They are written with the rebuilt rows."""
        rows = self._rebuild.rows(self._table, self.webhook_ends)
        while page := list(islice(rows, _PAGE)):
            await self._write(page)
        for _ in range(PASSES):
            before, ends = ends, await self._tables.ends()
            if _sum(ends, self._table) - _sum(before, self._table) <= LEFT_FOR_THE_LOCK:
                break
            await self.read_up_to(ends)

    async def is_current(self) -> bool:
        """Return whether no user was wiped since `begin`."""
        return not await self._progress.has_new_wipes()

    async def read_up_to(self, ends: Offsets) -> None:
        """Write again the rows that owners have changed up to these offsets."""
        async with aclosing(self._live(ends)) as batches:
            async for number, keys in batches:
                rows = [
                    self._rebuild.row(self._table, number, key, self.webhook_ends) for key in keys
                ]
                for row in rows:
                    await self._work.forget_row(row.partition, row.key)
                await self._write(rows)

    def _live(self, ends: Offsets) -> AsyncGenerator[tuple[int, Collection[bytes]]]:
        return self._rebuild.read_live(self._cluster, self._table, ends[self._table.topic])

    async def _write(self, rows: Iterable[rebuilding.RebuiltRow]) -> None:
        records, changed = [], []
        for number, row in enumerate(rows, self._number):
            headers = (HIDDEN,) if row.is_hidden else ()
            record = RowRecord(self._table.topic, row.partition, row.key, row.after, offset=number)
            records.append(record._replace(headers=headers))
            if row.is_changed:
                changed.append(ChangedRow(number, row.partition, row.key, row.before, row.after))
        self._number += len(records)
        await self._store.write_rows(records)
        await self._work.store_rows(changed)


def _sum(ends: Offsets, table: Table) -> int:
    return sum(ends[table.topic].values())
