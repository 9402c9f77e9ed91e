"""A switch writes any number of rows at once: readers see all of them, or none."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.projector.store import Store
from headwater.projections.rebuilds.rebuilds import RowRecord
from headwater.schemas.tables import CONNECTIONS
from tests.integration.test_wiped_rebuilds import connection_of

PAGES, ROWS = 4, 250


@pytest.fixture
def reader(module_migrated: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(module_migrated, autocommit=True) as connection:
        yield connection


def count(reader: psycopg.Connection) -> int:
    (result,) = reader.execute("select count(*) from terra_connections").fetchone() or (0,)
    return int(result)


def page(number: int, user: str | None) -> list[RowRecord]:
    subjects = [f"t-{number}-{row}" for row in range(ROWS)]
    return [
        RowRecord(
            CONNECTIONS.topic,
            0,
            CONNECTIONS.row_key((subject,)),
            None if user is None else connection_of(subject, user),
        )
        for subject in subjects
    ]


def test_a_reader_sees_all_rows_of_a_switch_or_none_and_none_if_it_breaks_off(
    module_migrated: str, reader: psycopg.Connection
):
    seen: list[int] = []

    async def pages(user: str | None, until: int) -> AsyncIterator[list[RowRecord]]:
        for number in range(PAGES):
            seen.append(count(reader))
            if number == until:
                raise ValueError("broken off")
            yield page(number, user)

    async def scenario() -> None:
        store = Store(module_migrated, projection=DELIVERIES, clock=lambda: 0)
        try:
            with pytest.raises(ValueError, match="broken off"):
                await store.apply_all(pages("user_1", 3))
            assert count(reader) == 0
            await store.apply_all(pages("user_1", PAGES))
            assert count(reader) == PAGES * ROWS
            await store.apply_all(pages(None, PAGES))
        finally:
            await store.close()

    asyncio.run(scenario())
    assert seen == [0] * 8 + [PAGES * ROWS] * 4
    assert count(reader) == 0
