"""The workflow events of graphs by name: what a run's history says happened, in the harness."""

from typing import Any

import pytest

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.answers import GRAPH_EVENTS, GraphEvent, History
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, fan, graph, node, play

ENDED = {"items": [1, 2, 3]}


def names(history: History) -> dict[str, int]:
    """How many events there are of every name that has some."""
    return {name: len(events) for name, events in history.events_by_name.items() if events}


def in_order(history: History) -> list[GraphEvent]:
    """All events, in the order in which they happened."""
    events = (event for named in history.events_by_name.values() for event in named)
    return sorted(events, key=lambda event: (event.sequence, event.position))


def test_a_fork_that_joins_has_events_of_all_that_happened():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        history = await instance.history()
        assert list(history.events_by_name) == list(GRAPH_EVENTS)
        assert names(history) == {
            "workflow.started": 1,
            "workflow.completed": 1,
            "task.dispatched": 5,
            "task.completed": 5,
            # One token at the start, three branches, one arrival of each, and the continuation.
            "token.created": 8,
            "token.completed": 8,
            "token.waiting": 3,
            "fan_out.started": 1,
            "fan_in.completed": 1,
            "branches.merged": 1,
        }
        (forked,) = history.events_by_name["fan_out.started"]
        assert (forked.node_ref, forked.payload["branch_total"]) == ("start", 3)
        (joined,) = history.events_by_name["fan_in.completed"]
        assert (joined.node_ref, joined.token_id, joined.payload["tokens"]) == ("end", None, 3)
        (merged,) = history.events_by_name["branches.merged"]
        assert merged.payload["merges"] == [
            {"source": "_branch.output.n", "target": "state.all", "strategy": "append"}
        ]
        branches = [event.payload for event in history.events_by_name["token.created"][1:4]]
        assert [branch["path_id"] for branch in branches] == [
            "root.start.0",
            "root.start.1",
            "root.start.2",
        ]
        dispatched = history.events_by_name["task.dispatched"]
        assert [event.node_ref for event in dispatched] == ["start", "work", "work", "work", "end"]

    play(fan(), scenario, ENDED)


def test_events_are_numbered_as_the_events_of_the_history_that_they_come_from():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        history = await instance.history()
        events = in_order(history)
        assert events[0].name == "workflow.started"
        assert events[-1].name == "workflow.completed"
        kinds = [kind async for decided in instance.trace() for kind in decided.events]
        of_tasks = [event.sequence for event in history.events_by_name["task.completed"]]
        # The trace begins with the event after RunStarted, whose number is 0.
        assert [kinds[number - 1] for number in of_tasks] == ["TokenCompleted"] * 5

    play(fan(), scenario, ENDED)


@workflow("child")
async def child(event: WorkflowEvent[dict[str, Any]], step: Step) -> dict[str, Any]:
    if event.payload.get("fails"):
        raise ValueError("no")
    return {"n": 1}


def calling(**inputs: str) -> dict[str, Any]:
    nodes = [node("start"), {"ref": "call", "subworkflow": "child", "inputMapping": inputs}]
    return graph(nodes, [edge("start", "call")])


@pytest.mark.parametrize(
    ("definition", "ended", "status"),
    [
        (calling(), "workflow.completed", "completed"),
        (calling(fails="true"), "workflow.failed", "failed"),
    ],
)
def test_a_child_workflow_has_events_of_its_own(
    definition: dict[str, Any], ended: str, status: str
):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        history = await instance.history()
        (dispatched,) = history.events_by_name["subworkflow.dispatched"]
        assert (dispatched.node_ref, dispatched.payload["workflow_name"]) == ("call", "child")
        (completed,) = history.events_by_name["subworkflow.completed"]
        assert (completed.node_ref, completed.payload["status"]) == ("call", status)
        # Only that of the first node: a child is not a task.
        assert len(history.events_by_name["task.completed"]) == 1
        assert not history.events_by_name["task.failed"]
        assert len(history.events_by_name[ended]) == 1
        of_child = await test.get("child", dispatched.payload["instance_id"]).history()
        assert not names(of_child)

    play(definition, scenario, {}, child)


def test_every_failed_attempt_is_an_event_and_a_retry_of_the_run_starts_another_workflow():
    definition = fan()
    definition["nodes"][1]["retries"] = {"limit": 1, "delay": "1 second"}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("2 seconds")
        history = await instance.history()
        failed = history.events_by_name["task.failed"]
        assert [event.payload["retry_at"] is None for event in failed] == [False, True]
        assert failed[0].payload["error"] == {"name": "Flaky", "message": "item 7"}
        (ended,) = history.events_by_name["workflow.failed"]
        assert ended.payload == {
            "status": "errored",
            "error": {"name": "Flaky", "message": "item 7"},
        }
        await instance.retry()
        await test.run_until_idle()
        again = await instance.history()
        (started,) = again.events_by_name["workflow.started"]
        assert (started.run_number, started.payload["is_retry"]) == (1, True)
        assert names(again)["workflow.completed"] == 1
        assert names(again)["task.dispatched"] == 2

    play(definition, scenario, {"items": [{"n": 7, "fails": 2}]})


def test_a_run_that_is_terminated_has_failed():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.terminate("enough")
        (ended,) = (await instance.history()).events_by_name["workflow.failed"]
        error = {"name": "Terminated", "message": "the instance was terminated: enough"}
        assert ended.payload == {"status": "terminated", "error": error}

    play(fan(), scenario, {"items": [{"n": 1, "takes": "1 hour"}]})
