"""How many processes read for a rebuild."""

import asyncio
import os

import pytest

from headwater.gateway.builtin.rebuilding.reading import placement_of, readers_of
from headwater.gateway.settings.settings import Settings
from headwater.schemas.tables import DAILY_SUMMARY, USERS, Table
from headwater.streams.pipeline.rebuild_reader import RebuildReader, Span

PARTITIONS = 8


@pytest.mark.parametrize(
    ("cores", "partitions", "deliveries", "table", "readers"),
    [
        (2, 8, 1_000_000, DAILY_SUMMARY, 2),
        (64, 8, 1_000_000, DAILY_SUMMARY, 4),
        (64, 3, 1_000_000, DAILY_SUMMARY, 3),
        (64, 1, 1_000_000, DAILY_SUMMARY, 1),
        (1, 8, 1_000_000, DAILY_SUMMARY, 1),
        (None, 8, 1_000_000, DAILY_SUMMARY, 1),
        (64, 8, 1_000, DAILY_SUMMARY, 1),
        # All of its deliveries are passed on, so nothing is gained.
        (64, 8, 1_000_000, USERS, 1),
    ],
)
def test_there_are_as_many_readers_as_have_something_to_do(
    monkeypatch: pytest.MonkeyPatch,
    cores: int | None,
    partitions: int,
    deliveries: int,
    table: Table,
    readers: int,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    settings = Settings()
    spans = [Span(number, 0, deliveries // partitions) for number in range(partitions)]
    reading = RebuildReader(placement_of(settings), PARTITIONS, table)

    async def scenario() -> None:
        result = readers_of(settings, reading, table, PARTITIONS, spans)
        assert len(result) == readers
        for item in result:
            await item.aclose()

    asyncio.run(scenario())
