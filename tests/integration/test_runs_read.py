"""Runs as `/v1` shows them, read from a real Postgres."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater.projections.errors import InvalidCursor
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.runs import Runs
from headwater.schemas.history import (
    Artifact,
    Failure,
    RunCompleted,
    RunErrored,
    RunPaused,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotQueued,
)
from headwater.schemas.statuses import RunState
from tests.integration.test_workflow_projection import project
from tests.unit.projections.histories import Log


@pytest.fixture(scope="module")
def database(module_migrated: str) -> str:
    project(module_migrated, some_runs(), 100)
    return module_migrated


def some_runs() -> Log:
    """One of each state, on two deployments, in two workflows; and one that is the system's."""
    log = Log(partitions=[[]])
    log.claim()
    old, new = (Artifact(f"dep_{name}", "app", "digest") for name in ("old", "new"))
    log.write("active", RunStarted('{"n":  1}', "s", deployment=old))
    log.write("waiting", RunStarted("1", "s", deployment=new), RunSuspended())
    log.write("paused", RunStarted("1", "s"), RunPaused())
    log.write("done", RunStarted("1", "s", deployment=new), RunCompleted('{"a":  2}'))
    failed = Failure("E", "no")
    log.write("failed", RunStarted("1", "s"), RunErrored(failed), workflow="other")
    log.write("ended", RunStarted("1", "s"), RunTerminated("enough"), workflow="other")
    log.write("queued", RunStarted("1", "s"), SlotAsked("~all", "null"), RunSuspended())
    log.write("~all", RunStarted("", "", kind="slots"), SlotQueued("queued#0#s", 0, "null"))
    log.write("system", RunStarted("1", "s"), workflow="headwater-prune")
    log.write("twice", RunStarted('"one"', "s"))
    log.write("twice", RunStarted('"two"', "s"), workflow="other")
    return log


def reading(database: str, act: Callable[[Runs], Awaitable[None]]) -> None:
    async def acts() -> None:
        async with PooledReader(database) as reader:
            await act(Runs(reader))

    asyncio.run(acts())


NEWEST_FIRST = [
    "twice",
    "twice",
    "queued",
    "ended",
    "failed",
    "done",
    "paused",
    "waiting",
    "active",
]


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (RunState.PENDING, {"queued"}),
        (RunState.RUNNING, {"active", "waiting", "paused", "twice"}),
        (RunState.COMPLETED, {"done"}),
        (RunState.FAILED, {"failed"}),
        (RunState.CANCELLED, {"ended"}),
    ],
)
def test_runs_of_a_state_are_those_that_are_shown_so(
    database: str, state: RunState, found: set[str]
) -> None:
    async def act(runs: Runs) -> None:
        page = await runs.page(state=state, limit=1_000)
        assert {row.run_id for row in page.rows} == found
        assert {row.status for row in page.rows} == {state}

    reading(database, act)


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 9, 1_000])
def test_pages_have_every_run_once_and_the_newest_first(database: str, limit: int) -> None:
    async def act(runs: Runs) -> None:
        seen: list[str] = []
        cursor = None
        while True:
            page = await runs.page(limit=limit, after=cursor)
            assert len(page.rows) <= limit
            seen += [row.run_id for row in page.rows]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == NEWEST_FIRST

    reading(database, act)


def test_runs_of_a_workflow_and_of_a_deployment(database: str) -> None:
    async def act(runs: Runs) -> None:
        of_other = await runs.page(workflow="other", limit=10)
        assert [row.run_id for row in of_other.rows] == ["twice", "ended", "failed"]
        on_new = await runs.page(deployment="dep_new", limit=10)
        assert [row.run_id for row in on_new.rows] == ["done", "waiting"]
        both = await runs.page(
            workflow="order", deployment="dep_new", state=RunState.COMPLETED, limit=10
        )
        assert [row.deployment_id for row in both.rows] == ["dep_new"]
        assert (await runs.page(workflow="nobody's", limit=10)).rows == ()

    reading(database, act)


@pytest.mark.parametrize("cursor", ["x", "WzFd", "WyJhIiwiYiIsImMiXQ"])
def test_a_cursor_of_somebody_elses_is_refused(database: str, cursor: str) -> None:
    async def act(runs: Runs) -> None:
        with pytest.raises(InvalidCursor):
            await runs.page(limit=10, after=cursor)

    reading(database, act)


def test_a_run_is_found_by_its_id_alone(database: str) -> None:
    async def act(runs: Runs) -> None:
        (result,) = await runs.find("done")
        run = result.run
        assert (run.workflow_name, run.status, run.deployment_id) == (
            "order",
            "completed",
            "dep_new",
        )
        assert (bytes(run.input), bytes(run.output)) == (b"1", b'{"a":  2}')
        (failed,) = await runs.find("failed")
        assert failed.run.error is not None
        assert (failed.run.error.name, failed.run.output) == ("E", None)
        assert await runs.find("nothing") == []
        assert await runs.find("system") == []
        assert await runs.find("\0") == []
        assert [item.run.workflow_name for item in await runs.find("twice")] == ["order", "other"]
        (named,) = await runs.find("twice", "other")
        assert bytes(named.run.input) == b'"two"'

    reading(database, act)
