"""Steps, hooks, waits and events of a run as the World reads them, in a real Postgres."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from headwater.processors.queue_messages import DELIVERY, QUEUE_LABEL
from headwater.projections.errors import InvalidCursor
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.runs import Runs
from headwater.projections.workflows.world import Parts, RunPart, WorldEntries
from headwater.schemas.history import (
    EntryCompleted,
    EntryOpened,
    EventReceived,
    Failure,
    Label,
    RunErrored,
    RunStarted,
    RunSuspended,
    StepCompleted,
    StepFailed,
)
from headwater.schemas.statuses import EntryKind
from headwater.schemas.v1_answers import QueueListed
from tests.integration.test_workflow_projection import project
from tests.unit.projections.histories import START_MS, Log

Read = Callable[[RunPart, int, str | None], Awaitable[Parts]]


@pytest.fixture(scope="module")
def database(module_migrated: str) -> str:
    project(module_migrated, one_run(), 100)
    return module_migrated


def one_run() -> Log:
    log = Log(partitions=[[]])
    log.claim()
    log.write("r", RunStarted('{"sku": "x"}', "s"))
    log.write("r", StepCompleted("a", "a", 0, START_MS + 2_000, 1, 3, 1_000, "125"))
    log.write("r", EntryOpened("rest", "rest", EntryKind.SLEEP, 1, wake_at_ms=START_MS))
    log.write("r", EntryCompleted("rest", "null"))
    log.write(
        "r", EntryOpened("w", "w", EntryKind.WAIT, 2, START_MS + 9_000, ("paid",)), RunSuspended()
    )
    log.write("r", EventReceived("e-1", "paid", '{"by": "me"}', START_MS + 5_000))
    failure = Failure("E", "no")
    log.write(
        "r", StepFailed("b", "b", 3, START_MS + 2_000, 1, 1, 1_000, failure), RunErrored(failure)
    )
    log.write("empty", RunStarted("1", "s"))
    log.write("twice", RunStarted("1", "s"))
    log.write("twice", RunStarted("1", "s"), workflow="other")
    for name in ("m-1", "m-2"):
        label = (Label(QUEUE_LABEL, "a//b"),)
        log.write(name, RunStarted("{}", "s", labels=label), RunSuspended(), workflow=DELIVERY)
    return log


def reading(database: str, act: Callable[[PooledReader], Awaitable[Any]]) -> Any:  # noqa: ANN401
    async def acts() -> object:
        async with PooledReader(database) as reader:
            return await act(reader)

    return asyncio.run(acts())


def pages(database: str, what: str, limit: int, **part: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """All rows, read page by page."""

    async def act(reader: PooledReader) -> list[Any]:
        read: Read = getattr(WorldEntries(reader), what)
        rows, after = list[Any](), None
        while True:
            parts = await read(RunPart("r", **part), limit, after)
            assert parts.workflows == ["order"]
            assert len(parts.page.rows) <= limit
            rows += parts.page.rows
            after = parts.page.cursor
            if after is None:
                return rows

    return [msgspec.json.decode(msgspec.json.encode(row)) for row in reading(database, act)]


@pytest.mark.parametrize("limit", [1, 100])
def test_parts_of_a_run_are_read_page_by_page(database: str, limit: int):
    steps = pages(database, "steps", limit)
    assert [(step["stepId"], step["status"], step["attempt"]) for step in steps] == [
        ("a", "completed", 1),
        ("b", "failed", 1),
    ]
    assert (steps[0]["output"], steps[1]["error"]["name"]) == (125, "E")
    assert [wait["status"] for wait in pages(database, "waits", limit)] == ["completed"]
    (hook,) = pages(database, "hooks", limit)
    assert (hook["hookId"], hook["token"]) == ("w", "paid")
    events = pages(database, "events", limit)
    kinds = [event["eventType"] for event in events]
    assert kinds[0] == "run_created"
    assert kinds[-1] == "run_failed"
    assert set(kinds) == {
        *("run_created", "run_started", "step_created", "step_started", "step_completed"),
        *("wait_created", "wait_completed", "hook_created", "hook_received"),
        *("step_failed", "run_failed"),
    }
    assert len({event["eventId"] for event in events}) == len(events)
    by_kind = {event["eventType"]: event["eventData"] for event in events}
    assert by_kind["run_created"]["input"] == {"sku": "x"}
    assert by_kind["step_completed"] == {"result": 125}
    assert by_kind["hook_received"] == {"payload": {"by": "me"}}
    assert by_kind["run_failed"]["error"] == {"name": "E", "message": "no"}


def test_values_are_left_out_on_request(database: str):
    (step, _) = pages(database, "steps", 100, payload=False)
    assert "output" not in step
    assert step["stepName"] == "a"
    by_kind = {
        event["eventType"]: event["eventData"]
        for event in pages(database, "events", 100, payload=False)
    }
    assert by_kind["run_created"] == {"workflowName": "order", "deploymentId": None}
    assert by_kind["hook_received"] == {}


def test_one_part_is_read_by_its_key(database: str):
    assert [step["stepId"] for step in pages(database, "steps", 1, key="b")] == ["b"]
    assert pages(database, "steps", 1, key="w") == []


def test_a_run_that_has_no_parts_is_told_from_one_that_does_not_exist(database: str):
    async def act(reader: PooledReader) -> None:
        entries = WorldEntries(reader)
        for run_id, workflows in (
            ("empty", ["order"]),
            ("none", []),
            ("twice", ["order", "other"]),
        ):
            parts = await entries.steps(RunPart(run_id), 10, None)
            assert (list(parts.workflows), parts.page.rows) == (workflows, ())
        assert list((await entries.events(RunPart("twice", "other"), 10, None)).workflows) == [
            "other"
        ]
        for after in ("x", "W10"):
            with pytest.raises(InvalidCursor):
                await entries.events(RunPart("r"), 10, after)

    reading(database, act)


def test_queues_have_the_number_of_messages_that_wait(database: str):
    async def act(reader: PooledReader) -> None:
        assert await Runs(reader).queues() == [QueueListed(name="a//b", waiting=2)]
        page = await Runs(reader).page(limit=100, payload=True)
        inputs = {run.run_id: getattr(run, "input", None) for run in page.rows}
        assert bytes(inputs["r"]) == b'{"sku": "x"}'

    reading(database, act)
