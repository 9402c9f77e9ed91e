"""Values in graphs: numbers beyond 64 bits, null params, defaults and schemas of the state."""

import asyncio
from typing import Any

import pytest

from headwater import Step, Task, WorkflowEvent, WorkflowTest, task, workflow
from headwater.processors.graph.definition import DefinitionInvalid
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.graph import graph_of
from headwater.processors.runs.decisions import Facts, Rejection
from headwater.schemas.failures import CommandRefusedError
from headwater.schemas.history import SendEvent
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import Definition, edge, graph, node, outcome, play

WIDE = 2**64
READ = graph([node("a")], [], outputMapping={"x": "input.x", "ok": "input.?y.orValue(true)"})


def ends(definition: Definition, params: object = None, *tasks: Task) -> tuple[str, Any, Any]:
    """How a run ends: status, output, error."""
    answers: list[tuple[str, Any, Any]] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        answers.append(await outcome(instance))

    play(definition, scenario, params, tasks=tasks)
    return answers[0]


def test_null_params_are_an_object_without_fields():
    assert ends(READ) == ("complete", {"x": None, "ok": True}, None)
    assert ends(READ, {}) == ("complete", {"x": None, "ok": True}, None)
    whole = graph([node("a")], [], outputMapping={"all": "input", "has": "has(input.x.y)"})
    assert ends(whole) == ("complete", {"all": {}, "has": False}, None)


# -- integers beyond 64 bits


@workflow("code")
async def code(event: WorkflowEvent[Any], step: Step) -> object:
    return event.payload


@pytest.mark.parametrize("value", [WIDE, -(2**63) - 1, 10**30])
def test_params_with_a_wide_integer_are_refused_with_their_path(value: int):
    async def whole() -> None:
        async with WorkflowTest([READ, code]) as test:
            with pytest.raises(CommandRefusedError) as caught:
                await test.create("g", id="i", params={"a": [1, {"b": value}]})
            assert caught.value.code == "INVALID_PARAMS"
            assert "input.a[1].b" in str(caught.value)
            # Code takes any JSON.
            other = await test.create("code", id="c", params={"b": value})
            await test.run_until_idle()
            assert (await other.status()).output == {"b": value}

    asyncio.run(whole())


def test_integers_of_64_bits_are_numbers_like_others():
    params = {"x": 2**64 - 1, "y": -(2**63)}
    assert ends(READ, params) == ("complete", {"x": 2**64 - 1, "ok": -(2**63)}, None)
    sums = graph([node("a")], [], outputMapping={"s": "input.x - 1", "t": "input.x > 1.5"})
    assert ends(sums, params)[1] == {"s": 2**64 - 2, "t": True}


def test_an_event_with_a_wide_integer_is_refused_with_its_path():
    slow = graph([node("start", "slow")], [])

    @task("slow")
    async def wait(given: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return given

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        with pytest.raises(CommandRefusedError) as caught:
            await instance.send_event("paid", {"amount": WIDE})
        assert caught.value.code == "INVALID_PARAMS"
        assert "payload.amount" in str(caught.value)
        await instance.send_event("paid", {"amount": WIDE - 1})

    play(slow, scenario, tasks=[wait])


def test_an_event_that_creates_a_run_has_no_wide_integer():
    engine = GraphEngine([graph_of(READ)])
    facts = Facts("g", "i", 0, 0)
    wide = SendEvent("e-1", "paid", f'{{"amount": {WIDE}}}', start="{}")
    refused = engine.decide_command(None, wide, facts)
    assert isinstance(refused, Rejection)
    assert refused.code == "INVALID_PARAMS"
    assert "payload.amount" in refused.message
    begun = engine.decide_command(None, SendEvent("e-1", "paid", "1", start="{}"), facts)
    assert not isinstance(begun, Rejection)


def test_a_wide_integer_in_a_result_fails_its_node():
    @task("big")
    async def big(given: dict[str, Any]) -> dict[str, Any]:
        return {"rows": [WIDE]}

    definition = graph([node("a", "big")], [])
    status, _, error = ends(definition, None, big)
    assert status == "errored"
    assert error is not None
    assert error[0] == "IntegerRangeError"
    assert "result.rows[0]" in error[1]


def test_a_wide_integer_in_the_output_of_a_child_fails_its_node():
    answers: list[Any] = []

    async def whole() -> None:
        definition = graph([{"ref": "a", "subworkflow": "many"}], [])

        @workflow("many")
        async def many(event: WorkflowEvent[Any], step: Step) -> object:
            return {"n": WIDE}

        async with WorkflowTest([definition, many]) as test:
            instance = await test.create("g", id="i")
            await test.run_until_idle()
            answers.append(await outcome(instance))

    asyncio.run(whole())
    assert answers[0][2][0] == "IntegerRangeError"
    assert "result.n" in answers[0][2][1]


# -- the schema of the state


STATE = {
    "type": "object",
    "required": ["a", "b"],
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "object", "required": ["c"], "properties": {"c": {"type": "string"}}},
        "rounds": {"type": "integer", "default": 0},
        "totals": {"type": "object", "properties": {"tea": {"default": 1.5}}},
    },
}


