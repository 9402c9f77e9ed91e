"""What somebody sends may take any time to evaluate: it fails by itself, and nothing else does."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from headwater import Concurrency, Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.failures import INVALID_PARAMS
from headwater.schemas.history import StartRun
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, graph, node, outcome, play

SEARCHED = {"asked": list(range(60_000)), "known": [-1] * 60_000}
GROWN = {"template": "x" * 300_000, "name": "x", "value": "y" * 300_000}
AB = [node("a"), node("b")]
SEARCH = "input.asked.all(x, !(x in input.known))"
GROW = "input.template.replace(input.name, input.value)"
LIMITS = ("takes at most 0.25 s of processor time", "takes at most 256 MiB of memory")


@pytest.mark.parametrize(
    ("params", "nodes", "transition", "output"),
    [
        (SEARCHED, [node("a", inputMapping={"all": SEARCH}), node("b")], {}, {}),
        (GROWN, [node("a", inputMapping={"text": GROW}), node("b")], {}, {}),
        (GROWN, [node("a", outputMapping={"state.text": GROW}), node("b")], {}, {}),
        (SEARCHED, AB, {}, {"all": SEARCH}),
        (SEARCHED, AB, {"condition": SEARCH}, {}),
        (SEARCHED, AB, {"foreach": {"collection": f"[{SEARCH}]", "itemVar": "x"}}, {}),
    ],
)
def test_an_expression_that_takes_too_long_fails_its_run_and_no_other(
    params: dict[str, Any],
    nodes: list[dict[str, Any]],
    transition: dict[str, Any],
    output: dict[str, str],
):
    definition = graph(nodes, [edge("a", "b", **transition)], outputMapping=output)

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert status == "errored"
        assert error is not None
        assert error[0] == "ExpressionError"
        assert any(limit in error[1] for limit in LIMITS)
        small = {"asked": [1], "known": [2], **GROWN, "name": "z"}
        other = await test.create("g", params=small)
        await test.run_until_idle()
        assert (await other.status()).status == "complete"

    play(definition, scenario, params)


@dataclasses.dataclass
class Order:
    skus: list[str]


@workflow("order")
async def order(event: WorkflowEvent[Order], step: Step) -> int:
    return await step.do("count", lambda: len(event.payload.skus))


def test_params_with_half_a_million_errors_are_refused_by_one():
    async def scenario() -> None:
        async with WorkflowTest([order]) as test:
            params = '{"skus":[' + ",".join(["1"] * 520_000) + "]}"
            reply = await test.send("order", "x", StartRun(params))
            assert reply.code == INVALID_PARAMS
            assert 'skus[0]: 1 is not of type "string"; others may follow' in reply.message
            instance = await test.create(order, params=Order(["tea"]))
            assert await instance.result() == 1

    asyncio.run(scenario())


@workflow("one-by-one", concurrency=Concurrency(1, key=f"size({GROW.replace('input', 'params')})"))
async def one_by_one(event: WorkflowEvent[Any], step: Step) -> None: ...


def test_the_key_of_a_limit_that_takes_too_long_is_a_refusal():
    async def scenario() -> None:
        async with WorkflowTest([one_by_one]) as test:
            reply = await test.send("one-by-one", "x", StartRun(json.dumps(GROWN)))
            assert reply.code == INVALID_PARAMS
            assert any(limit in reply.message for limit in LIMITS)

    asyncio.run(scenario())
