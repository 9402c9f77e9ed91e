"""Looking into graphs in the harness: their tokens, what would follow, why they wait, and how."""

from collections.abc import Awaitable
from typing import Any

import pytest

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.failures import CommandRefusedError, InstanceTerminalError
from headwater.schemas.graph_answers import TracedDecision
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, fan, graph, node, play

SLOW = {"n": 5, "takes": "10 seconds"}
FLAKY = {"n": 7, "fails": 1}


def waiting(**joined: object) -> dict[str, Any]:
    """A fan-out of which one branch is done, one is tried again, one takes long, one ends early."""
    definition = fan(**joined)
    definition["nodes"][1] |= {"retries": {"limit": 1, "delay": "5 seconds"}}
    definition["nodes"].append(node("aside"))
    definition["transitions"].append(
        edge("work", "aside", priority=-1, condition="_branch.index == 3")
    )
    return definition


ITEMS = {"items": [1, FLAKY, SLOW, 4]}


async def traced(instance: Instance, first: int = 0) -> list[TracedDecision]:
    return [item async for item in instance.trace(first)]


async def refusal_of(asked: Awaitable[object]) -> CommandRefusedError:
    with pytest.raises(CommandRefusedError) as caught:
        await asked
    return caught.value


def test_the_tokens_that_live_say_what_they_wait_for():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        result = await instance.introspect_tokens()
        said = [(token.node_ref, token.status, token.waits_for.what) for token in result.tokens]
        assert said == [
            ("work", "pending", "retry"),
            ("work", "dispatched", "task"),
            ("end", "waiting_for_siblings", "siblings"),
        ]
        retried, slow, _ = result.tokens
        assert retried.waits_for.until is not None
        assert (retried.attempts, retried.branch_index, slow.branch_index) == (1, 1, 2)
        assert (result.total, result.status, result.cursor) == (3, "active", None)

    play(waiting(), scenario, ITEMS)


def test_a_run_is_drawn_with_its_tokens_as_it_is_and_as_it_was():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        text = await instance.draw("mermaid")
        assert 'n1["work<br/>2 completed, 1 pending, 1 dispatched"]' in text
        assert 'n2["end<br/>noop<br/>1 waiting for siblings"]' in text
        before = await instance.draw("mermaid", at=2)
        assert "waiting" not in before
        assert 'n0["start<br/>noop<br/>1 pending"]' in before
        assert '<g class="live">' in await instance.draw()
        refused = await refusal_of(instance.draw(at=0))
        assert "expected 1 or more" in str(refused)

    play(waiting(), scenario, ITEMS)


def test_an_earlier_run_is_looked_into_as_it_was_when_the_next_began():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        before = await instance.introspect_tokens()
        explained = await instance.explain()
        drawn = await instance.draw("mermaid", at=2)
        reported = await traced(instance)
        await instance.restart()
        again = await instance.introspect_tokens()
        assert (again.run_number, again.total) == (1, 1)
        earlier = instance.in_run(0)
        assert await earlier.introspect_tokens() == before
        assert await earlier.explain() == explained
        assert await earlier.draw("mermaid", at=2) == drawn
        assert [item async for item in earlier.trace()] == reported
        with pytest.raises(CommandRefusedError, match="expected a run number of 0 to 1, found 2"):
            await instance.in_run(2).explain()

    play(waiting(), scenario, ITEMS)


