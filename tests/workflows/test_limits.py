"""The limits of names and values: settings, which say their names when they are met."""

import asyncio
from typing import Any

import pytest

from headwater import Break, Retry, Step, StepTx, WorkflowEvent, WorkflowTest, workflow
from headwater.processors.code.engine import ReplayEngine
from headwater.processors.code.host_messages import Activate
from headwater.processors.runs.decisions import Facts, Rejection
from headwater.processors.runs.limits import DEFAULT_LIMITS
from headwater.schemas.failures import (
    EventPayloadInvalidError,
    InvalidEventTypeError,
    WorkflowParamsInvalidError,
)
from headwater.schemas.history import Limits, RunStarted, StartRun
from tests.fakes.records import appended
from tests.workflows.running import begin, error_of, failure, output_of

LOW = Limits(
    max_event_type=5,
    max_step_name=10,
    max_params_bytes=60,
    max_event_bytes=60,
    max_result_bytes=100,
    max_log_message=20,
    max_log_category=8,
    max_log_data_bytes=30,
    max_sleep_days=2,
)
LONG = "x" * 200


async def _log(step: Step, message: str, data: object = None, category: str = "workflow") -> None:
    await step.log.info(message, data, category=category)


async def _loop(step: Step) -> None:
    async def body(_: Step, state: object) -> Break:
        return Break(state)

    await step.loop("l", body, state=LONG)


async def _sends(step: Step, event: str, payload: object = None) -> None:
    def send(tx: StepTx) -> None:
        tx.send_event("order", "o", event, payload)

    await step.do("s", send, retries=Retry(limit=0))


MET = {
    "a name": (lambda step: step.do("a" * 11, lambda: 1), "1 to 10 characters (max_step_name)"),
    "a result": (lambda step: step.do("s", lambda: LONG), "at most 100 bytes (max_result_bytes)"),
    "a state": (_loop, "at most 100 bytes (max_result_bytes)"),
    "a sleep": (lambda step: step.sleep("s", "3 days"), "at most 2 days (max_sleep_days)"),
    "a line": (lambda step: _log(step, "x" * 21), "of at most 20 characters (max_log_message)"),
    "a category": (
        lambda step: _log(step, "x", category="nine-long"),
        "1 to 8 characters (max_log_category)",
    ),
    "data": (lambda step: _log(step, "x", LONG), "at most 30 bytes (max_log_data_bytes)"),
    "a wait": (
        lambda step: step.wait_for_event("w", type="sixsix"),
        "1 to 5 characters (max_event_type)",
    ),
    "params of a child": (
        lambda step: step.run_workflow("c", "order", params=LONG),
        "at most 60 bytes (max_params_bytes)",
    ),
    "an event of a step": (
        lambda step: _sends(step, "e", LONG),
        "at most 60 bytes (max_event_bytes)",
    ),
    "a type of a step": (lambda step: _sends(step, "sixsix"), "1 to 5 characters (max_event_type)"),
}


@pytest.mark.parametrize("what", MET)
def test_code_that_meets_a_limit_hears_the_name_of_its_setting(what: str) -> None:
    does, reported = MET[what]

    @workflow("order")
    async def order(event: WorkflowEvent[Any], step: Step) -> None:
        await does(step)

    async def scenario() -> None:
        async with WorkflowTest([order], limits=LOW) as test:
            assert reported in (await error_of(await begin(test))).message

    asyncio.run(scenario())


def test_an_output_that_is_too_large_names_the_setting() -> None:
    @workflow("order")
    async def order(event: WorkflowEvent[Any], step: Step) -> str:
        return LONG

    async def scenario() -> None:
        async with WorkflowTest([order], limits=LOW) as test:
            error = await error_of(await begin(test))
            assert "at most 100 bytes (max_result_bytes)" in error.message

    asyncio.run(scenario())


def test_whoever_sends_too_much_hears_the_name_of_the_setting() -> None:
    @workflow("order")
    async def order(event: WorkflowEvent[Any], step: Step) -> None:
        await step.sleep("nap", "1 hour")

    async def scenario() -> None:
        async with WorkflowTest([order], limits=LOW) as test:
            with pytest.raises(WorkflowParamsInvalidError, match=r"60 bytes \(max_params_bytes\)"):
                await test.create("order", params=LONG)
            instance = await begin(test)
            with pytest.raises(EventPayloadInvalidError, match=r"60 bytes \(max_event_bytes\)"):
                await instance.send_event("paid", LONG)
            with pytest.raises(InvalidEventTypeError, match=r"5 characters \(max_event_type\)"):
                await instance.send_event("sixsix")

    asyncio.run(scenario())


def test_a_limit_may_be_raised() -> None:
    @workflow("order")
    async def order(event: WorkflowEvent[str], step: Step) -> int:
        await step.sleep("nap", "400 days")
        return len(await step.do("n" * 300, lambda: event.payload))

    async def scenario() -> None:
        size = 2 * 1024 * 1024
        higher = Limits(
            max_params_bytes=size + 2,
            max_result_bytes=size + 2,
            max_step_name=300,
            max_sleep_days=400,
            max_instance_id=200,
        )
        async with WorkflowTest([order], limits=higher) as test:
            instance = await begin(test, instance="i" * 200, params="x" * size)
            await test.advance("400 days")
            assert await output_of(instance) == size

    asyncio.run(scenario())


def test_a_limit_that_was_met_and_caught_is_met_again_by_a_replay() -> None:
    @workflow("order")
    async def order(event: WorkflowEvent[Any], step: Step) -> str:
        try:
            await step.sleep("long", "3 days")
        except ValueError:
            await step.sleep("short", "1 day")
            return "short"
        return "long"

    async def scenario() -> None:
        async with WorkflowTest([order], limits=LOW) as test:
            instance = await begin(test)
            await test.crash()
            await test.advance("1 day")
            assert await output_of(instance) == "short"

    asyncio.run(scenario())


def _started(engine: ReplayEngine) -> RunStarted:
    command = StartRun("null")
    decided = engine.decide_command(None, command, Facts("order", "o-1", 0, 0))
    assert not isinstance(decided, Rejection)
    (started,) = decided
    assert isinstance(started, RunStarted)
    return started


def test_a_run_stays_with_the_limits_that_it_began_with() -> None:
    started = _started(ReplayEngine(limits=LOW))
    now = ReplayEngine(limits=Limits(max_sleep_days=700))
    record = appended(started)
    begun = now.begin(None, record)
    activate = now.activate(now.decode(now.encode(begun)), 1)
    assert isinstance(activate, Activate)
    assert activate.limits == LOW


def test_the_usual_limits_are_not_written_into_histories() -> None:
    assert _started(ReplayEngine(limits=DEFAULT_LIMITS)).limits is None


def test_a_run_without_limits_of_its_own_has_the_usual_ones() -> None:
    @workflow("order")
    async def order(event: WorkflowEvent[Any], step: Step) -> None:
        await step.sleep("nap", "366 days")

    assert "at most 365 days (max_sleep_days)" in failure(order).message
