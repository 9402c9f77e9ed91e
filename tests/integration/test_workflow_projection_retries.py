"""Runs that the engine retried: the rows are those that it shows of the same history itself."""

import asyncio
from collections.abc import Callable

from headwater import (
    Break,
    Continue,
    NonRetryableError,
    Step,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from headwater.processors.runs.views import RunView
from headwater.schemas.codec import decode
from headwater.schemas.history import HistoryAppended
from tests.fakes.counter import CounterEngine
from tests.integration.test_workflow_projection import project, rows_of
from tests.unit.projections.histories import Log
from tests.unit.projections.workflow_fold import Row

Views = dict[int, RunView]


class Work:
    """Steps that fail for good until they are mended."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)

    def of(self, name: str) -> Callable[[], str]:
        def callback() -> str:
            if name in self.broken:
                raise NonRetryableError(f"{name} is broken")
            return name

        return callback


work = Work("right", "work 5", "last")


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> None:
    await step.now()
    await step.do("first", work.of("first"))
    await step.wait_for_event("paid", type="paid")
    await step.log.info("paid")

    async def left(step: Step) -> None:
        await step.do("left", work.of("left"))

    async def right(step: Step) -> None:
        await step.do("right", work.of("right"))

    async def turn(step: Step, count: int) -> Break | Continue:
        await step.do("work", work.of(f"work {count}"))
        return Break(count) if count == 8 else Continue(count + 1)

    await step.join("both", left=left, right=right)
    await step.loop("turns", turn, state=0, commit_interval=1, history_every=2, history_keep=2)
    await step.wait_for_event("sent", type="sent")
    await step.do("last", work.of("last"))


def history() -> tuple[Log, Views]:
    """An instance that is retried three times, each time because of something else."""
    log, views = Log(), {}

    async def run() -> None:
        async with WorkflowTest([order], seed=7, start="2026-01-01T00:00:00Z") as test:
            instance = await test.create("order", id="x")
            for kind in ("noise", "paid", "more"):
                await instance.send_event(kind, {"of": kind})
            await test.run_until_idle()
            for name in ("right", "work 5", "last"):
                work.broken.remove(name)
                await test.advance("1 hour")
                await instance.retry()
                await test.run_until_idle()
                await instance.send_event("sent", name) if name == "work 5" else None
                await test.run_until_idle()
            log.partitions[0] += [decode(item, HistoryAppended) for item in test._history]
            views.update(test.views("order", "x"))

    asyncio.run(run())
    return log, views


def of_run(rows: dict[str, list[Row]], table: str, run_number: int, *order: str) -> list[Row]:
    result = [row for row in rows[table] if row["run_number"] == run_number]
    return sorted(result, key=lambda row: [row[name] for name in order])


def check(rows: dict[str, list[Row]], number: int, view: RunView) -> None:
    """The rows of a run are what its view shows."""
    assert view.state is not None
    [run] = of_run(rows, "workflow_run", number) + of_run(rows, "workflow_instance", number)
    assert (run["status"], run["started_at"]) == (view.state.status, view.state.started_at_ms)
    assert [
        (row["step_key"], row["status"], row["attempts"], row["result"], row["error_message"])
        for row in of_run(rows, "workflow_step", number, "ordinal", "sequence")
    ] == [
        (key, step.status, step.attempts, step.result, step.failure and step.failure.message)
        for key, step in view.steps()
    ]
    assert [
        (row["id"], row["payload"], row["delivered_at"], row["consumed_by_step_key"])
        for row in of_run(rows, "workflow_event", number, "sequence")
    ] == [
        (event.event_id, event.payload, event.delivered_at_ms, event.consumed_by_step_key)
        for event in view.events.values()
    ]
    lines = of_run(rows, "workflow_log", number, "id")
    assert [row["message"] for row in lines] == [line.message for _, line in view.logs]


def test_the_rows_of_retried_runs_are_what_the_engine_shows(migrated: str):
    log, views = history()
    assert [view.state and view.state.status for view in views.values()] == [
        *("errored", "errored", "errored", "complete")
    ]
    project(migrated, log, 3)
    rows = rows_of(migrated)
    for number, view in views.items():
        check(rows, number, view)
    assert rows == log.fold().rows()


def test_the_rows_of_a_run_of_another_kind_are_what_its_engine_shows(migrated: str):
    log, views = Log(), {}

    async def run() -> None:
        kinds = {"order": CounterEngine.kind}
        async with WorkflowTest([], engines=[CounterEngine()], kinds=kinds) as test:
            counter = await test.create("order", id="x", params={"to": 2})
            await counter.send_event("add", 1)
            await counter.send_event("add", 1)
            log.partitions[0] += [decode(item, HistoryAppended) for item in test._history]
            views.update(test.views("order", "x"))

    asyncio.run(run())
    project(migrated, log, 3)
    rows = rows_of(migrated)
    assert [row["output"] for row in rows["workflow_instance"]] == ["2"]
    check(rows, 0, views[0])
    assert rows == log.fold().rows()
