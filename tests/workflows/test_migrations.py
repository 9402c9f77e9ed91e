"""Moving a running instance to another definition of its graph, in the harness."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from headwater import DefinitionInvalid, Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.failures import CommandRefusedError
from headwater.schemas.graph_answers import MigrationPlan
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import (
    Definition,
    edge,
    fan,
    graph,
    node,
    outcome,
    play,
    statuses,
)

SLOW = {"n": 5, "takes": "10 seconds"}


async def refusal_of(
    instance: Instance, to: Definition, renames: dict[str, str] | None = None
) -> str:
    with pytest.raises(CommandRefusedError) as caught:
        await instance.migrate(to, map=renames)
    assert caught.value.code == "MIGRATION_REFUSED"
    return str(caught.value)


def renamed(definition: Definition, **names: str) -> Definition:
    """The definition with other names of nodes; the transitions keep theirs."""
    changed = copy.deepcopy(definition)
    for item in changed["nodes"]:
        item["ref"] = names.get(item["ref"], item["ref"])
    for way in changed["transitions"]:
        for end in ("fromNodeRef", "toNodeRef"):
            way[end] = names.get(way[end], way[end])
    changed["initialNodeRef"] = names.get(changed["initialNodeRef"], changed["initialNodeRef"])
    return changed


def shown(plan: MigrationPlan) -> list[tuple[str, str | None, str | None]]:
    return [(token.node_ref, token.to_node_ref, token.problem) for token in plan.tokens]


def test_a_run_in_the_middle_of_a_fork_continues_on_the_new_definition():
    after = renamed(fan(), work="labour", end="finish")
    after["nodes"].append(node("last"))
    after["transitions"].append(edge("finish", "last"))
    after["outputMapping"] = {"total": "size(state.all)", "all": "state.all"}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        names = {"work": "labour", "end": "finish"}
        plan = await instance.migrate(after, map=names, dry_run=True)
        assert plan.possible
        assert shown(plan) == [("work", "labour", None), ("end", "finish", None)]
        assert [token.node_ref for token in (await instance.introspect_tokens()).tokens] == [
            "work",
            "end",
        ]
        await instance.migrate(after, map=names)
        assert [token.node_ref for token in (await instance.introspect_tokens()).tokens] == [
            "labour",
            "finish",
        ]
        await test.advance("20 seconds")
        assert await outcome(instance) == ("complete", {"total": 2, "all": [2, 10]}, None)
        tokens = (await instance.history()).tokens
        assert [token.node_ref for token in tokens] == [
            *("start", "work", "labour", "finish", "finish", "finish", "last"),
        ]
        assert all([decided.same async for decided in instance.trace()])

    play(fan(), scenario, {"items": [1, SLOW]})


def test_a_run_that_moved_is_restored_and_retried_on_its_new_definition():
    after = fan()
    after["nodes"][1]["retries"] = {"limit": 3, "delay": "1 second"}
    after["outputMapping"] = {"moved": "true"}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.migrate(after)
        await test.crash()
        await test.advance("1 hour")
        assert (await outcome(instance))[0] == "errored"
        await instance.retry()
        await test.advance("1 hour")
        assert await outcome(instance) == ("complete", {"moved": True}, None)

    play(fan(), scenario, {"items": [{"n": 1, "takes": "10 seconds", "fails": 5}]})


def test_a_definition_may_be_as_large_as_one_that_is_deployed():
    more = [node(f"n{number}", outputMapping={f"state.n{number}": "1"}) for number in range(50)]
    after = fan()
    after["nodes"] += more
    after["transitions"] += [edge("end", item["ref"]) for item in more]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.migrate(after)
        await test.advance("20 seconds")
        assert len(await statuses(instance)) == 6 + 50

    play(fan(), scenario, {"items": [1, SLOW]})


def test_deadlines_of_joins_stay_and_fire_under_the_new_name():
    before = fan(timeoutMs=60_000, onTimeout="proceed_with_available")

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("50 seconds")
        await instance.migrate(renamed(before, end="finish"), map={"end": "finish"})
        await test.advance("11 seconds")
        assert await outcome(instance) == ("complete", {"all": [2]}, None)

    play(before, scenario, {"items": [1, {"n": 2, "takes": "1 hour"}]})


def _without_end(after: Definition) -> None:
    after["nodes"][1:] = [node("start2"), *after["nodes"][1:]]
    after["nodes"] = [item for item in after["nodes"] if item["ref"] != "end"]
    after["transitions"].pop()


def _other_strategy(after: Definition) -> None:
    after["transitions"][1]["synchronization"]["strategy"] = "any"


def _other_transition(after: Definition) -> None:
    after["transitions"][1]["ref"] = "another"


def _other_task(after: Definition) -> None:
    after["nodes"][1]["task"] = "noop"


def _other_group(after: Definition) -> None:
    after["transitions"][0]["siblingGroup"] = "others"
    after["transitions"][1]["synchronization"]["siblingGroup"] = "others"


def _other_item(after: Definition) -> None:
    after["transitions"][0]["foreach"]["itemVar"] = "thing"
    after["nodes"][1]["inputMapping"] = {"item": "thing", "index": "_branch.index"}


def _other_input(after: Definition) -> None:
    after["inputSchema"] = {"required": ["missing"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_end, "at 'end': there is no node 'end'"),
        (_other_strategy, "whose strategy is 'all', and at 'end' it is 'any'"),
        (_other_transition, "there is no transition 'work-end' by which it arrived"),
        (_other_task, "it has begun the task 'work', and 'work' runs the task 'noop'"),
        (_other_group, "the fork of group 'group' has begun, and the new definition has none"),
        (_other_item, "has begun with the items 'item', which it lacks now"),
        (_other_input, "input"),
    ],
)
def test_a_run_without_a_place_for_a_token_stays_where_it_is(
    change: Callable[[Definition], None], message: str
):
    after = fan()
    change(after)

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        plan = await instance.migrate(after, dry_run=True)
        assert not plan.possible
        assert message in await refusal_of(instance, after)
        await test.advance("20 seconds")
        assert await outcome(instance) == ("complete", {"all": [2, 10]}, None)

    play(fan(), scenario, {"items": [1, SLOW]})


def test_a_token_in_a_fork_cannot_be_outside_of_it():
    after = fan()
    after["nodes"].append(node("aside", "work"))
    after["transitions"].append(edge("end", "aside"))

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        refused = await refusal_of(instance, after, renames={"work": "aside"})
        assert "it is in 'group', where no path leads to 'aside'" in refused
        unknown = await refusal_of(instance, after, renames={"nothing": "aside", "work": "missing"})
        assert "the run's definition has no node 'nothing'" in unknown
        assert "the new definition has no node 'missing'" in unknown

    play(fan(), scenario, {"items": [SLOW]})


@workflow("child")
async def child(event: WorkflowEvent[Any], step: Step) -> int:
    await step.sleep("wait", "1 minute")
    return 7


def test_a_child_that_has_begun_needs_a_node_that_starts_the_same():
    call = {"ref": "call", "subworkflow": "child", "outputMapping": {"state.n": "result"}}
    before = graph([call], [], outputMapping={"n": "state.n"})
    after = graph([{**call, "ref": "ask"}], [], outputMapping={"m": "state.n"})
    other = graph([node("call")], [])

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        refused = await refusal_of(instance, other)
        assert "it has begun the workflow 'child', and 'call' runs the task 'noop'" in refused
        timed = {**call, "ref": "ask", "timeoutMs": 600_000}
        sooner = await refusal_of(instance, graph([timed], []), renames={"call": "ask"})
        assert "'ask' runs the workflow 'child' with 600000 ms" in sooner
        await instance.migrate(after, map={"call": "ask"})
        await test.advance("2 minutes")
        assert await outcome(instance) == ("complete", {"m": 7}, None)
        events = (await instance.history()).events_by_name
        assert [event.node_ref for event in events["subworkflow.completed"]] == ["ask"]

    play(before, scenario, None, child)


def test_what_has_not_begun_may_do_something_else():
    begun = {"n": 1, "takes": "1 hour"}
    before = graph([node("a", "work", inputMapping={"item": "input"})], [])
    after = graph(
        [*before["nodes"], node("b", outputMapping={"state.b": "true"})],
        [edge("a", "b")],
        outputMapping={"b": "state.b"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await instance.migrate(after)
        await instance.resume()
        await test.advance("2 hours")
        assert await outcome(instance) == ("complete", {"b": True}, None)
        with pytest.raises(CommandRefusedError) as caught:
            await instance.migrate(after)
        assert caught.value.code == "INSTANCE_TERMINAL"

    play(before, scenario, begun)


def test_what_a_failed_run_begins_again_may_differ():
    fails = '{"n": 1, "takes": "1 second", "final": true}'
    broken = node("a", "work", inputMapping={"item": fails})
    child_node = {"ref": "b", "subworkflow": "child"}
    nodes = [node("s"), broken, child_node, node("end", join="all"), node("c")]
    ways = [edge("s", "a"), edge("s", "b"), edge("s", "c")]
    ways += [edge(start, "end") for start in ("a", "b", "c")]
    before = graph(nodes, ways)
    # `a` is another task, `b` waits for a time, and nothing leads from `b` to `end`.
    after = graph(
        [node("s"), node("d"), {"ref": "b", "wait": {"durationMs": 1_000}}, *nodes[3:]],
        [edge("s", "d"), edge("s", "b"), edge("s", "c"), edge("d", "end"), edge("c", "end")],
        outputMapping={"moved": "true"},
    )
    other = copy.deepcopy(after)
    other["transitions"] = [way for way in other["transitions"] if way["ref"] != "c-end"]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("2 seconds")
        assert (await outcome(instance))[0] == "errored"
        refused = await refusal_of(instance, other, renames={"a": "d"})
        assert "keep join all and 'c-end'" in refused
        plan = await instance.migrate(after, map={"a": "d"}, dry_run=True)
        assert shown(plan) == [("a", "d", None), ("b", "b", None), ("end", "end", None)]
        await instance.migrate(after, map={"a": "d"})
        await test.crash()
        await instance.retry()
        await test.advance("2 seconds")
        assert await outcome(instance) == ("complete", {"moved": True}, None)
        assert all([decided.same async for decided in instance.trace()])

    play(before, scenario, None, child)


def test_a_workflow_of_code_and_a_contradictory_definition_are_refused():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        other = await test.create("child", id="c")
        await test.run_until_idle()
        with pytest.raises(CommandRefusedError) as caught:
            await other.migrate(graph([node("a")], []))
        assert caught.value.code == "NOT_A_GRAPH"
        with pytest.raises(DefinitionInvalid):
            await instance.migrate(graph([node("a"), node("a")], []))
        named = await refusal_of(instance, {**graph([node("a")], []), "name": "other"})
        assert "the definition is that of 'other'" in named

    wait = {"n": 1, "takes": "1 hour"}
    definition = graph([node("a", "work", inputMapping={"item": "input"})], [])
    play(definition, scenario, wait, child)


def test_waits_and_joined_transitions_move_with_their_nodes():
    nodes = [
        node("start"),
        {"ref": "cool", "wait": {"durationMs": 60_000}},
        {"ref": "ask", "event": {"type": "go", "timeoutMs": 600_000}},
        node("end", join="all"),
        node("quick"),
    ]
    ways = [edge("start", to) for to in ("cool", "ask", "quick")]
    ways += [edge(start, "end") for start in ("cool", "ask", "quick")]
    before = graph(nodes, ways)
    names = {"cool": "rest", "ask": "approve", "end": "finish"}
    after = {**renamed(before, **names), "outputMapping": {"moved": "true"}}
    longer = copy.deepcopy(after)
    longer["nodes"][1]["wait"]["durationMs"] = 1
    longer["nodes"][3].pop("join")
    fewer = copy.deepcopy(after)
    fewer["transitions"] = [way for way in fewer["transitions"] if way["ref"] != "ask-end"]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        refused = await refusal_of(instance, longer, renames=names)
        assert "it has begun the wait 60000 ms, and 'rest' runs the wait 1 ms" in refused
        assert "it waits for the other transitions to its node, and 'finish' does not" in refused
        refused = await refusal_of(instance, fewer, renames=names)
        assert "it waits for the other transitions to its node, and those to 'finish'" in refused
        await instance.migrate(after, map=names)
        await test.crash()
        await test.advance("1 minute")
        await instance.send_event("go")
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"moved": True}, None)
        events = (await instance.history()).events_by_name
        waited = [event.node_ref for event in events["token.waiting"]]
        assert sorted(waited) == ["ask", "cool", "end", "finish", "finish"]
        assert [event.node_ref for event in events["token.completed"]].count("finish") == 4
        assert all([decided.same async for decided in instance.trace()])

    play(before, scenario)
