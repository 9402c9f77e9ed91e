"""`step.sleep` and `step.sleep_until`: when an instance wakes, and what cannot keep it awake."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import (
    HOUR,
    MINUTE,
    START,
    Calls,
    Deployed,
    begin,
    entry_at,
    failure,
    keys_of,
    output,
    output_of,
    run,
    state_of,
)


def order_that_sleeps(duration: object) -> object:
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        await step.sleep("cool off", duration)
        return "awake"

    return order


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (1500, timedelta(seconds=1.5)),
        ("250 ms", timedelta(milliseconds=250)),
        ("1 s", timedelta(seconds=1)),
        ("2 sec", timedelta(seconds=2)),
        ("1 second", timedelta(seconds=1)),
        ("10 seconds", timedelta(seconds=10)),
        ("3 m", timedelta(minutes=3)),
        ("3 min", timedelta(minutes=3)),
        ("1 minute", MINUTE),
        ("1.5 minutes", timedelta(seconds=90)),
        ("2 h", timedelta(hours=2)),
        ("2 hr", timedelta(hours=2)),
        ("1 hour", HOUR),
        ("24 hours", timedelta(days=1)),
        ("1 d", timedelta(days=1)),
        ("365 days", timedelta(days=365)),
    ],
)
def test_a_sleep_ends_after_its_duration_and_not_a_millisecond_before(
    duration: str | int, expected: timedelta
):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        entry = await entry_at(instance, "cool off")
        assert (entry.type, entry.status, entry.wake_at) == ("sleep", "waiting", START + expected)
        await test.advance(expected / timedelta(milliseconds=1) - 1)
        assert await state_of(instance) == "waiting"
        await test.advance(1)
        assert await output_of(instance) == "awake"
        assert (await entry_at(instance, "cool off")).status == "completed"

    run(scenario, order_that_sleeps(duration))


@pytest.mark.parametrize("duration", ["3 fortnights", "soon", "five minutes"])
def test_a_duration_that_cannot_be_read_is_quoted_in_the_error(duration: str):
    assert duration in failure(order_that_sleeps(duration)).message


def test_a_sleep_longer_than_a_year_is_refused_by_name_and_limit():
    error = failure(order_that_sleeps("366 days"))
    assert "365" in error.message
    assert "cool off" in error.message


def test_a_sleep_of_nothing_goes_on_at_once():
    assert output(order_that_sleeps(0)) == "awake"


def test_sleep_until_wakes_at_the_moment_itself():
    paris_noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> bool:
        await step.sleep_until("noon", paris_noon)
        return await step.now() == paris_noon

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        entry = await entry_at(instance, "noon")
        assert (entry.type, entry.wake_at) == ("sleep", START + 11 * HOUR)
        await test.advance("11 hours")
        assert await output_of(instance) is True

    run(scenario, order)


def test_sleep_until_a_moment_in_the_past_goes_on_at_once():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        await step.sleep_until("yesterday", START - 24 * HOUR)
        return "awake"

    assert output(order) == "awake"


def test_a_crash_does_not_begin_a_sleep_again():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("59 minutes")
        await test.crash()
        await test.run_until_idle()
        assert (await entry_at(instance, "cool off")).wake_at == START + HOUR
        await test.advance("1 minute")
        assert await output_of(instance) == "awake"

    run(scenario, order_that_sleeps("1 hour"))


def test_a_sleep_that_fell_due_during_a_crash_ends_afterwards():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("5 hours")
        assert await output_of(instance) == "awake"

    run(scenario, order_that_sleeps("1 hour"))


@pytest.mark.parametrize("changed", ["1 minute", "3 hours"])
def test_a_sleep_that_has_begun_keeps_its_end_when_the_code_changes_its_length(changed: str):
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        await step.sleep("cool off", "1 hour" if code.version == 1 else changed)
        return "awake"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        code.version = 2
        await test.advance("59 minutes")
        assert await state_of(instance) == "waiting"
        await test.advance("1 minute")
        assert await output_of(instance) == "awake"

    run(scenario, order)


def test_two_sleeps_at_once_take_as_long_as_the_longer():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        await asyncio.gather(step.sleep("short", "1 hour"), step.sleep("long", "2 hours"))
        return "awake"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        assert (await entry_at(instance, "short")).status == "completed"
        assert await state_of(instance) == "waiting"
        await test.advance("1 hour")
        assert await output_of(instance) == "awake"

    run(scenario, order)


def test_the_same_sleep_again_does_not_sleep_again():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        await step.sleep("cool off", "1 hour")
        await step.sleep("cool off", "1 hour")
        return "awake"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        assert await output_of(instance) == "awake"
        assert await keys_of(instance) == ["cool off"]

    run(scenario, order)


def test_except_exception_swallows_neither_a_sleep_nor_a_crash_during_it():
    calls = Calls()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        try:
            await step.sleep("cool off", "1 hour")
        except Exception:  # noqa: BLE001 what careless authors write
            calls.names.append("swallowed")
        return "awake"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await state_of(instance) == "waiting"
        await test.crash()
        await test.run_until_idle()
        assert await state_of(instance) == "waiting"
        await test.advance("1 hour")
        assert await output_of(instance) == "awake"
        assert calls.names == []

    run(scenario, order)
