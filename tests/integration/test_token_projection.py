"""Runs of graphs: the rows of their tokens are those that the engine shows of the same history."""

import asyncio
import json
from typing import Any

import psycopg
import pytest
from psycopg import sql

from headwater import NonRetryableError, Step, WorkflowEvent, WorkflowTest, task, workflow
from headwater.projections.postgres.writes import UPSERTS
from headwater.schemas.answers import History
from headwater.schemas.codec import decode
from headwater.schemas.history import (
    FanInActivated,
    HistoryAppended,
    InstanceDeleted,
    RunStarted,
    TaskDispatch,
    TasksDispatched,
    TokensCreated,
)
from tests.integration.test_workflow_projection import project, rows_of
from tests.integration.test_workflow_projection_retries import check_answers
from tests.unit.projections.histories import Log
from tests.workflows.graphing import edge, graph, node

_JOIN = {"strategy": "all", "siblingGroup": "both", "timeoutMs": 5_000}
GRAPH = graph(
    [
        node("start"),
        node(
            "work",
            "work",
            inputMapping={"index": "_branch.index"},
            retries={"limit": 1, "delay": "1 second"},
        ),
        {"ref": "bill", "subworkflow": "bill", "inputMapping": {}, "timeoutMs": 3_600_000},
        node("end"),
    ],
    [
        edge("start", "work", siblingGroup="both", spawnCount=2),
        edge("start", "bill"),
        edge("work", "end", synchronization=_JOIN),
    ],
)


@workflow("bill")
async def bill(event: WorkflowEvent, step: Step) -> str:
    await step.wait_for_event("paid", type="paid")
    return "paid"


def history() -> tuple[Log, dict[int, History]]:
    """A graph whose run is retried twice: its join had waited too long, then a task failed."""
    log, histories = Log(), {}
    calls: list[int] = []

    @task("work")
    async def work(given: dict[str, Any]) -> dict[str, Any]:
        calls.append(given["index"])
        match given["index"], calls.count(given["index"]):
            case 1, 1:
                raise RuntimeError("once")
            case 1, 2:
                await world[0].sleep("1 minute")
            case 1, 3:
                raise NonRetryableError("for good")
            case _:
                pass
        return given

    world: list[WorkflowTest] = []

    async def scenario() -> None:
        async with WorkflowTest([GRAPH, bill], tasks=[work], seed=7) as test:
            world.append(test)
            instance = await test.create("g", id="x")
            await test.advance("10 seconds")
            for _ in range(2):
                await test.advance("1 hour")
                await instance.retry()
                await test.run_until_idle()
            for token in (await instance.history()).tokens:
                if token.status == "waiting_for_subworkflow":
                    child = test.get("bill", token.child_instance_id or "")
                    await child.send_event("paid")
            await test.run_until_idle()
            log.partitions[0] += [decode(item, HistoryAppended) for item in test._history]
            for number in test.runs("g", "x"):
                histories[number] = await instance.history(number)

    asyncio.run(scenario())
    return log, histories


@pytest.mark.parametrize("size", [1, 1_000])
def test_the_tokens_of_retried_runs_are_what_a_test_shows(migrated: str, size: int):
    log, histories = history()
    project(migrated, log, size)
    rows = rows_of(migrated)
    assert rows == log.fold().rows()
    runs = (*rows["workflow_run"], *rows["workflow_instance"])
    assert [run["status"] for run in runs if run["workflow_name"] == "g"] == [
        "errored",
        "errored",
        "complete",
    ]
    waited = {(row["status"], row["retry_status"]) for row in rows["workflow_token"]}
    assert waited >= {
        ("timed_out", "waiting_for_siblings"),
        ("cancelled", "waiting_for_siblings"),
        ("cancelled", "pending"),
        ("failed", "pending"),
    }
    # Written by hand, because rows, fold and histories follow from the same code.
    tokens = [histories[number].tokens for number in (0, 1, 2)]
    assert [[(token.node_ref, token.status) for token in run] for run in tokens] == [
        [
            ("start", "completed"),
            ("work", "completed"),
            ("work", "cancelled"),
            ("bill", "cancelled"),
            ("end", "timed_out"),
        ],
        [
            ("start", "completed"),
            ("work", "completed"),
            ("work", "failed"),
            ("bill", "cancelled"),
            ("end", "cancelled"),
        ],
        [(name, "completed") for name in ("start", "work", "work", "bill", "end", "end", "end")],
    ]
    check_answers(migrated, "g", histories)


def created(first: int, count: int) -> TokensCreated:
    return TokensCreated(first, count, "n", None, None, "root.s.", "f", "g", 0, count, ())


def test_a_fan_out_of_ten_thousand_is_as_many_rows(migrated: str):
    log, many = Log(), 10_000
    log.claim()
    log.write("x", RunStarted("{}", "s", kind="graph"), created(0, many))
    log.write("x", TasksDispatched(tuple(TaskDispatch(n, 1, "{}") for n in range(many))))
    log.write("x", FanInActivated("f", "n", tuple(range(many))))
    project(migrated, log, 2)
    with psycopg.connect(migrated) as connection:
        query = "select status, attempts, count(*) from workflow_token group by 1, 2"
        assert connection.execute(query).fetchall() == [("completed", 1, many)]
    log.write("x", InstanceDeleted())
    project(migrated, log, 2)
    assert rows_of(migrated)["workflow_token"] == []


def test_a_token_is_found_by_its_key_before_there_are_statistics(migrated: str):
    log, many = Log(), 10_000
    log.claim()
    log.write("x", RunStarted("{}", "s", kind="graph"), created(0, many))
    project(migrated, log, 2)
    rows = [{"workflow_name": "order", "instance_id": "x", "run_number": 0, "id": 7}]
    with psycopg.connect(migrated) as connection:
        for way in ("hashjoin", "mergejoin", "seqscan"):
            connection.execute(sql.SQL("set {} = off").format(sql.Identifier(f"enable_{way}")))
        query = b"explain (costs off) " + UPSERTS["workflow_token_changes"]
        plan = connection.execute(query, {"rows": json.dumps(rows)}).fetchall()
    assert "using workflow_token_pkey on" in "\n".join(line for (line,) in plan), plan
