"""Code that does not fit the history of its run and raises nothing: the run's log says so."""

import asyncio

import pytest

from headwater import Break, Continue, Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.mending import retried, well
from tests.workflows.running import Deployed, Instance, begin, output_of, run


async def told(instance: Instance) -> list[str]:
    """What the logs of all runs say of code that does not fit."""
    runs = range((await instance.status()).run_number + 1)
    return [
        line.message
        for number in runs
        for line in (await instance.history(number)).logs
        if line.category == "system" and "does not fit" in line.message
    ]


async def deploy(test: WorkflowTest, code: Deployed, version: int, time: str = "1 hour") -> None:
    """Another version takes over, and time passes."""
    await test.crash()
    code.version = version
    await test.advance(time)


def names(line: str) -> tuple[str, str]:
    """What is new, and what is recorded."""
    new, _, old = line.removeprefix("the code has reached ").partition(", which is new, but not ")
    return new, old.partition(", which is recorded")[0]


def test_code_that_does_not_fit_its_history_is_warned_of_once():
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        await step.do("quote" if code.version == 1 else "price quote", lambda: 1)
        await step.sleep("gap", "1 hour")
        await step.sleep("another", "1 hour")
        await step.do("end", lambda: 1)
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await deploy(test, code, 2)
        await deploy(test, code, 2)
        assert await output_of(instance) == "done"
        (line,) = await told(instance)
        assert names(line) == ("price quote", "quote")
        assert "call step.removed in its place" in line

    run(scenario, order)


@pytest.mark.parametrize("where", ["behind", "in its place", "in no place"])
def test_code_that_fits_its_history_is_not_warned_of(where: str):
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        if code.version == 2 and where == "in no place":
            await step.removed("older", kind="step")
        if code.version == 1 or where != "in its place":
            await step.do("old", lambda: 1)
        else:
            await step.removed("old", kind="step")
        await step.sleep("gap", "1 hour")
        if code.version == 2:
            await step.do("new", lambda: 1)
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await deploy(test, code, 2)
        assert await output_of(instance) == "done"
        assert not await told(instance)

    run(scenario, order)


def test_what_was_taken_out_is_told_of_once_when_something_new_comes():
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        if code.version == 1:
            await step.do("old", lambda: 1)
        await step.sleep("gap", "1 hour")
        await step.sleep("another", "1 hour")
        await step.sleep("a third", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await deploy(test, code, 2, "1 minute")
        assert not await told(instance)
        for _ in range(3):
            await deploy(test, code, 2)
        assert [names(line) for line in await told(instance)] == [("another", "old")]

    run(scenario, order)


def test_a_restarted_run_is_looked_at_like_a_first_one():
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("quote" if code.version == 1 else "price quote", lambda: 1)
        await step.sleep("gap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.restart()
        await test.run_until_idle()
        await deploy(test, code, 2)
        assert [names(line) for line in await told(instance)] == [("price quote", "quote")]

    run(scenario, order)


@pytest.mark.parametrize("commit_interval", [1, 20])
def test_each_change_that_does_not_fit_is_told_of_in_whatever_iteration_it_comes(
    commit_interval: int,
):
    code = Deployed()

    async def turn(step: Step, number: int) -> object:
        await step.do(f"work {code.version}", lambda: 1)
        await step.sleep("nap", "1 hour")
        return Break(number) if number == 12 else Continue(number + 1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.loop("turns", turn, state=0, commit_interval=commit_interval)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("2 hours")
        for version in (2, 3, 4):
            for _ in range(3):
                await deploy(test, code, version)
        await test.advance("1 day")
        assert await output_of(instance) == 12
        lines = [names(line) for line in await told(instance)]
        assert [new.rpartition("/")[2] for new, _ in lines] == ["work 2", "work 3", "work 4"]

    run(scenario, order)


def test_code_that_is_changed_again_in_the_same_place_is_told_of_again():
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do(f"quote {code.version}", lambda: 1)
        for number in range(9):
            await step.sleep(f"gap {number}", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for version in (2, 3):
            for _ in range(2):
                await deploy(test, code, version)
        lines = [names(line) for line in await told(instance)]
        assert lines == [("quote 2", "quote 1"), ("quote 3", "quote 2")]

    run(scenario, order)


@pytest.mark.parametrize("when", ["with the retry", "later"])
@pytest.mark.parametrize("scope", ["the workflow", "a loop", "a join"])
def test_a_run_that_is_retried_is_looked_at_too(when: str, scope: str):
    code, work = Deployed(), well()

    async def pays(step: Step) -> None:
        await step.do(f"quote {code.version}", lambda: 1)
        await step.do("keep", lambda: 1)
        await step.do("charge", work.of("charge"))
        await step.sleep("gap", "1 hour")

    async def turn(step: Step, number: int) -> object:
        if number == 3:
            await pays(step)
            return Break(None)
        await step.do("count", lambda: 1)
        return Continue(number + 1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        if scope == "a loop":
            await step.loop("turns", turn, state=0)
        elif scope == "a join":
            await step.join("both", pays=pays)
        else:
            await pays(step)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended.add("charge")
        if when == "with the retry":
            code.version = 2
        await retried(test, instance)
        await deploy(test, code, 2)
        ((new, old),) = [names(line) for line in await told(instance)]
        assert (new[-7:], old[-7:]) == ("quote 2", "quote 1")

    run(scenario, order)


def test_what_a_retried_run_has_recorded_itself_is_looked_at():
    code, work = Deployed(), well()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("charge", work.of("charge"))
        await step.do(f"ship {code.version}", lambda: 1)
        await step.sleep(f"gap {code.version}", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended.add("charge")
        await retried(test, instance)
        await deploy(test, code, 2)
        assert [names(line) for line in await told(instance)] == [("ship 2", "ship 1")]

    run(scenario, order)


def test_what_lies_behind_what_a_retry_does_again_is_no_misfit():
    work = well("book", "quote")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.do("book", work.of("book"), rollback=lambda _: None)
        await step.do("quote", work.of("quote"))
        await step.do("charge", work.of("charge"))
        await step.sleep("gap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended = {"quote", "charge"}
        await retried(test, instance)  # Booking fails now, before the quote is come to.
        work.mended.add("book")
        await retried(test, instance)
        await test.crash()
        await test.advance("1 hour")
        await output_of(instance)
        assert not await told(instance)
        assert work.taken() == ["book", "quote", "charge", "book", "book", "charge"]

    run(scenario, order)


def test_the_way_that_a_mended_branch_spares_is_no_misfit():
    code = Deployed()

    async def fails(step: Step) -> None:
        await step.do("look", lambda: 1)
        if code.version == 1:
            raise LookupError("a mistake")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        try:
            await step.join("both", fails=fails)
        except Exception:
            await step.do("in its stead", lambda: 1)
            if code.version == 1:
                raise
        await step.sleep("gap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        code.version = 2
        await retried(test, instance)
        await test.advance("1 hour")
        await output_of(instance)
        assert not await told(instance)

    run(scenario, order)


def test_a_replay_that_commits_on_its_way_is_looked_at_when_it_has_come_through():
    code = Deployed()

    async def turn(step: Step, number: int) -> object:
        await step.do("work", lambda: 1)
        await step.sleep("nap", "1 hour")
        return Break(number) if number == 12 else Continue(number + 1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        more = [step.do("more", lambda: 1)] if code.version == 2 else []
        interval = 20 if code.version == 1 else 5
        await asyncio.gather(*more, step.loop("turns", turn, state=0, commit_interval=interval))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("8 hours")
        await deploy(test, code, 2)
        assert not await told(instance)

    run(scenario, order)
