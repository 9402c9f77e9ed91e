"""Projections of one partition of one topic, applied as a projector would, and as rows."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

import psycopg

from headwater.projections.projector.projection import Batch, Projection, Span
from headwater.projections.projector.store import Store
from tests.unit.projections.histories import START_MS, Appended


def _batches(
    projection: Projection, topic: str, values: Sequence[bytes], cuts: list[int]
) -> Iterator[Batch]:
    start = 0
    for end in [*sorted({cut for cut in cuts if cut < len(values)}), len(values)]:
        result = [Appended(0, offset, values[offset], topic=topic) for offset in range(start, end)]
        if result:
            spans = {(topic, 0): Span(start, end)}
            yield Batch(records=result, spans=spans, plan=projection.plan(result))
        start = end


def project(
    projection: Projection, dsn: str, values: Sequence[bytes], cuts: list[int] | None = None
) -> None:
    """Applies the values of records, in batches that end at the cuts."""
    (topic,) = projection.topics

    async def applied() -> None:
        store = Store(dsn, projection=projection, clock=lambda: START_MS)
        await store.positions([(topic, 0)])
        for batch in _batches(projection, topic, values, cuts or []):
            for _ in range(2):  # a projector that died after the commit applies it again
                await store.apply(batch)
        await store.close()

    asyncio.run(applied())


def rows(dsn: str, query: LiteralString) -> list[tuple[Any, ...]]:
    """What a query finds."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()
