"""What the pages about graphs state and no example of theirs shows."""

from headwater import WorkflowTest
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, fan, graph, node, outcome, play, statuses


def test_an_inner_loop_has_its_iterations_once_and_not_in_every_round_of_the_outer():
    definition = graph(
        [node("start"), node("inner"), node("outer")],
        [
            edge("start", "inner"),
            edge("inner", "inner", priority=1, loopConfig={"maxIterations": 2}),
            edge("inner", "outer", priority=2),
            edge("outer", "inner", loopConfig={"maxIterations": 2}),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "complete"
        assert len(await statuses(instance, "inner")) == 3 + 2
        assert len(await statuses(instance, "outer")) == 3

    play(definition, scenario)


def test_an_error_in_a_condition_is_not_followed():
    definition = graph(
        [node("start"), node("end")],
        [edge("start", "end", condition="1 / input.n > 0"), edge("start", "end", on="error")],
    )
    definition["transitions"][1]["ref"] = "error"

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "ExpressionError")
        assert error
        assert "1 / input.n > 0" in error[1]

    play(definition, scenario, {"n": 0})


def test_an_item_has_no_name_outside_of_its_fork():
    definition = fan()
    definition["nodes"][-1]["inputMapping"] = {"last": "item"}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "ExpressionError")

    play(definition, scenario, {"items": [1]})
