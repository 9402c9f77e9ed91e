"""Runs that the engine retried: the rows are those that it shows of the same history itself."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headwater import (
    Break,
    Continue,
    NonRetryableError,
    Step,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from headwater.processors.code.state import CodeRun, Entry, trimmed
from headwater.processors.runs.state import Run
from headwater.projections.deliveries.queries import Reader
from headwater.projections.workflows.answers import RunKey
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.answers import Answer, History
from headwater.schemas.codec import decode
from headwater.schemas.history import HistoryAppended
from headwater.schemas.statuses import EntryKind
from tests.fakes.counter import CounterEngine
from tests.integration.test_workflow_projection import project, rows_of
from tests.unit.projections.histories import Log
from tests.unit.projections.workflow_fold import Row

Runs = dict[int, Run]


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


def history() -> tuple[Log, Runs, dict[int, History]]:
    """An instance that is retried three times, each time because of something else."""
    log, runs, histories = Log(), {}, {}

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
            runs.update(test.runs("order", "x"))
            histories.update({number: await instance.history(number) for number in runs})

    asyncio.run(run())
    return log, runs, histories


def of_run(rows: dict[str, list[Row]], table: str, run_number: int, *order: str) -> list[Row]:
    result = [row for row in rows[table] if row["run_number"] == run_number]
    return sorted(result, key=lambda row: [row[name] for name in order])


def entries_of(run: object) -> list[tuple[str, Entry]]:
    """The entries of a run as the engine has them, but for those that only code sees."""
    if not isinstance(run, CodeRun):
        return []
    hidden = trimmed(run.entries)
    shown = [
        (key, entry)
        for key, entry in run.entries.items()
        if entry.kind is not EntryKind.NOW and key not in hidden
    ]
    return sorted(shown, key=lambda item: item[1].ordinal)


def check(rows: dict[str, list[Row]], number: int, run: Run) -> None:
    """The rows of a run are what the engine has of it."""
    [row] = of_run(rows, "workflow_run", number) + of_run(rows, "workflow_instance", number)
    assert (row["status"], row["started_at"]) == (run.status, run.started_at_ms)
    assert [
        (row["step_key"], row["status"], row["attempts"], row["result"], row["error_message"])
        for row in of_run(rows, "workflow_step", number, "ordinal", "sequence")
    ] == [
        (key, step.status, step.attempts, step.result, step.failure and step.failure.message)
        for key, step in entries_of(run)
    ]


def plain(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """Answers without what a test shows differently: limits of waits, and ids of lines."""
    result = json.loads(msgspec.json.encode(list(answers)))
    for number, answer in enumerate(result):
        if answer.get("type") != "do":
            answer.pop("maxAttempts", None)
        if "isReplay" in answer:
            answer["id"] = str(number)
    return result


def check_answers(dsn: str, workflow: str, histories: dict[int, History]) -> None:
    """What the API answers about the runs is what a test shows of them."""

    async def scenario() -> None:
        async with Reader(dsn) as reader:
            workflows = Workflows(reader)
            for number, history in histories.items():
                key = RunKey(workflow, "x", number)
                for read, shown in (
                    (workflows.steps, history.steps),
                    (workflows.tokens, history.tokens),
                    (workflows.events, history.events),
                    (workflows.logs, history.logs),
                ):
                    page = await read(key, limit=100)
                    assert plain(page.rows) == plain(shown)

    asyncio.run(scenario())


def test_the_rows_of_retried_runs_are_what_the_engine_shows(migrated: str):
    log, runs, histories = history()
    assert [run.status for run in runs.values()] == [*("errored", "errored", "errored", "complete")]
    project(migrated, log, 3)
    rows = rows_of(migrated)
    for number, run in runs.items():
        check(rows, number, run)
    assert rows == log.fold().rows()
    check_answers(migrated, "order", histories)


def test_the_rows_of_a_run_of_another_kind_are_what_its_engine_shows(migrated: str):
    log, runs = Log(), {}

    async def run() -> None:
        kinds = {"order": CounterEngine.kind}
        async with WorkflowTest([], engines=[CounterEngine()], kinds=kinds) as test:
            counter = await test.create("order", id="x", params={"to": 2})
            await counter.send_event("add", 1)
            await counter.send_event("add", 1)
            log.partitions[0] += [decode(item, HistoryAppended) for item in test._history]
            runs.update(test.runs("order", "x"))

    asyncio.run(run())
    project(migrated, log, 3)
    rows = rows_of(migrated)
    assert [row["output"] for row in rows["workflow_instance"]] == ["2"]
    check(rows, 0, runs[0])
    assert rows == log.fold().rows()