def stateful(*mappings: dict[str, str], schema: dict[str, Any] = STATE) -> Definition:
    nodes = [node(f"n{index}", outputMapping=each) for index, each in enumerate(mappings)]
    ways = [edge(f"n{index}", f"n{index + 1}") for index in range(len(nodes) - 1)]
    return graph(nodes, ways, contextSchema=schema, outputMapping={"state": "state"})


def test_defaults_initialize_the_state():
    definition = stateful(
        {"state.a": "state.rounds + 1", "state.b.c": "'x'"},
        {"state.rounds": "state.rounds + 1"},
    )
    status, output, _ = ends(definition)
    assert (status, output["state"]) == (
        "complete",
        {"a": 1, "b": {"c": "x"}, "rounds": 1, "totals": {"tea": 1.5}},
    )


def test_required_fields_are_needed_at_the_end_alone():
    assert (
        ends(stateful({"state.a": "1"}, {"state.b": "{}"}, {"state.b.c": "'x'"}))[0] == "complete"
    )
    for mappings, missing in (
        ([{"state.a": "1"}], "b"),
        ([{"state.a": "1", "state.b": "{}"}], "c"),
        ([{}], "a"),
    ):
        status, _, error = ends(stateful(*mappings))
        assert status == "errored"
        assert error is not None
        assert error[0] == "ContextInvalidError"
        assert f'"{missing}" is a required property' in error[1]


def test_types_are_checked_at_every_change():
    status, _, error = ends(stateful({"state.a": "'text'"}, {"state.a": "1", "state.b.c": "'x'"}))
    assert (status, error and error[0]) == ("errored", "ContextInvalidError")
    assert error is not None
    assert error[1].startswith("state.a:")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"n": {"type": "integer", "default": "x"}}}, "expected defaults that meet"),
        ({"properties": {"a.b": {"default": 1}}}, "without dots"),
    ],
)
def test_defaults_that_cannot_be_are_refused(schema: dict[str, Any], message: str):
    with pytest.raises(DefinitionInvalid, match=message) as caught:
        graph_of(stateful({}, schema=schema))
    assert {problem.code for problem in caught.value.problems} == {"INVALID_DEFINITION"}


# -- order


def test_a_trace_repeats_iterations_over_objects():
    order = graph(
        [node("start", outputMapping={"state.k": "input.map(k, k)"}), node("each"), node("end")],
        [
            edge("start", "each", foreach={"collection": "input.map(k, k)", "itemVar": "x"}),
        ],
        outputMapping={"k": "input.filter(k, true)"},
    )
    params = {f"k{index}": index for index in (7, 2, 9, 4, 11, 1, 3, 5, 8, 10, 6, 0)}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await outcome(instance))[1] == {"k": sorted(params)}
        for _ in range(3):
            decisions = [decision async for decision in instance.trace()]
            assert decisions
            assert all(decision.same for decision in decisions)

    play(order, scenario, params)


def test_a_test_has_the_warnings_of_its_graphs():
    unreached = graph([node("a"), node("b")], [])
    (warning,) = WorkflowTest([unreached, code]).warnings["g"]
    assert (warning.code, warning.path) == ("UNREACHABLE_NODE", "nodes[1]")
    assert WorkflowTest([READ]).warnings == {}
