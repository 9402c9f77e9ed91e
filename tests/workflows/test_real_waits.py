"""Callbacks that wait for something real do not stop a test, also where it never comes."""

import asyncio
import time

import pytest

from headwater import Retry, Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import MINUTE, error_of, output_of, pass_time, run, state_of

ONCE = Retry(limit=0)


async def hang() -> None:
    """Waits for what never comes."""
    await asyncio.Event().wait()


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    """Has a step that hangs."""
    return await step.do("hang", hang, timeout="1 minute", retries=ONCE)


def in_a_world(scenario: object) -> None:
    async def whole() -> None:
        async with WorkflowTest([order], patience="50 ms") as test:
            await scenario(test)

    asyncio.run(asyncio.wait_for(whole(), 30))


@pytest.mark.parametrize("call", ["run_until_idle", "tick", "result"])
def test_a_callback_that_waits_in_vain_is_named(call: str):
    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create(order, id="i-1")
        with pytest.raises(TimeoutError, match=r'within 0\.05 s.* "hang" of order/i-1, attempt 1'):
            await getattr(instance if call == "result" else test, call)()
        assert await state_of(instance) == "active"

    in_a_world(scenario)


def test_the_clock_goes_on_past_a_callback_that_waits_in_vain():
    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create(order, id="i-1")
        await test.advance("59 seconds")
        assert await state_of(instance) == "active"
        await test.advance("2 seconds")
        assert (await error_of(instance)).name == "StepTimeoutError"
        await test.run_until_idle()

    in_a_world(scenario)


def test_a_crash_forgets_what_waits_in_vain():
    async def scenario(test: WorkflowTest) -> None:
        await test.create(order, id="i-1")
        await test.advance("1 second")
        await test.crash()
        with pytest.raises(TimeoutError, match="attempt 1"):
            await test.run_until_idle()

    in_a_world(scenario)


def test_two_sleeps_of_one_callback_do_not_hide_another_callback():
    async def two() -> None:
        await asyncio.gather(pass_time("5 minutes"), pass_time("5 minutes"))

    async def real() -> int:
        await asyncio.to_thread(time.sleep, 0.05)
        return 1

    @workflow("order")
    async def both(event: WorkflowEvent, step: Step) -> object:
        return await asyncio.gather(step.do("two", two), step.do("real", real))

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create(both, id="i-1")
        await test.run_until_idle()
        done = {step.name: step.status for step in (await instance.history()).steps}
        assert done == {"real": "completed"}
        await test.advance(5 * MINUTE)
        assert await output_of(instance) == [None, 1]

    run(scenario, both)


@pytest.mark.parametrize("limit", ["max_instances", "max_steps"])
@pytest.mark.parametrize(
    ("given", "error"),
    [(0, ValueError), (-1, ValueError), (10_001, ValueError), (1.5, TypeError), ("x", TypeError)],
)
def test_a_tick_is_limited_as_a_server_limits_it(limit: str, given: object, error: type[Exception]):
    async def scenario(test: WorkflowTest) -> None:
        with pytest.raises(error, match=f"{limit} to be a whole number from 1 to 10,000"):
            await test.tick(**{limit: given})

    run(scenario, order)


def test_a_run_that_there_is_not_is_refused_as_by_a_server():
    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create(order, id="i-1")
        with pytest.raises(Exception, match="run number of 0 to 0, found 9") as caught:
            await instance.history(run_number=9)
        assert (type(caught.value).__name__, caught.value.code) == (
            "CommandRefusedError",
            "RUN_NOT_FOUND",
        )

    run(scenario, order)
