"""`step.join`: branches side by side, and what is left when some of them fail."""

import math

import pytest

from headwater import (
    JoinError,
    Retry,
    Step,
    UnserialisableError,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from headwater.processors.runs.limits import FAILURE_MESSAGE_MAX
from tests.workflows.running import (
    CRASH,
    Calls,
    Flaky,
    Unreachable,
    begin,
    entry_at,
    failure,
    keys_of,
    output,
    output_of,
    run,
    state_of,
)


def gives(value: object) -> object:
    """A branch of one step called `load`."""

    async def branch(step: Step) -> object:
        return await step.do("load", lambda: value)

    return branch


async def refuses(step: Step) -> None:
    raise ValueError("no such user")


def test_a_join_gives_the_value_of_each_branch_by_its_name():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = await step.join("fetch", user=gives("ann"), posts=gives([1, 2]))
        return [both["user"], both["posts"]]

    assert output(order) == ["ann", [1, 2]]


def test_the_same_name_in_two_branches_is_two_steps():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("load", lambda: 0)
        await step.join("fetch", user=gives(1), posts=gives(2))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        keys = await keys_of(instance)
        assert {"load", "fetch", "fetch/user/load", "fetch/posts/load"} <= set(keys)
        load = await entry_at(instance, "fetch/user/load")
        assert (load.name, load.type, load.result) == ("load", "do", 1)
        join = await entry_at(instance, "fetch")
        assert (join.name, join.type, join.status) == ("fetch", "join", "completed")

    run(scenario, order)


def test_branches_wait_side_by_side():
    async def slow(step: Step) -> str:
        await step.sleep("wait", "1 hour")
        return "slow"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = await step.join("fetch", one=slow, two=slow)
        return [both["one"], both["two"]]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await state_of(instance) == "waiting"
        await test.advance("1 hour")
        assert await output_of(instance) == ["slow", "slow"]

    run(scenario, order)


def test_a_failing_branch_is_reported_only_when_all_branches_have_settled():
    async def slow(step: Step) -> object:
        await step.sleep("wait", "1 hour")
        return await step.do("load", lambda: "late")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.join("fetch", user=refuses, posts=slow, likes=gives(3))
        except JoinError as failed:
            return {name: [error.name, error.message] for name, error in failed.errors.items()}
        return None

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await state_of(instance) == "waiting"
        await test.advance("1 hour")
        assert await output_of(instance) == {"user": ["ValueError", "no such user"]}
        assert (await entry_at(instance, "fetch/posts/load")).result == "late"
        assert (await entry_at(instance, "fetch")).status == "errored"

    run(scenario, order)


def test_the_errors_of_a_join_are_all_that_failed_and_only_those():
    async def fails_in_a_step(step: Step) -> None:
        await step.do("load", Flaky(math.inf), retries=Retry(limit=0))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.join("fetch", user=refuses, posts=fails_in_a_step, likes=gives(3))
        except JoinError as failed:
            return sorted(failed.errors)
        return None

    assert output(order) == ["posts", "user"]


def test_an_uncaught_join_failure_is_the_error_of_the_instance():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.join("fetch", user=refuses, posts=gives(2))

    error = failure(order)
    assert error.name == "JoinError"
    assert "user" in error.message


def test_a_branch_that_retries_does_not_fail_the_join():
    load = Flaky(1, "at last")

    async def flaky(step: Step) -> object:
        return await step.do("load", load)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = await step.join("fetch", user=flaky, posts=gives(2))
        return [both["user"], both["posts"]]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("10 seconds")
        assert await output_of(instance) == ["at last", 2]

    run(scenario, order)


@pytest.mark.parametrize("error", [None, Unreachable("no answer")])
def test_a_settled_branch_does_not_run_again_while_another_waits(error: Exception | None):
    calls = Calls()

    async def quick(step: Step) -> object:
        await step.do("load", calls.of("load"))
        if error is not None:
            raise error
        return "quick"

    async def slow(step: Step) -> str:
        await step.sleep("wait", "1 hour")
        return "slow"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            both = await step.join("fetch", quick=quick, slow=slow)
        except JoinError as failed:
            return list(failed.errors)
        return [both["quick"], both["slow"]]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == (["quick", "slow"] if error is None else ["quick"])
        assert calls.names == ["load"]

    run(scenario, order)


def test_a_join_that_is_over_gives_the_same_values_after_a_crash():
    entered: list[str] = []

    async def counts(step: Step) -> int:
        entered.append("branch")
        return await step.do("load", lambda: len(entered))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = await step.join("fetch", one=counts)
        await step.sleep("cool off", "1 hour")
        return both["one"]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == 1

    run(scenario, order)


def test_a_join_within_a_branch_has_keys_below_it():
    async def outer_branch(step: Step) -> object:
        inner = await step.join("fetch", user=gives(1), posts=gives(2))
        return inner["user"] + inner["posts"]

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = await step.join("fetch", left=outer_branch, right=outer_branch)
        return [both["left"], both["right"]]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == [3, 3]
        assert "fetch/left/fetch/user/load" in await keys_of(instance)

    run(scenario, order)


def test_the_same_join_again_returns_the_first_values():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.join("fetch", user=gives(1))
        again = await step.join("fetch", user=gives(2))
        return [first["user"], again["user"]]

    assert output(order) == [1, 1]


@CRASH
def test_what_branches_leave_in_variables_is_the_same_after_a_crash(crash: bool):
    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        seen: list[str] = []

        def naps(name: str, *durations: str) -> object:
            async def branch(step: Step) -> None:
                for number, duration in enumerate(durations):
                    await step.sleep(f"wait {number}", duration)
                    seen.append(name)

            return branch

        long, short = naps("long", "2 minutes", "1 minute"), naps("short", "1 minute", "3 minutes")
        await step.join("both", long=long, short=short)
        await step.sleep("cool off", "1 hour")
        return seen

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("5 minutes")
        if crash:
            await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == ["short", "long", "long", "short"]

    run(scenario, order)


def test_the_same_join_again_runs_nothing_on_replay_either():
    entered: list[str] = []

    def enters(name: str) -> object:
        async def branch(step: Step) -> object:
            entered.append(name)
            return await step.do("load", lambda: name)

        return branch

    async def other(step: Step) -> None:
        entered.append("other")
        await step.sleep("load", "1 hour")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.join("fetch", user=enters("first"))
        again = await step.join("fetch", user=other)
        await step.sleep("cool off", "1 hour")
        return [first["user"], again["user"]]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == ["first", "first"]
        assert set(entered) == {"first"}

    run(scenario, order)


@CRASH
def test_a_value_that_is_not_json_fails_its_join(crash: bool):
    async def bad(step: Step) -> object:
        return object()

    seen: list[str] = []

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> str:
        try:
            await step.join("fetch", good=gives(1), bad=bad)
        except UnserialisableError as error:
            seen.append(str(error))
        await step.sleep("cool off", "1 hour")
        return seen[-1]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        entry = await entry_at(instance, "fetch")
        assert (entry.status, entry.error.name) == ("errored", "UnserialisableError")
        if crash:
            await test.crash()
        await test.advance("1 hour")
        assert 'the values of the join "fetch"' in await output_of(instance)
        assert seen == [entry.error.message] * (1 + crash)

    run(scenario, order)


def test_failures_of_many_branches_are_cut_so_that_they_can_be_recorded():
    async def bad(step: Step) -> None:
        raise ValueError("x" * FAILURE_MESSAGE_MAX)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.join("fetch", **{f"b{n}": bad for n in range(70)})
        except JoinError as error:
            return [len(error.errors), *{item.message[-40:] for item in error.errors.values()}]
        return None

    count, *messages = output(order)
    assert count == 70
    assert all("cut; it had 16384 characters" in message for message in messages)
