"""Attempts: how often a step is tried, when, and what becomes of an attempt that is too late."""

import asyncio
import math

import pytest

from headwater import (
    NonRetryableError,
    Retry,
    Step,
    StepFailedError,
    StepTx,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from tests.workflows.running import (
    MINUTE,
    START,
    Calls,
    Flaky,
    Unreachable,
    begin,
    entry_at,
    error_of,
    failure,
    order_that,
    output,
    output_of,
    pass_time,
    run,
    state_of,
)

SECOND = MINUTE / 60


def test_a_failed_attempt_is_recorded_with_the_time_of_the_next():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        entry = await entry_at(instance, "charge")
        assert (entry.status, entry.attempts, entry.max_attempts) == ("waiting", 1, 6)
        assert entry.next_retry_at == START + 10 * SECOND
        assert entry.error is not None
        assert (entry.error.name, entry.error.message) == ("Unreachable", "call 1")
        assert await state_of(instance) == "waiting"

    run(scenario, order_that(Flaky(1)))


def test_a_step_succeeds_on_a_later_attempt():
    flaky = Flaky(2, "paid")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("30 seconds")
        assert await output_of(instance) == "paid"
        entry = await entry_at(instance, "charge")
        assert (entry.status, entry.attempts, entry.result) == ("completed", 3, "paid")
        assert flaky.calls == 3

    run(scenario, order_that(flaky))


@pytest.mark.parametrize(
    ("backoff", "factors"),
    [("constant", [1, 1, 1, 1]), ("linear", [1, 2, 3, 4]), ("exponential", [1, 2, 4, 8])],
)
def test_the_delay_before_each_retry_follows_the_backoff(backoff: str, factors: list[int]):
    flaky = Flaky(math.inf)
    retries = Retry(limit=4, delay="2 seconds", backoff=backoff)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        now = START
        for attempt, factor in enumerate(factors, start=1):
            entry = await entry_at(instance, "charge")
            assert entry.next_retry_at == now + factor * 2 * SECOND
            assert entry.attempts == attempt
            await test.advance(factor * 2000 - 1)
            assert flaky.calls == attempt, "a retry came too early"
            await test.advance(1)
            assert flaky.calls == attempt + 1
            now += factor * 2 * SECOND
        assert await state_of(instance) == "errored"

    run(scenario, order_that(flaky, retries=retries))


def test_by_default_a_step_is_tried_six_times_in_310_seconds():
    flaky = Flaky(math.inf)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("309 seconds")
        assert flaky.calls == 5
        assert await state_of(instance) == "waiting"
        await test.advance("1 second")
        assert flaky.calls == 6
        error = await error_of(instance)
        assert (error.name, error.message) == ("Unreachable", "call 6")
        await test.advance("1 day")
        assert flaky.calls == 6

    run(scenario, order_that(flaky))


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_limit_of_n_retries_means_n_plus_one_attempts(limit: int):
    flaky = Flaky(math.inf)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        entry = await entry_at(instance, "charge")
        assert (entry.status, entry.attempts, entry.max_attempts) == (
            "errored",
            limit + 1,
            limit + 1,
        )
        assert flaky.calls == limit + 1

    run(scenario, order_that(flaky, retries=Retry(limit=limit, delay=1000, backoff="constant")))


def test_an_infinite_limit_never_gives_up():
    flaky = Flaky(50, "at last")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("49 seconds")
        assert await state_of(instance) == "waiting"
        await test.advance("1 second")
        assert await output_of(instance) == "at last"
        assert flaky.calls == 51

    retries = Retry(limit=math.inf, delay="1 second", backoff="constant")
    run(scenario, order_that(flaky, retries=retries))


def test_the_delay_counts_from_the_failure_not_from_the_start_of_the_attempt():
    async def slow() -> None:
        await pass_time("3 seconds")
        raise Unreachable("slow")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("3 seconds")
        entry = await entry_at(instance, "charge")
        assert entry.next_retry_at == START + 13 * SECOND

    run(scenario, order_that(slow))


def test_the_number_of_attempts_and_the_time_of_the_next_survive_a_crash():
    flaky = Flaky(2, "paid")
    retries = Retry(limit=2, delay="1 minute", backoff="constant")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("30 seconds")
        await test.crash()
        await test.run_until_idle()
        entry = await entry_at(instance, "charge")
        assert (entry.attempts, entry.next_retry_at) == (1, START + MINUTE)
        assert flaky.calls == 1
        await test.advance("30 seconds")
        await test.crash()
        await test.advance("1 minute")
        assert await output_of(instance) == "paid"
        assert (await entry_at(instance, "charge")).attempts == 3

    run(scenario, order_that(flaky, retries=retries))


def test_an_exhausted_step_tells_the_workflow_its_name_attempts_and_last_error():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.do("charge", Flaky(math.inf), retries=Retry(limit=1, delay="1 second"))
        except StepFailedError as error:
            return [error.name, error.attempts, error.error.name, error.error.message]
        return None

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 second")
        assert await output_of(instance) == ["charge", 2, "Unreachable", "call 2"]

    run(scenario, order)


def test_a_failure_that_was_caught_is_the_same_after_a_crash_and_runs_nothing():
    flaky = Flaky(math.inf)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.do("charge", flaky, retries=Retry(limit=0))
        except StepFailedError as error:
            await step.sleep("cool off", "1 hour")
            return [error.name, error.attempts, error.error.name, error.error.message]
        return None

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == ["charge", 1, "Unreachable", "call 1"]
        assert flaky.calls == 1

    run(scenario, order)


def test_calling_a_failed_step_again_by_its_name_runs_nothing():
    flaky = Flaky(1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> int:
        refused = 0
        for _ in range(2):
            try:
                await step.do("charge", flaky, retries=Retry(limit=0))
            except StepFailedError:
                refused += 1
        return refused

    assert output(order) == 2
    assert flaky.calls == 1


def test_a_non_retryable_error_is_not_retried():
    flaky = Flaky(math.inf, error=NonRetryableError)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.do("charge", flaky)
        except StepFailedError as error:
            return [error.attempts, error.error.message]
        return None

    assert output(order) == [1, "call 1"]
    assert flaky.calls == 1


def test_an_uncaught_non_retryable_error_keeps_the_name_of_its_class():
    class CardDeclined(NonRetryableError):
        pass

    error = failure(order_that(Flaky(math.inf, error=CardDeclined)))
    assert (error.name, error.message) == ("CardDeclined", "call 1")


def test_a_timed_out_attempt_counts_as_a_failure():
    calls = Calls()

    async def slow() -> str:
        calls.names.append("slow")
        if len(calls.names) == 1:
            await pass_time("1 hour")
        return "paid"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("59 seconds")
        assert await state_of(instance) != "waiting"
        await test.advance("1 second")
        entry = await entry_at(instance, "charge")
        assert (entry.status, entry.attempts) == ("waiting", 1)
        assert entry.next_retry_at == START + MINUTE + 10 * SECOND
        assert entry.error is not None
        await test.advance("10 seconds")
        assert await output_of(instance) == "paid"

    run(scenario, order_that(slow, timeout="1 minute"))


def test_an_attempt_may_take_ten_minutes_by_default():
    async def slow(duration: str) -> str:
        await pass_time(duration)
        return "paid"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("charge", lambda: slow(event.payload), retries=Retry(limit=0))

    async def scenario(test: WorkflowTest) -> None:
        quick = await test.create("order", id="quick", params="9 minutes")
        slow = await test.create("order", id="slow", params="11 minutes")
        await test.run_until_idle()
        await test.advance("9 minutes")
        assert await output_of(quick) == "paid"
        await test.advance("1 minute")
        assert await state_of(slow) == "errored"
        await test.advance("1 hour")
        assert await state_of(slow) == "errored"

    run(scenario, order)


def test_the_result_of_an_attempt_that_timed_out_is_dropped():
    calls = Calls()

    async def charge() -> str:
        calls.names.append("charge")
        if len(calls.names) == 1:
            await pass_time("2 minutes")
            return "late"
        return "in time"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("3 minutes")
        entry = await entry_at(instance, "charge")
        assert (entry.status, entry.result) == ("waiting", None)
        await test.advance("10 minutes")
        assert await output_of(instance) == "in time"

    options = {"timeout": "1 minute", "retries": Retry(limit=1, delay="10 minutes")}
    run(scenario, order_that(charge, **options))


def test_a_callback_that_swallows_its_cancellation_does_not_beat_the_timeout():
    async def stubborn() -> str:
        try:
            await pass_time("1 hour")
        except asyncio.CancelledError:
            return "late"
        return "later"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("2 hours")
        assert await state_of(instance) == "errored"
        assert (await entry_at(instance, "charge")).result is None

    run(scenario, order_that(stubborn, timeout="1 minute", retries=Retry(limit=0)))


def test_an_attempt_learns_from_its_transaction_that_it_was_given_up():
    seen: list[StepTx] = []

    async def charge(tx: StepTx) -> str:
        seen.append(tx)
        if len(seen) == 1:
            await pass_time("1 hour")
        return "paid"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert not seen[0].cancelled()
        await test.advance("10 minutes")
        assert await output_of(instance) == "paid"
        assert [tx.cancelled() for tx in seen] == [True, False]

    options = {"timeout": "1 minute", "retries": Retry(limit=1, delay="1 minute")}
    run(scenario, order_that(charge, **options))


def test_an_attempt_may_outlast_many_retries_of_another_step():
    flaky = Flaky(3, "fetched")

    async def slow() -> str:
        await pass_time("30 seconds")
        return "paid"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        retries = Retry(limit=3, delay="5 seconds", backoff="constant")
        return await asyncio.gather(
            step.do("charge", slow), step.do("fetch", flaky, retries=retries)
        )

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("15 seconds")
        assert (await entry_at(instance, "fetch")).status == "completed"
        assert await state_of(instance) != "complete"
        await test.advance("15 seconds")
        assert await output_of(instance) == ["paid", "fetched"]

    run(scenario, order)


def test_except_exception_does_not_swallow_the_wait_for_a_retry():
    flaky = Flaky(1, "paid")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            return await step.do("charge", flaky)
        except Exception:  # noqa: BLE001 what careless authors write
            return "swallowed"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await state_of(instance) == "waiting"
        await test.crash()
        await test.advance("10 seconds")
        assert await output_of(instance) == "paid"

    run(scenario, order)
