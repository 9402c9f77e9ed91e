"""Rows that the projector's code makes from a topic: all workflows, or one verified table.

For workflows, these are the right rows, because they exist only in Postgres. For a table, they are
those that the owners have published: comparing with them finds rows that were changed by hand or
written wrongly, but not rows that owners computed wrongly.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from headwater.gateway.builtin.rebuilding.progress import TableProgress
from headwater.projections.postgres.connections import schemas_of
from headwater.projections.projector.projection import Batch, Projection, Span
from headwater.projections.projector.store import AppliedPosition, Store
from headwater.projections.rebuilds.rebuilds import RebuildWork
from headwater.projections.rebuilds.shadow_tables import Offsets, ShadowTables
from headwater.schemas.errors import NewerSchema
from headwater.schemas.newer import newer_schema_message, readable
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition

#: Records that may be left to read while the projector is paused.
LEFT_FOR_THE_LOCK: Final = 4_000
PASSES: Final = 10


class ProjectedRows:
    """Rows of the single topic of a projection; an implementation of `RightRows`.

    Args:
        cluster: The cluster.
        dsn: The database.
        projection: The projection, with one topic.
        tables: The shadow tables.
        work: The rebuild.
        progress: Progress of the table's topic; None for workflows, whose rows need no other topic.
    """

    webhook_ends: Sequence[int] = ()

    def __init__(
        self,
        cluster: Cluster,
        dsn: str,
        projection: Projection,
        tables: ShadowTables,
        work: RebuildWork,
        progress: TableProgress | None = None,
    ) -> None:
        self._cluster = cluster
        self._projection = projection
        (self._topic,) = projection.topics
        self._tables = tables
        self._work = work
        self._progress = progress
        rebuilt = [schemas_of(dsn).rebuilt]
        self._store = Store(dsn, projection=projection, clock=now_ms, schemas=rebuilt)

    async def close(self) -> None:
        """Disconnect."""
        await self._store.close()

    async def begin(self) -> None:
        """Wait for the owners to adopt rows of an earlier switch, and for the projector."""
        if self._progress is not None:
            await self._progress.note_wipes()
            await self._progress.pipeline_arrives()
            await self._progress.projector_arrives()

    async def fill(self) -> None:
        """Create the tables, and read until they have almost caught up with the serving ones."""
        await self._tables.make()
        for _ in range(PASSES):
            ends = await self._tables.ends()
            total = sum(ends[self._topic].values())
            if total - await self._read_up_to(ends) <= LEFT_FOR_THE_LOCK:
                break

    async def is_current(self) -> bool:
        """Return whether no user was wiped since `begin`."""
        return self._progress is None or not await self._progress.has_new_wipes()

    async def read_up_to(self, ends: Offsets) -> None:
        """Complete the shadow tables up to these offsets."""
        await self._read_up_to(ends)

    async def _read_up_to(self, offsets: Offsets) -> int:
        """Read up to these ends; return the sum of all offsets before."""
        ends = offsets[self._topic]
        positions = await self._store.positions([(self._topic, number) for number in sorted(ends)])
        before = done = sum(position.next_offset for position in positions.values())
        total = sum(ends.values())
        for (_, number), position in positions.items():
            async with aclosing(self._project(number, position, ends[number])) as moves:
                async for moved in moves:
                    done += moved
                    await self._work.note_progress(done, total)
        await self._work.progress(total, total)
        return before

    async def _project(
        self, number: int, position: AppliedPosition, end: int
    ) -> AsyncGenerator[int]:
        """Project a partition from a position to an end; yield the number of offsets of a batch."""
        partition, start = (self._topic, number), position.next_offset
        reading = read_partition(self._cluster, [self._topic], number, start=start, end=end)
        async with aclosing(reading) as batches:
            async for batch in batches:
                known, newer = readable(batch)
                if newer is not None:
                    raise NewerSchema(newer_schema_message(newer))
                records = self._projection.read(known, position.claims)
                span = Span(start, batch[-1].offset + 1)
                claims, plan = {partition: position.claims}, self._projection.plan(records)
                await self._store.apply(
                    Batch(records=records, spans={partition: span}, plan=plan, claims=claims)
                )
                yield span.end - span.start
                start = span.end
        if start < end:  # The last offsets have no records (ADR 0101).
            span, claims = Span(start, end), {partition: position.claims}
            plan = self._projection.plan(())
            await self._store.apply(
                Batch(records=(), spans={partition: span}, plan=plan, claims=claims)
            )
            yield end - start
