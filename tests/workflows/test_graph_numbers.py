"""Numbers and defaults that the contract of graphs names, as an author meets them."""

import asyncio
from typing import Any

import pytest

from headwater import Limits, WorkflowTest
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, graph, node, outcome, play, statuses


def test_an_event_is_awaited_for_24_hours_if_the_node_names_no_timeout():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("23 hours")
        await test.advance("59 minutes")
        assert await statuses(instance) == ["waiting_for_event"]
        await test.advance("61 seconds")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "EventTimeoutError")

    play(graph([{"ref": "a", "event": {"type": "go"}}], []), scenario)


def test_the_limits_of_a_run_are_those_of_the_contract():
    limits = Limits()
    assert (limits.max_tokens, limits.max_depth, limits.max_rounds) == (100_000, 32, 10_000)


def test_32_instances_are_nested():
    async def whole() -> None:
        definition = graph([{"ref": "a", "subworkflow": "g"}], [])
        async with WorkflowTest([definition]) as test:
            nested = [await test.create("g", id="i")]
            await test.run_until_idle()
            while (child := (await nested[-1].history()).tokens[0].child_instance_id) is not None:
                nested.append(test.get("g", child))
            assert len(nested) == 32

    asyncio.run(whole())


def with_target(parts: int) -> dict[str, Any]:
    target = ".".join(["state", *(f"p{number}" for number in range(parts - 1))])
    return graph([node("a", outputMapping={target: "1"})], [])


def test_a_target_has_32_parts_and_a_ref_128_characters_at_most():
    WorkflowTest([with_target(32)])
    with pytest.raises(ValueError, match="INVALID_TARGET"):
        WorkflowTest([with_target(33)])
    WorkflowTest([graph([node("a" * 128)], [])])
    with pytest.raises(ValueError, match="INVALID_TARGET"):
        WorkflowTest([graph([node("a" * 129)], [])])


def test_tokens_of_a_dead_end_end_and_nodes_run_once_for_each_token_by_default():
    definition = graph(
        [node("a"), node("b"), node("c"), node("d", outputMapping={"state.d": "true"})],
        [
            *(edge("a", "b"), edge("a", "c"), edge("b", "d"), edge("c", "d")),
            edge("d", "a", condition="false"),
        ],
        outputMapping={"d": "state.d"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"d": True}, None)
        assert await statuses(instance, "d") == ["completed", "completed"]

    play(definition, scenario)


def test_a_batch_has_100_instances_per_request_and_skips_ids_that_exist_or_repeat():
    async def whole() -> None:
        async with WorkflowTest([graph([node("a")], [])]) as test:
            await test.create("g", id="1")
            batch = [{"id": str(number)} for number in (1, 2, 2, *range(3, 205))]
            created = await test.create_batch("g", batch)
            assert sorted({int(instance.id) for instance in created}) == list(range(2, 205))

    asyncio.run(whole())
