"""Goal: a Postgres that loses the end of what was written makes no reader of sync skip a row.

Method: a server of each test's own, whose end is lost in one of two ways. Its processes are killed
while commits wait for the disk, or an older copy of its data takes its place, as a replica does
that lags. Then the projector goes on, as if from Kafka, and in another order: the transaction
numbers that were lost are given to other rows.
"""

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deliveries.queries import Reader
from headwater.projections.deliveries.sync import changes
from headwater.projections.errors import CursorExpired
from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.projections.postgres.migrate import migrate
from headwater.projections.projector.store import Store
from headwater.schemas.tables import DAILY_SUMMARY
from tests.integration.written import Written, apply, batch, day

PLACE = (DAILY_SUMMARY.topic, 0)
KEPT = [day("kept", "2026-01-01")]
USERS = [f"lost_{n}" for n in range(5)]
LOST = [day(user, "2026-01-01") for user in USERS]
NOW_MS = 1_767_300_000_000


class System:
    """A server that can lose its end, and a reader with a copy."""

    def __init__(self, folder: Path) -> None:
        self.postgres = EmbeddedPostgres(folder / "postgres", report=lambda _: None)
        self.data = folder / "postgres" / "pgdata"
        self.older = folder / "older"
        self.dsn = self.postgres.start()
        migrate(self.dsn, lambda _: None)
        asyncio.run(self.write(KEPT))
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            # Commits wait for the disk until something else writes to it.
            connection.execute("alter system set wal_writer_delay = '10s'")
            connection.execute("select pg_reload_conf()")

    def copy(self) -> None:
        self.postgres.stop()
        # With its owners, which may be those of another account.
        subprocess.run(["cp", "-a", self.data, self.older], check=True)
        self.postgres.start()

    def crash(self) -> None:
        self.postgres.kill()
        self.postgres.start()

    def fail_over(self) -> None:
        self.postgres.kill()
        shutil.rmtree(self.data)
        self.older.rename(self.data)
        self.postgres.start()

    async def write(self, *transactions: list[Written]) -> None:
        """One projector's life: a transaction for each list."""
        store = Store(self.dsn, projection=DELIVERIES, clock=lambda: NOW_MS)
        try:
            for records in transactions:
                await apply(store, records)
        finally:
            await store.close()

    async def users(self, cursor: str | None) -> tuple[list[str], str]:
        """Whose rows changed since a cursor."""
        result: list[str] = []
        async with Reader(self.dsn) as reader:
            while True:
                page = await changes(reader, after=cursor, limit=2)
                result += [row["user_id"] for row in page.tables["daily_summary"]]
                cursor = page.cursor
                if not page.has_more:
                    return result, cursor

    def one(self, query: str) -> int:
        with psycopg.connect(self.dsn) as connection:
            [(value,)] = connection.execute(query.encode()).fetchall()
        return int(value)


def test_what_a_crash_has_lost_is_seen_again(scratch: Path):
    system = System(scratch / "crash")
    try:
        cursor = asyncio.run(lose(system, system.crash))
        asyncio.run(system.write([day("new", "2026-01-01"), *reversed(LOST)]))
        result, later = asyncio.run(system.users(cursor))
        assert {"new", *USERS} <= {*result}
        assert asyncio.run(system.users(later)) == ([], later)
    finally:
        system.postgres.stop()


def test_a_cursor_that_a_replica_never_knew_has_expired(scratch: Path):
    system = System(scratch / "replica")
    try:
        system.copy()
        cursor = asyncio.run(lose(system, system.fail_over))
        with pytest.raises(CursorExpired):
            asyncio.run(system.users(cursor))
        asyncio.run(system.write([day("new", "2026-01-01"), *reversed(LOST)]))
        with pytest.raises(CursorExpired):
            asyncio.run(system.users(cursor))
        assert {*asyncio.run(system.users(None))[0]} == {"kept", "new", *USERS}
    finally:
        system.postgres.stop()


async def lose(system: System, how: Callable[[], None]) -> str:
    """Writes what a reader sees and the server then loses; gives the reader's cursor."""
    store = Store(system.dsn, projection=DELIVERIES, clock=lambda: NOW_MS)
    await store.offsets([PLACE])
    for number, record in enumerate(LOST, 1):
        await store.apply(batch([record], {PLACE: number}))
    result, cursor = await system.users(None)
    assert result == ["kept", *USERS]
    how()
    await store.close()
    # Rows and offsets are lost together, or not at all.
    offset = system.one("select next_offset from projection_offsets")
    assert offset == system.one("select count(*) from daily_summary") < len(result)
    return cursor
