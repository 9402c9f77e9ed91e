"""Callbacks that go astray, counted in Postgres by several gateways."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg

from headwater.gateway.api.ownership import UnexpectedHits
from headwater.projections.gateway_state import Hits
from headwater.projections.postgres.connections import PooledReader
from tests.unit.projections.histories import START_MS

MINUTE_MS = 60_000
GATEWAYS = 2
EACH = 50


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def test_hits_of_several_gateways_are_counted_once_each(migrated: str):
    async def scenario() -> Hits:
        readers = [PooledReader(migrated) for _ in range(GATEWAYS)]
        for reader in readers:
            await reader.open()
        try:
            gateways = [UnexpectedHits(reader, "shop", lambda: START_MS) for reader in readers]
            await asyncio.gather(*(gateway.record() for gateway in gateways for _ in range(EACH)))
            return await gateways[0].recorded()
        finally:
            for reader in readers:
                await reader.close()

    count = GATEWAYS * EACH
    assert asyncio.run(scenario()) == Hits(count, count, moment(START_MS))


def test_hits_grow_old_and_their_rows_become_one(migrated: str):
    async def scenario() -> list[Hits]:
        reader = PooledReader(migrated)
        await reader.open()
        now_ms = START_MS
        hits = UnexpectedHits(reader, "shop", lambda: now_ms)
        other = UnexpectedHits(reader, "another", lambda: now_ms)
        result = []
        try:
            for minutes in (0, 1, 20, 200):
                now_ms = START_MS + minutes * MINUTE_MS
                await hits.record()
                result.append(await hits.recorded())
            assert await other.recorded() == Hits(0, 0, None)
        finally:
            await reader.close()
        return result

    assert [(item.lifetime, item.last_15m) for item in asyncio.run(scenario())] == [
        (1, 1),
        (2, 2),
        (3, 1),
        (4, 1),
    ]
    with psycopg.connect(migrated) as connection:
        rows = connection.execute("select hits, last_at from unexpected_hits order by minute")
        last = moment(START_MS)
        assert rows.fetchall() == [
            (3, last + timedelta(minutes=20)),
            (1, last + timedelta(minutes=200)),
        ]


def test_hits_while_postgres_is_away_are_recorded_later(migrated: str):
    async def scenario() -> Hits:
        away = PooledReader("postgresql://headwater@127.0.0.1:1/headwater", connect_timeout_s=0.1)
        here = PooledReader(migrated)
        await away.open()
        await here.open()
        hits = UnexpectedHits(away, "shop", lambda: START_MS)
        try:
            await hits.record()
            hits._reader = here
            return await hits.recorded()
        finally:
            await away.close()
            await here.close()

    assert asyncio.run(scenario()).lifetime == 1
