"""Prunes over a real Postgres: which instances they delete, page by page, and which they leave.

Method: histories are projected with a retention of a day, and the prune's own workflow runs in the
harness. Which instances are past it says Postgres. In place of the owners who delete them the test
deletes rows, but for those to which something has happened meanwhile.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
import pytest

from headwater import WorkflowTest
from headwater.gateway.builtin.bulk_operations import _conditional_deletion_of
from headwater.gateway.builtin.instances import PRUNE, PruneParams
from headwater.gateway.builtin.wipe_and_replay_workflows import prune_workflow
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.instances import (
    Expired,
    Expiry,
    PruneCursor,
    expired,
    expired_counts,
    stuck_instances,
)
from headwater.schemas.history import (
    DeleteInstance,
    EntryOpened,
    RunCompleted,
    RunPaused,
    RunStarted,
    RunSuspended,
)
from headwater.schemas.statuses import EntryKind
from headwater.streams.workflows.client import Addressed
from tests.integration.test_workflow_projection import project
from tests.unit.projections.histories import START_MS, Log

#: More than two pages.
ORDERS = [f"o-{number:03}" for number in range(205)]
SHIPMENTS = ["s-1", "s-2"]
CHANGED = {"o-007", "o-123", "s-2"}
DAY = timedelta(days=1)


class Rows:
    """The instances of a database, for prunes."""

    def __init__(self, reader: PooledReader, dsn: str) -> None:
        self._reader = reader
        self._dsn = dsn
        self.erased = 0

    async def pruning(self) -> "Rows":
        return self

    async def prune_page(
        self, expiry: Expiry, after: Sequence[str], size: int
    ) -> tuple[Sequence[Expired], int]:
        page = await expired(self._reader, expiry, PruneCursor(*after), size)
        ids = [item.instance_id for item in page if item.instance_id not in CHANGED]
        with psycopg.connect(self._dsn) as connection:
            query = "delete from workflow_instance where instance_id = any(%s)"
            return page, connection.execute(query, [ids]).rowcount

    async def erase(self) -> int:
        self.erased += 1
        return 7


@pytest.fixture
def ended(migrated: str) -> str:
    """Instances that have ended, one a second, and one that goes on."""
    log = Log()
    log.claim(workflows=("order", "ship"))
    for workflow, ids in (("order", ORDERS), ("ship", SHIPMENTS)):
        for item in ids:
            log.write(item, RunStarted("{}", "s"), RunCompleted("1"), workflow=workflow)
    log.write("o-open", RunStarted("{}", "s"))
    project(migrated, log)
    return migrated


def left(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        return {row[0] for row in connection.execute("select instance_id from workflow_instance")}


def until(seconds: int) -> str:
    """When those are past their retention that have ended within so many seconds."""
    return (datetime.fromtimestamp(START_MS / 1_000 + seconds, UTC) + DAY).isoformat()


def prune(dsn: str, asked: Expiry, erased: int) -> dict[str, int]:
    async def whole() -> dict[str, int]:
        async with PooledReader(dsn) as reader:
            counts = await expired_counts(reader, asked)
            params = PruneParams(**msgspec.structs.asdict(asked), matched=sum(counts.values()))
            rows = Rows(reader, dsn)
            async with WorkflowTest([prune_workflow(rows.pruning)]) as test:
                instance = await test.create(PRUNE, params=msgspec.to_builtins(params))
                done: dict[str, int] = await instance.result()
            assert rows.erased == erased
            assert done["deleted"] + done["kept"] == params.matched
            return done

    return asyncio.run(whole())


def test_all_that_is_past_its_retention_goes_page_by_page_but_what_has_changed(ended: str):
    done = prune(ended, Expiry(until=until(1_000)), erased=1)
    assert done == {"deleted": len(ORDERS) + len(SHIPMENTS) - 3, "kept": 3, "records": 7}
    assert left(ended) == CHANGED | {"o-open"}
    assert prune(ended, Expiry(until=until(1_000), workflow="nobodys"), erased=0) == {
        "deleted": 0,
        "kept": 0,
        "records": 0,
    }


def test_of_one_workflow_nothing_else_goes(ended: str):
    assert prune(ended, Expiry(until=until(1_000), workflow="ship"), erased=1)["deleted"] == 1
    assert left(ended) == {*ORDERS, "o-open", "s-2"}


def test_what_is_kept_for_longer_stays(ended: str):
    # The first second was the owner's, who claimed the partition.
    assert prune(ended, Expiry(until=until(1 + 100)), erased=1)["deleted"] == 99
    assert left(ended) == {*ORDERS[100:], *SHIPMENTS, "o-007", "o-open"}


def test_an_owner_deletes_what_has_not_changed_since_postgres_knew_it():
    at = datetime(2026, 1, 1, microsecond=7_000, tzinfo=UTC)
    result = Expired(workflow="order", instance_id="o", retention_until=at + DAY, updated_at=at)
    assert _conditional_deletion_of(result) == Addressed(
        "order", "o", DeleteInstance(1_767_225_600_007)
    )


def test_instances_that_should_have_continued_are_stuck(migrated: str):
    """Of a late timer, and of code that neither runs nor waits."""
    log = Log()
    log.claim(workflows=("order",))
    started = RunStarted("{}", "s")
    later_ms = START_MS + 10 * 86_400_000
    for name, wake_ms in (("late", START_MS + 60_000), ("asleep", later_ms)):
        nap = EntryOpened("nap", "nap", EntryKind.SLEEP, 1, wake_at_ms=wake_ms)
        log.write(name, started, nap, RunSuspended())
    log.write("idle", started)
    log.write("ended", started, RunCompleted("1"))
    log.write("paused", started, RunPaused())
    project(migrated, log)

    async def search() -> list[str]:
        async with PooledReader(migrated) as reader:
            rows = await stuck_instances(reader, START_MS + 86_400_000, 10)
            return sorted(row.instance_id for row in rows)

    assert asyncio.run(search()) == ["idle", "late"]
