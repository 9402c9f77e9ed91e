"""Decisions are data: traces have all of them, and every one was carried out as it is shown."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.graph_answers import TracedDecision
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import Definition, edge, fan, graph, node, play


async def traced(instance: Instance) -> list[TracedDecision]:
    decided = [decision async for decision in instance.trace()]
    assert [decision.same for decision in decided] == [True] * len(decided)
    return decided


def decisions(decided: list[TracedDecision]) -> list[dict[str, Any]]:
    return [decision for traced in decided for decision in traced.decisions]


def of_type(decided: list[TracedDecision], kind: str) -> list[dict[str, Any]]:
    return [decision for decision in decisions(decided) if decision["type"] == kind]


def test_a_fork_is_decided_from_its_start_to_its_end():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        decided = await traced(instance)
        assert [decision["type"] for decision in decided[0].decisions] == [
            *("INITIALIZE_WORKFLOW", "CREATE_TOKEN", "DISPATCH_TOKEN"),
        ]
        assert [decision["type"] for decision in decided[1].decisions] == [
            *("COMPLETE_TOKEN", "CREATE_TOKEN", "CREATE_TOKEN", "DISPATCH_TOKEN", "DISPATCH_TOKEN"),
        ]
        dispatched = of_type(decided, "DISPATCH_TOKEN")
        assert [item["input"] for item in dispatched[1:3]] == [
            {"item": 1, "index": 0},
            {"item": 2, "index": 1},
        ]
        (waits,) = of_type(decided, "MARK_WAITING")
        assert waits["arrived_at"].endswith("Z")
        (activated,) = of_type(decided, "ACTIVATE_FAN_IN")
        assert len(of_type(decided, "COMPLETE_TOKENS")) == 1
        assert activated["node_ref"] == "end"
        assert decisions(decided)[-1]["type"] == "COMPLETE_WORKFLOW"

    play(fan(), scenario, {"items": [1, 2]})


@workflow("child")
async def child(event: WorkflowEvent[dict[str, Any]], step: Step) -> int:
    if event.payload.get("fails"):
        raise ValueError("no")
    await step.sleep("wait", "1 hour")
    return 7


def calling(mapped: dict[str, str], **more: object) -> Definition:
    return graph([{"ref": "call", "subworkflow": "child", "inputMapping": mapped, **more}], [])


@pytest.mark.parametrize(
    ("definition", "ended"),
    [
        (calling({}), ["RESUME_FROM_SUBWORKFLOW", "COMPLETE_WORKFLOW"]),
        (calling({"fails": "true"}), ["FAIL_FROM_SUBWORKFLOW", "FAIL_WORKFLOW"]),
        (calling({}, timeoutMs=60_000), ["TIMEOUT_SUBWORKFLOW", "FAIL_WORKFLOW"]),
    ],
)
def test_a_child_is_decided_like_everything_else(definition: Definition, ended: list[str]):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("2 hours")
        decided = await traced(instance)
        kinds = [decision["type"] for decision in decisions(decided)]
        assert kinds == [
            *("INITIALIZE_WORKFLOW", "CREATE_TOKEN", "MARK_WAITING_FOR_SUBWORKFLOW"),
            *ended,
        ]
        (waits,) = of_type(decided, "MARK_WAITING_FOR_SUBWORKFLOW")
        (token,) = (await instance.history()).tokens
        assert waits["subworkflow_run_id"] == token.child_instance_id
        for timed_out in of_type(decided, "TIMEOUT_SUBWORKFLOW"):
            assert timed_out["timeout_ms"] == timed_out["elapsed_ms"] == 60_000

    play(definition, scenario, None, child)


async def _cancelled(test: WorkflowTest, instance: Instance) -> None:
    await instance.cancel("enough")


async def _failed(test: WorkflowTest, instance: Instance) -> None:
    await test.advance("1 hour")


@pytest.mark.parametrize(
    ("end", "kinds"),
    [
        (_cancelled, ["CANCEL_TOKENS"]),
        (_failed, ["UPDATE_TOKEN_STATUS", "FAIL_WORKFLOW", "CANCEL_TOKENS"]),
    ],
)
def test_failures_and_cancellations_are_decisions(
    end: Callable[[WorkflowTest, Instance], Awaitable[None]], kinds: list[str]
):
    items = [{"n": 1, "takes": "30 minutes", "final": True}, {"n": 2, "takes": "2 hours"}]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await end(test, instance)
        decided = await traced(instance)
        assert [decision["type"] for decision in decided[-1].decisions] == kinds
        live = [token.id for token in (await instance.history()).tokens if token.reason]
        (cancelled,) = of_type(decided, "CANCEL_TOKENS")
        assert cancelled["token_ids"] == live

    play(fan(), scenario, {"items": items})


def test_a_retry_of_a_task_is_a_dispatch_with_the_input_of_before():
    definition = graph(
        [
            node(
                "a",
                "work",
                inputMapping={"item": "input"},
                retries={"limit": 1, "delay": "1 minute"},
            ),
            node("b"),
        ],
        [edge("a", "b")],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("2 minutes")
        first, second, _ = of_type(await traced(instance), "DISPATCH_TOKEN")
        assert (first["attempt"], first["input"]) == (1, {"item": {"n": 1, "fails": 1}})
        assert (second["attempt"], second["input"]) == (2, None)

    play(definition, scenario, {"n": 1, "fails": 1})
