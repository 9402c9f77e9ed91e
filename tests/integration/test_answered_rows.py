"""Rows that a client was answered for outlive a crash of Postgres."""

import asyncio
from pathlib import Path

import pytest

from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deployments import DEPLOYMENTS, GRAPHS
from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.projections.postgres.migrate import migrate
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.store import Store
from headwater.projections.workflows.plan import WORKFLOWS
from headwater.schemas.history import RunStarted, StepCompleted
from headwater.schemas.topics import WORKFLOW_HISTORY
from tests.unit.projections.histories import START_MS, Cutter, Log

BATCHES = 20


def test_an_applied_history_outlives_a_crash_of_postgres(scratch: Path):
    server = EmbeddedPostgres(scratch / "crashing postgres", report=lambda _: None)
    position = (WORKFLOW_HISTORY, 0)
    log = Log()
    log.claim()
    log.write("x", RunStarted("{}", "s"))

    async def apply_then_crash(dsn: str) -> int:
        store = Store(dsn, projection=WORKFLOWS, clock=lambda: START_MS)
        cutter = Cutter(log)
        assert await store.offsets([position]) == {position: 0}
        await store.apply(cutter.batch(2))
        for number in range(BATCHES):
            log.write("x", StepCompleted(f"s{number}", "s", number, START_MS, 1, 0, 600_000, "1"))
            await store.apply(cutter.batch(1))
        applied = (await store.offsets([position]))[position]
        server.kill()
        await store.close()
        return applied

    async def offset(dsn: str) -> int:
        store = Store(dsn, projection=WORKFLOWS, clock=lambda: START_MS)
        try:
            return (await store.offsets([position]))[position]
        finally:
            await store.close()

    try:
        dsn = server.start()
        migrate(dsn, lambda _: None)
        applied = asyncio.run(apply_then_crash(dsn))
        assert applied == BATCHES + 2
        assert asyncio.run(offset(server.start())) == applied
    finally:
        server.kill()


@pytest.mark.parametrize(
    "projection", [WORKFLOWS, GRAPHS, DEPLOYMENTS, DELIVERIES], ids=lambda p: p.name
)
def test_a_projection_that_answers_wait_for_commits_to_the_disk(
    migrated: str, projection: Projection
):
    async def setting() -> str:
        store = Store(migrated, projection=projection, clock=lambda: START_MS)
        try:
            connection = await store._connected()
            row = await (await connection.execute("show synchronous_commit")).fetchone()
            return row[0] if row else ""
        finally:
            await store.close()

    assert asyncio.run(setting()) == ("off" if projection is DELIVERIES else "on")
