"""Retries of runs with joins, races, loops and rollbacks: how far what failed reaches."""

from collections.abc import Callable

import pytest

from headwater import Break, Continue, Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.failures import StepNotFoundError
from tests.workflows.mending import retried, well
from tests.workflows.running import Calls, Deployed, begin, entry_at, error_of, output_of, run


def test_of_a_join_only_what_failed_is_done_again():
    work = well("a", "c", "first")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def good(step: Step) -> object:
            return [await step.do(name, work.of(name)) for name in "ac"]

        async def bad(step: Step) -> object:
            return [await step.do("first", work.of("first")), await step.do("b", work.of("b"))]

        async def also_bad(step: Step) -> object:
            return await step.do("d", work.of("d"))

        return await step.join("all", good=good, bad=bad, also_bad=also_bad)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await error_of(instance)).name == "JoinError"
        assert sorted(work.taken()) == ["a", "b", "c", "d", "first"]
        work.mended |= {"b", "d"}
        await retried(test, instance)
        assert await output_of(instance) == {
            "good": ["a", "c"], "bad": ["first", "b"], "also_bad": "d",
        }  # fmt: skip
        assert sorted(work.taken()) == ["b", "d"]
        assert (await entry_at(instance, "all")).status == "completed"

    run(scenario, order)


def test_a_branch_whose_own_code_failed_is_run_again_by_new_code():
    work, code = well("a", "b"), Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def one(step: Step) -> object:
            result = await step.do("a", work.of("a"))
            if code.version == 1:
                raise KeyError("typo")
            return result

        async def two(step: Step) -> object:
            return await step.do("b", work.of("b"))

        return await step.join("both", one=one, two=two)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await error_of(instance)).name == "JoinError"
        code.version = 2
        await retried(test, instance)
        assert await output_of(instance) == {"one": "a", "two": "b"}
        assert sorted(work.taken()) == ["a", "b"]

    run(scenario, order)


def test_of_a_race_that_all_have_lost_the_branches_race_again():
    work = well("x")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def slow(step: Step) -> object:
            await step.do("x", work.of("x"))
            await step.sleep("nap", "1 minute")
            return await step.do("a", work.of("a"))

        async def quick(step: Step) -> object:
            return await step.do("b", work.of("b"))

        won = await step.race("fastest", slow=slow, quick=quick)
        return [won.winner, won.value]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        assert (await error_of(instance)).name == "RaceError"
        work.mended.add("a")
        assert work.taken() == ["x", "b", "a"]
        await retried(test, instance)
        assert await output_of(instance) == ["slow", "a"]
        assert sorted(work.taken()) == ["a", "b"]

    run(scenario, order)


def test_a_loop_goes_on_in_the_iteration_that_failed():
    work = well("0", "1", "2", "4")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def turn(step: Step, found: list) -> object:
            found = [*found, await step.do("work", work.of(str(len(found))))]
            return Break(found) if len(found) == 5 else Continue(found)

        return await step.loop("turns", turn, state=[], commit_interval=2)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await error_of(instance)).message == "3 is broken"
        assert work.taken() == ["0", "1", "2", "3"]
        work.mended.add("3")
        await retried(test, instance)
        assert await output_of(instance) == ["0", "1", "2", "3", "4"]
        assert work.taken() == ["3", "4"]

    run(scenario, order)


def test_a_loop_that_forgets_its_past_goes_on_too():
    work = well(*(str(number) for number in range(7) if number != 4))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def turn(step: Step, found: list) -> object:
            found = [*found, await step.do("work", work.of(str(len(found))))]
            return Break(found) if len(found) == 7 else Continue(found)

        return await step.loop(
            "turns", turn, state=[], commit_interval=2, history_every=2, history_keep=1
        )

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await error_of(instance)
        with pytest.raises(StepNotFoundError, match="forget"):
            await instance.retry(from_step="turns/~1/work")
        work.mended.add("4")
        await retried(test, instance)
        assert await output_of(instance) == [str(number) for number in range(7)]
        assert work.taken() == [*"01234", *"456"]

    run(scenario, order)


def test_what_was_rolled_back_is_done_again_wherever_it_is():
    work, undone = well("quote", "a", "b", "0", "1"), Calls()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        def undo(name: str) -> Callable[[object], object]:
            return lambda _: undone.of(name)()

        async def branch(step: Step) -> object:
            name = step.scope[-1]
            await step.do("plain", work.of("quote"))
            return await step.do("pay", work.of(name), rollback=undo(name))

        async def turn(step: Step, number: int) -> object:
            await step.do("pay", work.of(str(number)), rollback=undo(str(number)))
            return Break(number) if number == 1 else Continue(number + 1)

        await step.do("quote", work.of("quote"))
        await step.checkpoint("before money")
        result = [await step.join("both", a=branch, b=branch)]
        result.append(await step.loop("turns", turn, state=0, commit_interval=1))
        return [*result, await step.do("last", work.of("last"))]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await error_of(instance)
        assert sorted(undone.names) == ["0", "1", "a", "b"]
        work.taken()
        work.mended.add("last")
        await retried(test, instance)
        assert await output_of(instance) == [{"a": "a", "b": "b"}, 1, "last"]
        assert sorted(work.taken()) == ["0", "1", "a", "b", "last"]

    run(scenario, order)


def test_a_run_that_is_retried_and_fails_again_is_rolled_back_again():
    work, undone = well("a", "b"), Calls()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("start")
        for name in "ab":
            await step.do(name, work.of(name), rollback=lambda _, n=name: undone.of(n)())
        await step.do("c", work.of("c"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await retried(test, instance)
        assert (await error_of(instance)).message == "c is broken"
        assert undone.names == ["b", "a", "b", "a"]
        assert work.taken() == [*"abc", *"abc"]

    run(scenario, order)


def test_from_a_step_in_a_loop_its_commits_behind_it_are_forgotten():
    work = well(*"01234")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def turn(step: Step, found: list) -> object:
            name = str(len(found))
            found = [*found, await step.do("work", work.of(name, [*found]))]
            return Break(len(found)) if len(found) == 5 else Continue(found)

        total = await step.loop("turns", turn, state=[], commit_interval=1)
        return [total, await step.do("last", work.of("last"))]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.taken()
        work.mended.add("last")
        await instance.retry(from_step="turns/~2/work")
        await test.crash()
        await test.run_until_idle()
        assert await output_of(instance) == [5, "last"]
        assert work.taken() == [*"234", "last"]

    run(scenario, order)


def test_from_a_step_of_a_race_that_was_won_the_losers_get_their_chance_again():
    work = well("a", "b")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def quick(step: Step) -> object:
            await step.do("a", work.of("a"))
            return await step.do("b", work.of("b"))

        async def slow(step: Step) -> object:
            await step.sleep("nap", "1 minute")
            return "slow"

        won = await step.race("fastest", quick=quick, slow=slow)
        return [won.winner, await step.do("last", work.of("last"))]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await entry_at(instance, "fastest/slow/nap")).status == "cancelled"
        work.mended = {"last"}
        await retried(test, instance, "fastest/quick/b")
        await test.advance("1 minute")
        assert await output_of(instance) == ["slow", "last"]
        assert work.taken() == ["a", "b", "last", "b", "last"]

    run(scenario, order)