def test_a_join_that_waits_is_explained():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        result = await instance.explain()
        (join,) = result.joins
        assert [item.branch_index for item in join.arrived] == [0]
        missing = [(item.branch_index, item.why, item.node_ref) for item in join.missing]
        assert missing == [(1, "retry", "work"), (2, "running", "work"), (3, "elsewhere", "aside")]
        assert join.missing_by == {"retry": 1, "running": 1, "elsewhere": 1}
        retried = join.missing[0]
        assert (retried.attempts, retried.error and retried.error.message) == (1, "item 7")
        assert result.waiting_for == {"retry": 1, "task": 1, "siblings": 1}
        assert result.says == [
            "g/i (run 0) is active with 3 tokens, as of sequence 17 (2026-01-01T00:00:00.000Z).",
            "At 'end' 1 branch of 4 of the group 'group' has arrived (0); it continues when no "
            "other branch can arrive.",
            "Branch 1 waits until 2026-01-01T00:00:05.000Z to try 'work' again: attempt 1 failed "
            "with Flaky: item 7.",
            "Branch 2 runs 'work' (token 3).",
            "Branch 3 has ended at 'aside' (completed) and cannot arrive.",
            "At 2026-01-01T00:00:20.000Z, 20000 ms after the first arrival at 'end', the join "
            "continues with the branches that arrived.",
        ]

    timeout = {"timeoutMs": 20_000, "onTimeout": "proceed_with_available"}
    play(waiting(**timeout), scenario, ITEMS)


def test_what_would_follow_changes_nothing_and_is_what_follows():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        before = await instance.introspect_tokens()
        slow = before.tokens[1]
        result = await instance.simulate_routing(slow.id, output={"n": 10})
        assert [(fire.transition_ref, fire.tokens) for fire in result.fires] == [("work-end", 1)]
        types = [decision["type"] for decision in result.decisions]
        assert types == [
            *("COMPLETE_TOKEN", "APPLY_BRANCH_OUTPUT", "CREATE_TOKEN", "MARK_WAITING"),
        ]
        assert "decision.routing.start" in [item["type"] for item in result.trace]
        assert (result.would_be, result.token.id) == ("waiting", slow.id)
        assert await instance.introspect_tokens() == before
        await test.advance("10 seconds")
        assert (await instance.status()).status == "complete"

    play(waiting(), scenario, ITEMS)


def test_the_last_arrival_would_go_on_and_end_the_run():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        slow = (await instance.introspect_tokens()).tokens[0]
        routed = await instance.simulate_routing(slow.id, output={"n": 1})
        assert routed.would_be == "active"
        joined = await instance.simulate_synchronization(slow.id, "work-end")
        assert (joined.decision, joined.strategy) == ("ACTIVATE_FAN_IN", "all")
        counts = joined.counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.terminal) == (2, 2, 2)
        here = (await instance.introspect_tokens()).tokens[1]
        assert here.status == "waiting_for_siblings"
        again = await instance.simulate_synchronization(here.id, "work-end")
        assert (again.decision, again.counts and again.counts.completed) == ("MARK_WAITING", 1)

    play(fan(), scenario, {"items": [SLOW, 1]})


