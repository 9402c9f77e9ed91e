"""Code that changed beneath a join or a race that is over: found, and without effect otherwise."""

import asyncio
import re
from collections.abc import Callable

import pytest

from headwater import (
    Break,
    Continue,
    JoinError,
    RaceError,
    Step,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from tests.workflows.kinds import OLD, invoice, one_page, one_step
from tests.workflows.running import (
    Calls,
    Deployed,
    Instance,
    begin,
    entry_at,
    error_of,
    keys_of,
    output_of,
    run,
    state_of,
)

Branch = Callable[[Step], object]


async def quick(step: Step) -> str:
    await step.sleep("wait", "30 seconds")
    return "quick"


async def raises(step: Step) -> None:
    raise LookupError("sold out")


async def in_join(step: Step, branch: Branch) -> object:
    return (await step.join("held", changed=branch, other=quick))["other"]


async def in_winner(step: Step, branch: Branch) -> object:
    async def never(step: Step) -> None:
        await step.sleep("wait", "100 days")

    return (await step.race("held", changed=branch, other=never)).winner


async def in_loser(step: Step, branch: Branch) -> object:
    async def slow(step: Step) -> None:
        await branch(step)
        await step.sleep("wait", "100 days")

    return (await step.race("held", changed=slow, other=quick)).winner


async def in_failed_join(step: Step, branch: Branch) -> object:
    try:
        await step.join("held", changed=branch, other=raises)
    except JoinError as error:
        return sorted(error.errors)


async def in_failed_race(step: Step, branch: Branch) -> object:
    async def changed(step: Step) -> None:
        await branch(step)
        raise LookupError("sold out")

    try:
        await step.race("held", changed=changed, other=raises)
    except RaceError as error:
        return sorted(error.errors)


async def in_race_in_join(step: Step, branch: Branch) -> object:
    async def races(step: Step) -> object:
        return await in_loser(step, branch)

    return (await step.join("outer", races=races))["races"]


async def in_join_in_loser(step: Step, branch: Branch) -> object:
    async def joins(step: Step) -> object:
        return await in_join(step, branch)

    return await in_loser(step, joins)


async def in_unfinished_join_in_loser(step: Step, branch: Branch) -> object:
    async def joins(step: Step) -> None:
        async def slow(step: Step) -> None:
            await branch(step)
            await step.sleep("wait", "100 days")

        await step.join("inner", changed=slow)

    return await in_loser(step, joins)


#: Ways to hold a branch that has run to its end or is cancelled, and the key of what is in it.
HELD = {
    in_join: "held/changed/old",
    in_winner: "held/changed/old",
    in_loser: "held/changed/old",
    in_failed_join: "held/changed/old",
    in_failed_race: "held/changed/old",
    in_race_in_join: "outer/races/held/changed/old",
    in_join_in_loser: "held/changed/held/changed/old",
    in_unfinished_join_in_loser: "held/changed/inner/changed/old",
}
HOLDERS = pytest.mark.parametrize("holds", HELD, ids=lambda holds: holds.__name__)


def order_of(holds: Callable, branch: Branch, *, strict: bool = False) -> object:
    @workflow("order", strict=strict)
    async def order(event: WorkflowEvent, step: Step) -> object:
        result = await holds(step, branch)
        await step.sleep("gap", "30 minutes")
        # What was asked for by mistake has the time to show.
        await step.sleep("rest", "30 minutes")
        return result

    return order


async def change(test: WorkflowTest, code: Deployed) -> Instance:
    """Run the first version into its gap, deploy the second, and run that."""
    instance = await test.create("order", id="i-1")
    await instance.send_event("go")
    await test.run_until_idle()
    await test.advance("1 minute")
    assert await state_of(instance) == "waiting"
    assert "gap" in await keys_of(instance)
    await test.crash()
    code.version = 2
    await test.advance("1 hour")
    return instance


@HOLDERS
@pytest.mark.parametrize(("recorded", "requested"), [("step", "sleep"), ("sleep", "step")])
def test_a_kind_that_differs_names_key_recorded_requested_and_cause(
    holds: Callable, recorded: str, requested: str
):
    code = Deployed()

    async def branch(step: Step) -> None:
        await OLD[recorded if code.version == 1 else requested][0](step)

    async def scenario(test: WorkflowTest) -> None:
        error = await error_of(await change(test, code))
        assert error.name == "HistoryDivergedError"
        assert f"at {HELD[holds]}:" in error.message
        assert f"recorded {OLD[recorded][1]}, requested {OLD[requested][1]}" in error.message
        assert "usual cause" in error.message

    run(scenario, order_of(holds, branch))


@pytest.mark.parametrize("kind", OLD)
@HOLDERS
def test_removed_stands_where_an_entry_was(holds: Callable, kind: str):
    code = Deployed()

    async def branch(step: Step) -> None:
        if code.version == 1:
            await OLD[kind][0](step)
        else:
            await step.removed("old", kind=kind)

    async def scenario(test: WorkflowTest) -> None:
        await output_of(await change(test, code))

    run(scenario, order_of(holds, branch, strict=True), invoice)


@HOLDERS
@pytest.mark.parametrize("strict", [False, True])
def test_only_strict_mode_reports_an_entry_that_is_no_longer_visited(holds: Callable, strict: bool):
    code = Deployed()

    async def branch(step: Step) -> None:
        if code.version == 1:
            await step.do("old", lambda: 1)
        await step.do("kept", lambda: 1)

    async def scenario(test: WorkflowTest) -> None:
        instance = await change(test, code)
        if strict:
            error = await error_of(instance)
            assert error.name == "HistoryDivergedError"
            assert f"at {HELD[holds]}: recorded do, requested nothing" in error.message
        else:
            await output_of(instance)

    run(scenario, order_of(holds, branch, strict=strict))


@HOLDERS
def test_strict_mode_finds_everything_visited_that_the_code_still_has(holds: Callable):
    async def branch(step: Step) -> None:
        await step.now()
        await step.do("first", lambda: 1)
        await step.sleep("nap", "10 seconds")
        await step.join("inner", one=one_step, two=one_step)
        await step.loop("pages", one_page, state={})
        await step.do("last", lambda: 1)

    async def scenario(test: WorkflowTest) -> None:
        instance = await change(test, Deployed())
        await output_of(instance)

    run(scenario, order_of(holds, branch, strict=True))


@HOLDERS
def test_a_renamed_step_is_not_called_beneath_what_is_over(holds: Callable):
    code, calls = Deployed(), Calls()

    async def branch(step: Step) -> None:
        await step.do("charge" if code.version == 1 else "charge card", calls.of("charge"))
        await step.do("ship", calls.of("ship"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        keys = await keys_of(instance)
        ran = list(calls.names)
        await test.crash()
        code.version = 2
        await test.advance("1 hour")
        await output_of(instance)
        assert calls.names == ran
        assert await keys_of(instance) == [*keys, "rest"]

    run(scenario, order_of(holds, branch))


async def wins(step: Step) -> str:
    return "won"


async def asks_for_more(step: Step) -> None:
    await step.do("more", lambda: 1)
    await step.sleep("longer", "1 hour")
    await step.now()
    await step.wait_for_event("reply", type="reply")
    await step.run_workflow("bill", "invoice", id="inv-1")
    await step.join("both", one=one_step)
    await step.loop("pages", one_page, state={})


async def marks_more(step: Step) -> None:
    await step.checkpoint("before money")
    await step.removed("before that", kind="step")


async def never_ends(step: Step) -> None:
    async def turn(step: Step, state: dict) -> object:
        return Continue(state)

    await step.loop("spins", turn, state={})


async def swallows(step: Step) -> None:
    while True:
        try:
            await step.sleep("no record", "1 hour")
        except BaseException:  # noqa: BLE001 what careless authors write
            await step.sleep("nor of this", "1 hour")


async def exits(step: Step) -> None:
    raise SystemExit(3)


async def leaves_a_task(step: Step) -> None:
    asyncio.get_running_loop().create_task(step.do("more", lambda: 1))
    asyncio.get_running_loop().create_task(step.sleep("still more", "1 hour"))


CHANGED = (raises, wins, asks_for_more, marks_more, never_ends, swallows, exits, leaves_a_task)


@HOLDERS
@pytest.mark.parametrize("new", CHANGED)
def test_what_a_changed_branch_does_otherwise_changes_nothing(holds: Callable, new: Branch):
    code = Deployed()

    async def branch(step: Step) -> object:
        return await (one_step if code.version == 1 else new)(step)

    async def scenario(test: WorkflowTest) -> None:
        other = await begin(test, instance="i-2")
        await test.advance("2 hours")
        instance = await change(test, code)
        assert await output_of(instance) == await output_of(other)
        assert await keys_of(instance) == await keys_of(other)
        for key in await keys_of(instance):
            here, there = await entry_at(instance, key), await entry_at(other, key)
            assert (here.status, here.result) == (there.status, there.result)

    run(scenario, order_of(holds, branch), invoice)


@pytest.mark.parametrize("holder", ["join", "race"])
def test_a_branch_that_diverges_ends_the_run_though_others_wait(holder: str):
    code = Deployed()

    async def changes(step: Step) -> None:
        await OLD["step" if code.version == 1 else "sleep"][0](step)
        await step.sleep("wait", "2 days")

    async def waits(step: Step) -> None:
        await step.sleep("wait", "1 day")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await getattr(step, holder)("both", changes=changes, waits=waits)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        code.version = 2
        await test.advance("1 day")
        error = await error_of(instance)
        assert re.search(r"both/changes/old\b.*recorded do", error.message), error.message

    run(scenario, order)


async def one_loop(step: Step, branch: Branch) -> None:
    async def turn(step: Step, state: dict) -> object:
        await branch(step)
        return Break(None)

    await step.loop("pages", turn, state={})


async def one_join(step: Step, branch: Branch) -> None:
    await step.join("both", only=branch)


async def one_race(step: Step, branch: Branch) -> None:
    await step.race("fastest", only=branch)


@pytest.mark.parametrize("holds", [one_loop, one_join, one_race])
@pytest.mark.parametrize("new", [asks_for_more, raises, lambda step: step.sleep("b", "1 hour")])
def test_handlers_behind_what_has_changed_are_found_nevertheless(holds: Callable, new: Branch):
    code = Deployed()
    refunds: list[str] = []

    def refund(name: str) -> None:
        if code.version == 1:
            raise ConnectionError("bank is closed")
        refunds.append(name)

    async def branch(step: Step) -> None:
        if code.version == 2:
            await new(step)
        await step.do("b", lambda: "b")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.do("a", lambda: "a", rollback=refund)
        await holds(step, branch)
        await step.do("c", lambda: "c", rollback=refund)
        raise LookupError("sold out")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        code.version = 2
        await test.advance("10 seconds")
        assert (await error_of(instance)).name == "LookupError"
        assert refunds == ["c", "a"]

    run(scenario, order, invoice)


def test_a_loop_that_had_failed_stays_failed_when_its_body_no_longer_does():
    code, calls = Deployed(), Calls()

    async def turn(step: Step, state: dict) -> object:
        await step.do("work", lambda: 1)
        if code.version == 1:
            raise LookupError("sold out")
        await step.do("more", calls.of("more"))
        return Break("fine")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            result = await step.loop("pages", turn, state={})
        except Exception as error:  # noqa: BLE001 the kind of error is what differs
            result = str(error)
        await step.sleep("gap", "30 minutes")
        await step.sleep("rest", "30 minutes")
        return result

    async def scenario(test: WorkflowTest) -> None:
        assert "sold out" in str(await output_of(await change(test, code)))
        assert calls.names == []

    run(scenario, order)


@pytest.mark.parametrize("spins", [False, True])
def test_a_loop_that_has_lost_a_race_is_seen_from_its_latest_commit(spins: bool):
    code = Deployed()

    async def turn(step: Step, state: dict) -> object:
        if code.version == 1 or not spins:
            await step.do("work", lambda: 1)
            await step.sleep("nap", "10 seconds")
        return Continue({"n": state["n"] + 1})

    async def slow(step: Step) -> None:
        await step.loop("pages", turn, state={"n": 0}, commit_interval=2)

    async def scenario(test: WorkflowTest) -> None:
        instance = await change(test, code)
        if spins:
            error = await error_of(instance)
            assert "at held/slow/pages/~2/work: recorded do, requested nothing" in error.message
        else:
            assert await output_of(instance) == "quick"

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.race("held", slow=slow, quick=quick)
        await step.sleep("gap", "1 hour")
        return first.winner

    run(scenario, order)


@pytest.mark.parametrize("nested", [False, True])
def test_a_branch_has_no_turn_left_when_the_result_is_due(nested: bool):
    code = Deployed()
    seen: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        over = asyncio.Event()

        async def waits(step: Step) -> None:
            await step.do("load", lambda: 1)
            if code.version == 1:
                await step.sleep("wait", "10 seconds")
                return
            try:
                await over.wait()
            except asyncio.CancelledError:
                seen.append("a turn to clean up")
            seen.append("a turn")

        async def nests(step: Step) -> None:
            await step.join("inner", waits=waits, longer=lambda step: step.sleep("nap", "1 day"))

        if nested:
            await step.race("first", loser=nests, quick=quick)
        else:
            await step.join("both", waits=waits)
        over.set()
        await step.sleep("gap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        await output_of(await change(test, code))
        assert seen == []

    run(scenario, order)
