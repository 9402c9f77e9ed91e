"""`step.now`, `step.random`, `step.uuid`: recorded once, the same on every replay."""

from datetime import UTC, timedelta

from headwater import Break, Continue, Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import HOUR, START, Deployed, begin, output, output_of, run


def test_now_is_the_time_of_the_harness_and_stays_what_it_was():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        before = await step.now()
        await step.sleep("cool off", "1 hour")
        after = await step.now()
        return [before == START, after == START + HOUR, before.utcoffset() == timedelta(0)]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("30 minutes")
        await test.crash()
        await test.advance("30 minutes")
        assert await output_of(instance) == [True, True, True]

    run(scenario, order)


def test_now_may_be_used_for_a_deadline():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.sleep_until("deadline", await step.now() + HOUR)
        return (await step.now()).astimezone(UTC).isoformat()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("30 minutes")
        await test.crash()
        await test.advance("30 minutes")
        assert await output_of(instance) == (START + HOUR).isoformat()

    run(scenario, order)


def test_a_random_number_is_a_float_below_one():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return [await step.random() for _ in range(20)]

    numbers = output(order)
    assert all(isinstance(number, float) and 0 <= number < 1 for number in numbers)
    assert len(set(numbers)) == 20


def test_a_uuid_is_a_text_and_each_is_another():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return [await step.uuid(), await step.uuid(), await step.uuid("order id")]

    ids = output(order)
    assert all(isinstance(item, str) for item in ids)
    assert len(set(ids)) == 3


def test_values_are_the_same_on_replay():
    seen: list[object] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        values = [await step.now(), await step.random(), await step.uuid(), await step.random()]
        named = [await step.uuid("order id"), await step.random("dice"), await step.now("at")]
        seen.append(values + named)
        await step.sleep("cool off", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        await test.crash()
        await test.advance("1 hour")
        await output_of(instance)
        assert len(seen) == 2
        assert seen[0] == seen[1]

    run(scenario, order)


def test_a_named_value_stays_when_unnamed_ones_are_added_before_it():
    code = Deployed()
    seen: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        if code.version == 2:
            await step.uuid()
        seen.append(await step.uuid("order id"))
        await step.sleep("cool off", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        code.version = 2
        await test.advance("1 hour")
        await output_of(instance)
        assert len(seen) == 2
        assert len(set(seen)) == 1

    run(scenario, order)


def test_values_of_different_scopes_are_different_and_survive_a_crash_in_between():
    async def draws(step: Step) -> str:
        first = await step.uuid()
        await step.sleep("nap", "1 minute")
        return first

    async def turn(step: Step, state: dict) -> object:
        drawn = [*state["drawn"], await draws(step)]
        return Break(drawn) if len(drawn) == 3 else Continue({"drawn": drawn})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = await step.join("both", left=draws, right=draws)
        drawn = await step.loop("turns", turn, state={"drawn": []}, commit_interval=1)
        return [both["left"], both["right"], await step.uuid(), *drawn]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(4):
            await test.crash()
            await test.advance("1 minute")
        drawn = await output_of(instance)
        assert len(drawn) == len(set(drawn)) == 6

    run(scenario, order)
