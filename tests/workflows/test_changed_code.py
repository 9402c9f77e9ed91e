"""Code that changed under a running instance: `step.removed`, strict mode, and divergence."""

import re

import pytest

from headwater import Break, Continue, Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.kinds import OLD, invoice
from tests.workflows.running import (
    Calls,
    Deployed,
    begin,
    entry_at,
    error_of,
    keys_of,
    output_of,
    run,
    state_of,
)

KINDS = pytest.mark.parametrize("kind", OLD)


async def change(test: WorkflowTest, code: Deployed) -> object:
    """Run the first version into its gap, deploy the second, and run that."""
    instance = await test.create("order", id="i-1")
    await instance.send_event("go")
    await test.run_until_idle()
    await test.advance("1 minute")
    assert await state_of(instance) == "waiting"
    await test.crash()
    code.version = 2
    await test.advance("1 hour")
    return instance


@KINDS
def test_removed_stands_where_an_entry_of_its_kind_was(kind: str):
    code = Deployed()

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> str:
        if code.version == 1:
            await OLD[kind][0](step)
        else:
            await step.removed("old", kind=kind)
        await step.sleep("gap", "1 hour")
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await change(test, code)) == "done"

    run(scenario, order, invoice)


@KINDS
def test_removed_of_the_wrong_kind_diverges(kind: str):
    code = Deployed()
    wrong = "sleep" if kind != "sleep" else "step"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        if code.version == 1:
            await OLD[kind][0](step)
        else:
            await step.removed("old", kind=wrong)
        await step.sleep("gap", "1 hour")
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        error = await error_of(await change(test, code))
        assert error.name == "HistoryDivergedError"
        assert re.search(rf"\b{OLD[kind][1]}\b", error.message), error.message
        assert "old" in error.message

    run(scenario, order, invoice)


@pytest.mark.parametrize(
    ("recorded", "requested"),
    [("step", "sleep"), ("sleep", "step"), ("message", "join"), ("loop", "race")],
)
def test_a_kind_that_differs_names_key_recorded_and_requested(recorded: str, requested: str):
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        entry = OLD[recorded if code.version == 1 else requested][0]
        await entry(step)
        await step.sleep("gap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await change(test, code)
        error = await error_of(instance)
        assert error.name == "HistoryDivergedError"
        assert re.search(r"\bold\b", error.message), error.message
        for kind in (recorded, requested):
            assert re.search(rf"\b{OLD[kind][1]}\b", error.message), error.message

    run(scenario, order)


def test_an_entry_that_changed_its_kind_keeps_its_record():
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        if code.version == 1:
            await step.do("old", lambda: 1)
        else:
            await step.sleep("old", "1 minute")
        await step.sleep("gap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await change(test, code)
        await error_of(instance)
        entry = await entry_at(instance, "old")
        assert (entry.type, entry.status, entry.result) == ("do", "completed", 1)
        assert await keys_of(instance) == ["old", "gap"]

    run(scenario, order)


def test_a_deeper_key_is_named_in_full():
    code = Deployed()

    async def branch(step: Step) -> None:
        if code.version == 1:
            await step.do("load", lambda: 1)
        else:
            await step.sleep("load", "1 minute")
        await step.sleep("gap", "1 hour")

    async def one_round(step: Step, state: dict) -> object:
        await step.join("fetch", user=branch)
        return Break(None)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.loop("pages", one_round, state={})

    async def scenario(test: WorkflowTest) -> None:
        error = await error_of(await change(test, code))
        assert "pages/~0/fetch/user/load" in error.message

    run(scenario, order)


def test_removed_leaves_a_mark_where_nothing_was():
    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> str:
        await step.removed("old", kind="step")
        await step.sleep("gap", "1 hour")
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await entry_at(instance, "old")).type == "removed"
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == "done"

    run(scenario, order)


def order_that_drops_a_step(code: Deployed, calls: Calls, *, strict: bool) -> object:
    @workflow("order", strict=strict)
    async def order(event: WorkflowEvent, step: Step) -> str:
        await step.checkpoint("before money")
        await step.do("kept", lambda: 1, rollback=lambda _: calls.names.append("undone"))
        if code.version == 1:
            await step.do("old", lambda: 1)
        await step.sleep("gap", "1 hour")
        return "done"

    return order


def test_an_entry_that_is_no_longer_visited_is_passed_over_by_default():
    code = Deployed()

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await change(test, code)) == "done"

    run(scenario, order_that_drops_a_step(code, Calls(), strict=False))


def test_strict_mode_reports_an_entry_that_is_no_longer_visited_and_rolls_nothing_back():
    code, calls = Deployed(), Calls()

    async def scenario(test: WorkflowTest) -> None:
        instance = await change(test, code)
        error = await error_of(instance)
        assert error.name == "HistoryDivergedError"
        assert re.search(r"\bold\b", error.message), error.message
        assert (await instance.status()).output is None
        assert calls.names == []

    run(scenario, order_that_drops_a_step(code, calls, strict=True))


def test_strict_mode_reports_a_renamed_step_instead_of_hiding_that_it_ran_again():
    code = Deployed()

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("charge" if code.version == 1 else "charge card", lambda: 1)
        await step.sleep("gap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        assert (await error_of(await change(test, code))).name == "HistoryDivergedError"

    run(scenario, order)


def test_a_step_may_be_added_and_earlier_results_are_kept():
    code, calls = Deployed(), Calls()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.do("first", calls.of("first", 1))
        added = None
        if code.version == 2:
            added = await step.do("added", calls.of("added", 2))
        await step.sleep("gap", "1 hour")
        return [first, added]

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await change(test, code)) == [1, 2]
        assert calls.names == ["first", "added"]

    run(scenario, order)


def test_strict_mode_does_not_mind_iterations_that_were_trimmed():
    async def turn(step: Step, state: dict) -> object:
        await step.do("work", lambda: None)
        await step.sleep("nap", "1 minute")
        return Break("done") if state["n"] == 6 else Continue({"n": state["n"] + 1})

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        options = {"commit_interval": 2, "history_every": 3, "history_keep": 1}
        return await step.loop("pages", turn, state={"n": 0}, **options)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(7):
            await test.crash()
            await test.advance("1 minute")
        assert await output_of(instance) == "done"

    run(scenario, order)


def test_strict_mode_does_not_mind_what_a_loser_did_not_finish():
    async def slow(step: Step) -> None:
        await step.do("booked", lambda: 1)
        await step.sleep("wait", "5 hours")

    async def quick(step: Step) -> str:
        await step.sleep("wait", "1 minute")
        return "quick"

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.race("fastest", slow=slow, quick=quick)
        await step.sleep("gap", "1 hour")
        return first.winner

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == "quick"

    run(scenario, order)


def test_in_strict_mode_the_time_need_not_be_asked_for_any_more():
    code = Deployed()

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> str:
        if code.version == 1:
            await step.now("begun")
        await step.sleep("nap", "1 hour")
        return "rested"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        code.version = 2
        await test.advance("1 hour")
        assert await output_of(instance) == "rested"

    run(scenario, order)
