"""Rebuild the workflow projection: project the histories again into separate tables.

A switch builds the tables again from the current histories, so it includes everything since the
comparison. The rows exist only in Postgres, so nothing is published.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final, Self

from headwater.projections.projector.projection import Batch, Projection, Span
from headwater.projections.projector.store import AppliedPosition, Store
from headwater.projections.rebuilds.rebuilds import Rebuild, RebuildWork
from headwater.projections.rebuilds.shadow_tables import SCHEMA, ShadowTables
from headwater.schemas.errors import NewerSchema
from headwater.schemas.newer import newer_schema_message, readable
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition

#: Records that may be left to read while the projector is paused.
_LEFT_FOR_THE_LOCK: Final = 4_000
_PASSES: Final = 10


class WorkflowRebuild:
    """Carries out the phases of the workflow projection's rebuild."""

    def __init__(
        self,
        cluster: Cluster,
        dsn: str,
        row: Rebuild,
        work: RebuildWork,
        projection: Projection,
    ) -> None:
        self._work = work
        self._cluster = cluster
        self._projection = projection
        (self._topic,) = projection.topics
        self._tables = ShadowTables(work.connection, row.id)
        self._store = Store(dsn, projection=projection, clock=now_ms, schemas=[SCHEMA])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()

    async def build(self) -> None:
        """Build the rows again, and compare them with the current ones."""
        await self._follow()
        async with self._tables.paused_projection() as ends:
            await self._compare(ends)

    async def switch(self) -> None:
        """Replace the current rows with those that differ."""
        await self._follow()
        async with self._tables.paused_projection() as ends:
            await self._compare(ends)
            await self._tables.put(back=False)
            await self._work.end("switched")

    async def switch_back(self) -> None:
        """Restore the old rows, except those that have changed since."""
        async with self._tables.paused_projection():
            await self._tables.put(back=True)
            await self._work.end("switched_back")

    async def _compare(self, ends: Mapping[int, int]) -> None:
        """Compare both sets of tables at these ends, then drop the new ones."""
        await self._read_up_to(ends)
        counts, examples = await self._tables.compare()
        await self._work.store_counts(counts, examples, [ends[number] for number in sorted(ends)])
        await self._tables.drop()

    async def _follow(self) -> None:
        """Create the tables, and read until they have almost caught up with the current ones."""
        await self._tables.make()
        for _ in range(_PASSES):
            ends = await self._tables.ends()
            if sum(ends.values()) - await self._read_up_to(ends) <= _LEFT_FOR_THE_LOCK:
                break

    async def _read_up_to(self, ends: Mapping[int, int]) -> int:
        """Read up to these ends; return the sum of all offsets before."""
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
