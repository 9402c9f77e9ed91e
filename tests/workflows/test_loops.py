"""`step.loop`: state that survives, history that stays short, and iterations that run once."""

import asyncio
from collections import Counter

import pytest

from headwater import (
    Break,
    Continue,
    EventTimeoutError,
    Step,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from tests.workflows.running import (
    CRASH,
    Calls,
    begin,
    entry_at,
    error_of,
    failure,
    keys_of,
    output,
    output_of,
    pass_time,
    run,
    state_of,
)


def iterations(keys: list[str], loop: str = "pages") -> list[int]:
    """The iterations of a loop that its history still has, in order."""
    result = {key.split("/~")[1].split("/")[0] for key in keys if key.startswith(f"{loop}/~")}
    return sorted(map(int, result))


def pages_until(last: int, calls: Calls, nap_in: tuple[int, ...] = ()) -> object:
    """A body of one step, which adds up the numbers from 0 to last; it naps in some iterations."""

    async def one_page(step: Step, state: dict) -> object:
        number = state["n"]
        value = await step.do("fetch", calls.of(f"fetch {number}", number))
        if number in nap_in:
            await step.sleep("nap", "1 hour")
        await step.do("store", calls.of(f"store {number}"))
        total = state["total"] + value
        return Break(total) if number == last else Continue({"n": number + 1, "total": total})

    return one_page


def order_of_pages(body: object, **options: int) -> object:
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.loop("pages", body, state={"n": 0, "total": 0}, **options)

    return order


def test_a_loop_hands_its_state_on_and_returns_what_it_breaks_with():
    calls = Calls()
    assert output(order_of_pages(pages_until(4, calls))) == 10
    assert calls.names == [f"{name} {n}" for n in range(5) for name in ("fetch", "store")]


def test_a_loop_may_break_in_its_first_iteration_with_nothing():
    async def nothing(step: Step, state: dict) -> object:
        return Break(None)

    assert output(order_of_pages(nothing)) is None


def test_the_keys_of_iterations_count_from_zero():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await keys_of(instance) == [
            "pages",
            "pages/~0/fetch",
            "pages/~0/store",
            "pages/~1/fetch",
            "pages/~1/store",
        ]
        loop = await entry_at(instance, "pages")
        assert (loop.name, loop.type, loop.status) == ("pages", "loop", "completed")
        assert (await entry_at(instance, "pages/~1/fetch")).name == "fetch"

    run(scenario, order_of_pages(pages_until(1, Calls())))


def test_by_default_the_last_twenty_iterations_are_kept():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == sum(range(45))
        assert iterations(await keys_of(instance)) == list(range(25, 45))

    run(scenario, order_of_pages(pages_until(44, Calls())))


def test_history_is_trimmed_on_the_way_and_once_more_at_break():
    body = pages_until(13, Calls(), nap_in=(12,))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await state_of(instance) == "waiting"
        assert iterations(await keys_of(instance)) == [8, 9, 10, 11, 12]
        await test.advance("1 hour")
        assert await output_of(instance) == sum(range(14))
        assert iterations(await keys_of(instance)) == [12, 13]

    run(scenario, order_of_pages(body, commit_interval=5, history_every=5, history_keep=2))


@pytest.mark.parametrize("naps", [(), (22,), (3, 19, 20, 25)])
def test_a_crash_changes_nothing_about_what_is_kept_at_break(naps: tuple[int, ...]):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in naps:
            await test.crash()
            await test.advance("1 hour")
        assert await output_of(instance) == sum(range(26))
        assert iterations(await keys_of(instance)) == list(range(6, 26))

    run(scenario, order_of_pages(pages_until(25, Calls(), nap_in=naps)))


def test_from_an_iteration_that_was_trimmed_nothing_is_retried():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        body = pages_until(25, Calls(), nap_in=(22,))
        await step.loop("pages", body, state={"n": 0, "total": 0})
        raise ValueError("no")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        await error_of(instance)
        with pytest.raises(Exception, match="expected a state of pages from before pages/~5/fetch"):
            await instance.retry("pages/~5/fetch")
        await instance.retry("pages/~20/store")
        await test.advance("1 hour")
        await error_of(instance)
        assert iterations(await keys_of(instance)) == list(range(6, 26))

    run(scenario, order)


def test_trimming_leaves_what_is_outside_the_loop():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("before", lambda: 1)
        body = pages_until(5, Calls())
        options = {"commit_interval": 1, "history_every": 1, "history_keep": 1}
        await step.loop("pages", body, state={"n": 0, "total": 0}, **options)
        await step.do("after", lambda: 2)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await keys_of(instance) == [
            "before",
            "pages",
            "pages/~5/fetch",
            "pages/~5/store",
            "after",
        ]

    run(scenario, order)


@pytest.mark.parametrize(
    ("commit_interval", "history_every", "history_keep"),
    [(1, 1, 1), (20, 20, 20), (7, 3, 2), (3, 7, 5), (50, 2, 1)],
)
def test_a_crash_in_any_iteration_runs_no_completed_step_again(
    commit_interval: int, history_every: int, history_keep: int
):
    calls = Calls()
    naps = (0, 3, 6, 7, 10, 13, 14, 21, 24)
    body = pages_until(25, calls, nap_in=naps)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in naps:
            await test.crash()
            await test.advance("1 hour")
        assert await output_of(instance) == sum(range(26))
        assert set(Counter(calls.names).values()) == {1}
        assert len(calls.names) == 52

    options = {
        "commit_interval": commit_interval,
        "history_every": history_every,
        "history_keep": history_keep,
    }
    run(scenario, order_of_pages(body, **options))


def test_after_a_crash_a_loop_goes_on_from_the_last_committed_state():
    entered: list[int] = []

    async def one_page(step: Step, state: dict) -> object:
        entered.append(state["n"])
        await step.do("fetch", lambda: None)
        if state["n"] == 25:
            await step.sleep("nap", "1 hour")
            return Break("done")
        return Continue({"n": state["n"] + 1})

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert entered == list(range(26))
        entered.clear()
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == "done"
        assert entered[-1] == 25
        assert min(entered) >= 20, "iterations before the commit were entered again"

    run(scenario, order_of_pages(one_page, commit_interval=10))


def test_a_loop_that_is_over_is_not_entered_again_after_a_crash():
    entered: list[int] = []

    async def one_page(step: Step, state: dict) -> object:
        entered.append(state["n"])
        return Break("done") if state["n"] == 3 else Continue({"n": state["n"] + 1})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        result = await step.loop("pages", one_page, state={"n": 0}, commit_interval=1)
        await step.sleep("cool off", "1 hour")
        return result

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == "done"
        assert entered == [0, 1, 2, 3]

    run(scenario, order)


@pytest.mark.parametrize("returned", [None, {"n": 1}, True])
def test_a_body_that_returns_neither_continue_nor_break_fails_by_the_name_of_its_loop(
    returned: object,
):
    async def body(step: Step, state: dict) -> object:
        return returned

    assert "pages" in failure(order_of_pages(body)).message


def test_an_error_in_an_iteration_reaches_the_workflow():
    async def body(step: Step, state: dict) -> object:
        if state["n"] == 2:
            raise LookupError("page 2 is gone")
        return Continue({"n": state["n"] + 1})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            return await step.loop("pages", body, state={"n": 0})
        except LookupError as error:
            return str(error)

    assert output(order) == "page 2 is gone"


def nested(calls: Calls) -> object:
    """Three rounds of three turns, which nap and crash wherever the scenario likes."""

    async def turn(step: Step, state: dict) -> object:
        name = f"{state['outer']}.{state['n']}"
        await step.do("work", calls.of(name))
        await step.sleep("nap", "1 minute")
        if state["n"] == 2:
            return Break(name)
        return Continue({"outer": state["outer"], "n": state["n"] + 1})

    async def one_round(step: Step, state: dict) -> object:
        await step.do("open", calls.of(f"open {state['n']}"))
        last = await step.loop("inner", turn, state={"outer": state["n"], "n": 0})
        seen = [*state["seen"], last]
        if state["n"] == 2:
            return Break(seen)
        return Continue({"n": state["n"] + 1, "seen": seen})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.loop("outer", one_round, state={"n": 0, "seen": []})

    return order


@CRASH
def test_nested_loops_keep_their_places(crash: bool):
    calls = Calls()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(9):
            if crash:
                await test.crash()
            await test.advance("1 minute")
        assert await output_of(instance) == ["0.2", "1.2", "2.2"]
        assert set(Counter(calls.names).values()) == {1}
        assert len(calls.names) == 12
        keys = await keys_of(instance)
        assert {"outer/~0/open", "outer/~1/inner", "outer/~2/inner/~0/work"} <= set(keys)

    run(scenario, nested(calls))


def test_a_trimmed_iteration_takes_its_inner_loops_along():
    async def turn(step: Step, state: dict) -> object:
        await step.do("work", lambda: None)
        return Break(None)

    async def one_round(step: Step, state: dict) -> object:
        await step.loop("inner", turn, state={})
        return Break(None) if state["n"] == 4 else Continue({"n": state["n"] + 1})

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await keys_of(instance) == [
            "pages",
            "pages/~4/inner",
            "pages/~4/inner/~0/work",
        ]

    options = {"commit_interval": 1, "history_every": 2, "history_keep": 1}
    run(scenario, order_of_pages(one_round, **options))


def test_loops_in_two_branches_do_not_meet():
    calls = Calls()

    async def branch(step: Step) -> object:
        body = pages_until(2, calls)
        return await step.loop("pages", body, state={"n": 0, "total": 0})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = await step.join("both", left=branch, right=branch)
        return [both["left"], both["right"]]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == [3, 3]
        assert {"both/left/pages/~0/fetch", "both/right/pages/~2/store"} <= set(
            await keys_of(instance)
        )

    run(scenario, order)


def test_a_long_loop_stays_below_the_limit_of_entries_because_it_is_trimmed():
    calls = Calls()
    assert output(order_of_pages(pages_until(1499, calls))) == sum(range(1500))
    assert len(calls.names) == 3000


@pytest.mark.parametrize("commit_interval", [1, 20])
def test_new_entries_come_behind_those_of_iterations_that_a_replay_passes_over(
    commit_interval: int,
):
    async def turn(step: Step, state: dict) -> object:
        await step.do("load", lambda: None)
        await step.do("store", lambda: None)
        if state["n"] == 2:
            return Break(None)
        return Continue({"n": state["n"] + 1})

    async def naps(step: Step, state: dict) -> object:
        if state["n"] == 2:
            await step.do("wait", lambda: pass_time("5 minutes"))
        return await turn(step, state)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        await output_of(instance)
        assert await keys_of(instance) == [
            "pages",
            *(f"pages/~{number}/{name}" for number in (0, 1) for name in ("load", "store")),
            *(f"pages/~2/{name}" for name in ("wait", "load", "store")),
        ]

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        options = {"commit_interval": commit_interval, "history_every": 50}
        return await step.loop("pages", naps, state={"n": 0}, **options)

    run(scenario, order)


def test_a_loop_that_fails_raises_the_error_of_its_body_each_time():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        result = []
        for number in range(2):
            try:
                await step.loop("pages", fails, state={})
            except LookupError as error:
                result.append(str(error))
            await step.sleep(f"gap {number}", "1 hour")
        return result

    async def fails(step: Step, state: dict) -> None:
        await step.do("work", lambda: 1)
        raise LookupError("sold out")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(2):
            await test.crash()
            await test.advance("1 hour")
        assert await output_of(instance) == ["sold out", "sold out"]

    run(scenario, order)


@CRASH
@pytest.mark.parametrize("caught", [True, False])
def test_a_task_group_that_fails_in_a_loop_is_no_cancellation_of_the_loop(
    caught: bool, crash: bool
):
    async def fails(step: Step) -> None:
        await step.wait_for_event("reply", type="reply", timeout="1 minute")

    async def body(step: Step, state: int) -> Continue | Break:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails(step))
                group.create_task(step.sleep("nap", "100 days"))
        except* EventTimeoutError:
            if not caught:
                raise
        return Continue(state + 1) if state < 2 else Break(state)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            return await step.loop("turns", body, state=0, commit_interval=1)
        except ExceptionGroup as group:
            return [type(exception).__name__ for exception in group.exceptions]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(3):
            if crash:
                await test.crash()
            await test.advance("1 minute")
        assert await output_of(instance) == (2 if caught else ["EventTimeoutError"])

    run(scenario, order)