def test_where_a_token_would_go_from_a_node_where_none_is():
    definition = graph(
        [node("a", "work", inputMapping={"item": "input"}), node("b"), node("c")],
        [edge("a", "b", condition="input.n > 9"), edge("a", "c", priority=1)],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        result = await instance.simulate_routing(node="a")
        assert [fire.to_node_ref for fire in result.fires] == ["c"]
        ending = await instance.simulate_routing(node="b")
        assert (ending.fires, ending.token.id) == ([], "1")

    play(definition, scenario, SLOW)


def test_an_output_that_breaks_an_expression_would_fail_the_run():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        result = await instance.simulate_routing(node="work", output=None)
        assert result.would_be == "errored"
        assert result.error is not None
        assert "result.n" in result.error.message
        assert result.decisions[-1]["type"] == "FAIL_WORKFLOW"

    play(fan(), scenario, {"items": [SLOW]})


def test_an_output_with_which_a_run_could_not_go_on_is_traced_when_it_has_come():
    definition = fan()
    definition["nodes"][2] = node("end", outputMapping={"state.n": "1 / input.zero"})

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        made_up = await instance.simulate_routing(node="end", output={}, at=1)
        assert (made_up.would_be, made_up.fires) == ("errored", [])
        await test.run_until_idle()
        assert (await instance.status()).status == "errored"
        last = (await traced(instance))[-1]
        assert last.same
        assert last.decisions[-1]["type"] == "FAIL_WORKFLOW"
        assert last.events[0] == "TokenFailed"

    play(definition, scenario, {"items": [1], "zero": 0})


def test_a_job_of_workers_outside_says_who_has_it_or_that_nobody_has():
    definition = graph([node("a", "out", external=True)], [])

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        (token,) = (await instance.introspect_tokens()).tokens
        assert token.waits_for.what == "worker"
        assert "waits at 'a' for a worker that takes 'out'" in (await instance.explain()).says[1]

    play(definition, scenario)


def test_every_sequence_of_the_past_has_its_state():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("20 seconds")
        end = await instance.explain()
        assert end.says == [
            f"g/i (run 0) has ended, as of sequence {end.sequence} (2026-01-01T00:00:10.000Z): "
            "complete."
        ]
        assert (end.joins, (await instance.introspect_tokens()).tokens) == ([], [])
        tokens = []
        for at in range(end.sequence + 1):
            result = await instance.introspect_tokens(at)
            assert result.sequence == at
            tokens.append({token.id for token in result.tokens})
            explained = await instance.explain(at)
            assert sum(explained.waiting_for.values()) == result.total
        assert tokens[0] == tokens[-1] == set()
        # Amid a decision: all have arrived, and have not met yet.
        at = max(at for at, live in enumerate(tokens) if len(live) > 1)
        assert {token.status for token in (await instance.introspect_tokens(at)).tokens} == {
            "waiting_for_siblings"
        }

    play(waiting(), scenario, ITEMS)


def test_what_cannot_be_looked_at_is_told():
    @workflow("code")
    async def code(event: WorkflowEvent[Any], step: Step) -> None:
        await step.sleep("long", "1 hour")

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        other = await test.create("code", id="c")
        assert (await refusal_of(other.explain())).code == "NOT_A_GRAPH"
        beyond = await refusal_of(instance.introspect_tokens(999))
        assert (beyond.code, "expected 0 to" in beyond.detail) == ("SEQUENCE_NOT_FOUND", True)
        removed = await refusal_of(instance.simulate_routing("0"))
        assert (removed.code, "it is completed" in removed.detail) == ("TOKEN_NOT_FOUND", True)
        assert (await refusal_of(instance.simulate_routing("x"))).code == "TOKEN_NOT_FOUND"
        assert (await refusal_of(instance.simulate_routing(node="x"))).code == "NODE_NOT_FOUND"
        way = await refusal_of(instance.simulate_synchronization("1", "start-work"))
        assert (way.code, "work-end" in way.detail) == ("TRANSITION_NOT_FOUND", True)
        with pytest.raises(ValueError, match="a token or a node"):
            await instance.simulate_routing()
        await instance.terminate()
        with pytest.raises(InstanceTerminalError, match="earlier sequence"):
            await instance.simulate_routing(node="work")

    play(fan(), scenario, {"items": [SLOW, 1]}, code)


def test_a_retry_is_looked_into_with_what_it_has_kept():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("1 second")
        assert (await instance.status()).status == "errored"
        assert (await instance.introspect_tokens()).tokens == []
        await instance.retry()
        result = await instance.introspect_tokens(0)
        assert [token.status for token in result.tokens] == ["pending", "waiting_for_siblings"]
        assert result.run_number == 1
        await test.run_until_idle()
        assert all(item.same for item in await traced(instance))

    play(fan(), scenario, {"items": [FLAKY | {"takes": "1 second"}, 1]})


def test_each_decision_is_made_again_as_it_was_made():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("20 seconds")
        decided = await traced(instance)
        assert all(item.same for item in decided)
        numbers = [(item.sequence, item.last_sequence) for item in decided]
        assert [first for first, _ in numbers] == [1, *(last + 1 for _, last in numbers[:-1])]
        said = {trace["type"] for item in decided for trace in item.trace}
        assert said >= {
            "decision.routing.start",
            "decision.sync.check_condition",
            "operation.context.field_set",
            "operation.tokens.status_updated",
            "dispatch.batch.complete",
        }
        later = await traced(instance, numbers[3][0])
        assert later == decided[3:]

    play(waiting(timeoutMs=8_000, onTimeout="proceed_with_available"), scenario, ITEMS)
