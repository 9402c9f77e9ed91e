"""Rebuilding the projection of workflows: its histories are projected again, beside the old rows.

A switch makes the tables once more, as the histories are then: what came since the comparison is
neither missing nor a patch on old rows. Rows have no other home than Postgres, so nobody is told.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final, Self

from headwater.projections.projector.plan import Batch, Span
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.store import AppliedPosition, Store
from headwater.projections.rebuilds.rebuilds import Rebuild
from headwater.projections.rebuilds.shadow_tables import SCHEMA, ShadowTables
from headwater.projections.rebuilds.work import RebuildWork
from headwater.schemas.errors import NewerSchema
from headwater.schemas.newer import newer_schema_message, readable
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.partition_reader import read_partition

_NOTE_EVERY_S: Final = 0.5
#: So few records are read while the projector waits, if it leaves us the choice.
_LEFT_FOR_THE_LOCK: Final = 4_000
_PASSES: Final = 10


class WorkflowRebuild:
    """The rebuild of the projection of workflows, as far as its state asks for."""

    def __init__(
        self,
        cluster: Cluster,
        dsn: str,
        found: Rebuild,
        work: RebuildWork,
        projection: Projection,
    ) -> None:
        self._work = work
        self._cluster = cluster
        self._projection = projection
        (self._topic,) = projection.topics
        self._tables = ShadowTables(work.connection, found.id)
        self._store = Store(dsn, projection=projection, clock=now_ms, schemas=[SCHEMA])
        self._noted_at_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()

    async def build(self) -> None:
        """Makes the rows again, and says in what they differ."""
        await self._follow()
        async with self._tables.paused_projection() as ends:
            await self._compare(ends)

    async def switch(self) -> None:
        """Puts the rows that differ in the place of those that there are."""
        await self._follow()
        async with self._tables.paused_projection() as ends:
            await self._compare(ends)
            await self._tables.put(back=False)
            await self._work.end("switched")

    async def switch_back(self) -> None:
        """Puts the rows back that there were, but for those that have changed since."""
        async with self._tables.paused_projection():
            await self._tables.put(back=True)
            await self._work.end("switched_back")

    async def _compare(self, ends: Mapping[int, int]) -> None:
        """Compares what both have at these ends; what was made again is not needed any more."""
        await self._read_up_to(ends)
        counts, examples = await self._tables.compare()
        await self._work.store_counts(counts, examples, [ends[number] for number in sorted(ends)])
        await self._tables.drop()

    async def _follow(self) -> None:
        """Makes the tables, and reads until little is left of what the others have."""
        await self._tables.make()
        for _ in range(_PASSES):
            ends = await self._tables.ends()
            if sum(ends.values()) - await self._read_up_to(ends) <= _LEFT_FOR_THE_LOCK:
                break

    async def _read_up_to(self, ends: Mapping[int, int]) -> int:
        """Reads up to these ends; returns how much was read before, of all partitions."""
        places = await self._store.positions([(self._topic, number) for number in sorted(ends)])
        before = done = sum(place.next_offset for place in places.values())
        total = sum(ends.values())
        for (_, number), place in places.items():
            async with aclosing(self._project(number, place, ends[number])) as moves:
                async for moved in moves:
                    done += moved
                    await self._progress(done, total)
        await self._work.progress(total, total)
        return before

    async def _project(self, number: int, place: AppliedPosition, end: int) -> AsyncGenerator[int]:
        """Projects a partition from a place on, up to an end; gives by how much it has moved."""
        where, start = (self._topic, number), place.next_offset
        reading = read_partition(self._cluster, [self._topic], number, start=start, end=end)
        async with aclosing(reading) as batches:
            async for some in batches:
                known, newer = readable(some)
                if newer is not None:
                    raise NewerSchema(newer_schema_message(newer))
                records = self._projection.read(known, place.claims)
                span = Span(start, some[-1].offset + 1)
                claims, plan = {where: place.claims}, self._projection.plan(records)
                await self._store.apply(
                    Batch(records=records, spans={where: span}, plan=plan, claims=claims)
                )
                yield span.end - span.start
                start = span.end

    async def _progress(self, done: int, total: int) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._noted_at_s > _NOTE_EVERY_S:
            self._noted_at_s = now_s
            await self._work.progress(done, total)
