"""`step.wait_for_event`: which event it takes, until when, and what becomes of the others."""

import asyncio
from datetime import datetime, timedelta

import pytest

from headwater import EventTimeoutError, Step, StepTx, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import (
    HOUR,
    MINUTE,
    START,
    Deployed,
    Instance,
    begin,
    entry_at,
    error_of,
    keys_of,
    output,
    output_of,
    pass_time,
    run,
    state_of,
)


def order_that_waits(**options: object) -> object:
    """A workflow that returns the payload of an approval, or that there was none."""

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            reply = await step.wait_for_event("approval", type="approval", **options)
        except EventTimeoutError:
            return "timed out"
        return {"payload": reply.payload}

    return order


async def consumers(instance: Instance) -> list[tuple[object, str | None]]:
    """Each event's payload, and the key of the wait that has taken it."""
    return [
        (event.payload, event.consumed_by_step_key) for event in (await instance.history()).events
    ]


def test_an_event_wakes_the_instance_that_waits_for_it():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        reply = await step.wait_for_event("approval", type="approval", timeout="24 hours")
        aware = reply.timestamp.tzinfo is not None
        return [reply.type, reply.payload, reply.timestamp == START + HOUR, aware]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        assert await state_of(instance) == "waiting"
        await instance.send_event("approval", {"approved": True})
        await test.run_until_idle()
        assert await output_of(instance) == ["approval", {"approved": True}, True, True]

    run(scenario, order)


def test_an_event_sent_before_the_wait_is_kept_for_it_with_its_own_time():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.sleep("cool off", "1 hour")
        reply = await step.wait_for_event("approval", type="approval")
        return [reply.payload, reply.timestamp == START]

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        await instance.send_event("approval", 1)
        await test.run_until_idle()
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == [1, True]

    run(scenario, order)


def test_events_of_one_type_are_taken_in_the_order_in_which_they_were_sent():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return [(await step.wait_for_event(f"line {n}", type="line")).payload for n in range(3)]

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        for payload in ("a", "b", "c"):
            await instance.send_event("line", payload)
        await test.run_until_idle()
        assert await output_of(instance) == ["a", "b", "c"]
        assert await consumers(instance) == [("a", "line 0"), ("b", "line 1"), ("c", "line 2")]

    run(scenario, order)


def test_an_event_of_another_type_stays_for_the_wait_that_wants_it():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.wait_for_event("approval", type="approval")
        second = await step.wait_for_event("payment", type="payment")
        return [first.payload, second.payload]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.send_event("payment", "paid")
        await test.run_until_idle()
        assert await state_of(instance) == "waiting"
        await instance.send_event("approval", "approved")
        await test.run_until_idle()
        assert await output_of(instance) == ["approved", "paid"]

    run(scenario, order)


def test_two_waits_at_once_never_take_the_same_event():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        replies = await asyncio.gather(
            step.wait_for_event("one", type="line"), step.wait_for_event("two", type="line")
        )
        return sorted(reply.payload for reply in replies)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.send_event("line", 1)
        await test.run_until_idle()
        assert await state_of(instance) == "waiting"
        await instance.send_event("line", 2)
        await test.run_until_idle()
        assert await output_of(instance) == [1, 2]

    run(scenario, order)


def test_an_event_that_was_taken_is_not_given_again_after_a_crash():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.wait_for_event("first", type="line")
        try:
            second = await step.wait_for_event("second", type="line", timeout="1 hour")
        except EventTimeoutError:
            return [first.payload]
        return [first.payload, second.payload]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.send_event("line", "only")
        await test.run_until_idle()
        await test.crash()
        await test.run_until_idle()
        assert await state_of(instance) == "waiting"
        await test.advance("1 hour")
        assert await output_of(instance) == ["only"]

    run(scenario, order)


def test_a_wait_without_a_timeout_ends_after_24_hours():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await entry_at(instance, "approval")).wake_at == START + 24 * HOUR
        await test.advance(24 * 60 * 60 * 1000 - 1)
        assert await state_of(instance) == "waiting"
        await test.advance(1)
        assert await output_of(instance) == "timed out"

    run(scenario, order_that_waits())


def test_an_uncaught_timeout_ends_the_instance_and_names_the_wait():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.wait_for_event("the approval", type="approval", timeout="1 minute")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        error = await error_of(instance)
        assert error.name == "EventTimeoutError"
        assert "the approval" in error.message
        assert (await entry_at(instance, "the approval")).status == "errored"

    run(scenario, order)


@pytest.mark.parametrize(
    ("sent_after", "expected"),
    [("30 seconds", {"payload": "yes"}), ("1 minute", {"payload": "yes"}), (60_001, "timed out")],
    ids=["before the end", "at the end itself", "a millisecond later"],
)
def test_an_event_counts_by_when_it_was_sent_whenever_it_is_handled(
    sent_after: str | int, expected: object
):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.run_until_idle()
        await test.advance(sent_after)
        await instance.send_event("approval", "yes")
        await test.advance("2 hours")
        assert await state_of(instance) == "paused"
        await instance.resume()
        await test.run_until_idle()
        assert await output_of(instance) == expected
        taken_by = None if expected == "timed out" else "approval"
        assert await consumers(instance) == [("yes", taken_by)]

    run(scenario, order_that_waits(timeout="1 minute"))


@pytest.mark.parametrize("turns", [0, 3])
def test_an_event_that_another_workflow_sends_at_the_very_deadline_counts(turns: int):
    async def pay(tx: StepTx) -> None:
        for _ in range(turns):
            await pass_time(0)
        tx.send_event("order", "i-1", "approval", 1)

    @workflow("payer")
    async def payer(event: WorkflowEvent, step: Step) -> None:
        await step.sleep("nap", "1 minute")
        await step.do("pay", pay)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await begin(test, "payer", "p-1")
        await test.advance("1 minute")
        assert await output_of(instance) == {"payload": 1}

    run(scenario, order_that_waits(timeout="1 minute"), payer)


def test_a_wait_ends_with_its_deadline_not_before_and_not_later():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance(59_999)
        assert await state_of(instance) == "waiting"
        await test.advance(1)
        assert await state_of(instance) == "complete"
        other = await begin(test, instance="i-2")
        await test.advance("1 hour")
        ends = [(await entry_at(item, "approval")).updated_at for item in (instance, other)]
        assert ends == [START + MINUTE, START + 2 * MINUTE]

    run(scenario, order_that_waits(timeout="1 minute"))


def test_of_a_sleep_and_a_wait_that_end_at_once_the_sleep_is_first():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def wait(step: Step) -> object:
            return await step.wait_for_events("paid", types=["paid"], timeout="1 minute")

        async def nap(step: Step) -> object:
            return await step.sleep("nap", "1 minute")

        return (await step.race("first", wait=wait, nap=nap)).winner

    async def scenario(test: WorkflowTest) -> None:
        instance, later = await begin(test), await begin(test, instance="i-2")
        await later.pause()
        await test.advance("1 hour")
        await later.resume()
        await test.run_until_idle()
        assert await output_of(instance) == await output_of(later) == "nap"

    run(scenario, order)


def test_a_wait_after_one_that_timed_out_still_gets_events():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        for attempt in range(5):
            try:
                name = f"approval {attempt}"
                reply = await step.wait_for_event(name, type="approval", timeout="1 minute")
            except EventTimeoutError:
                continue
            return [attempt, reply.payload]
        return None

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("150 seconds")
        await instance.send_event("approval", "yes")
        await test.run_until_idle()
        assert await output_of(instance) == [2, "yes"]

    run(scenario, order)


def test_a_timeout_that_was_caught_is_the_same_after_a_crash_although_an_event_came_since():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.wait_for_event("approval", type="approval", timeout="1 minute")
        except EventTimeoutError:
            await step.sleep("cool off", "1 hour")
            return "timed out"
        return "approved"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("2 minutes")
        await instance.send_event("approval")
        await test.run_until_idle()
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == "timed out"
        assert await consumers(instance) == [(None, None)]

    run(scenario, order)


@pytest.mark.parametrize("timeout", ["999 ms", 0, "366 days"])
def test_a_timeout_out_of_range_raises_value_error_into_the_workflow(timeout: str | int):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.wait_for_event("approval", type="approval", timeout=timeout)
        except ValueError as error:
            return str(error)
        return None

    assert "approval" in str(output(order))


@pytest.mark.parametrize(
    ("timeout", "expected"), [("1 second", timedelta(seconds=1)), ("365 days", 365 * 24 * HOUR)]
)
def test_the_ends_of_the_range_of_timeouts_are_allowed(timeout: str, expected: timedelta):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await entry_at(instance, "approval")).wake_at == START + expected
        await test.advance(timeout)
        assert await output_of(instance) == "timed out"

    run(scenario, order_that_waits(timeout=timeout))


def test_a_wait_that_has_begun_keeps_its_end_when_the_code_changes_its_timeout():
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        timeout = "1 hour" if code.version == 1 else "1 minute"
        try:
            await step.wait_for_event("approval", type="approval", timeout=timeout)
        except EventTimeoutError:
            return "timed out"
        return "approved"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        code.version = 2
        await test.advance("59 minutes")
        assert await state_of(instance) == "waiting"
        await test.advance("1 minute")
        assert await output_of(instance) == "timed out"

    run(scenario, order)


def test_an_event_reaches_only_the_instance_that_it_was_sent_to():
    async def scenario(test: WorkflowTest) -> None:
        first = await begin(test, instance="first")
        second = await begin(test, instance="second")
        await second.send_event("approval", "yes")
        await test.run_until_idle()
        assert await state_of(first) == "waiting"
        assert await output_of(second) == {"payload": "yes"}

    run(scenario, order_that_waits())


def order_of_lines(limit: int = 10) -> object:
    """A workflow that takes lines twice."""

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        taken = []
        for name in ("lines", "more lines"):
            lines = await step.wait_for_events(
                name, types=["line", "end"], limit=limit, timeout="5 minutes"
            )
            taken.append([[line.type, line.payload] for line in lines])
        return taken

    return order


def test_waiting_for_several_events_takes_all_that_are_there_in_order_up_to_the_limit():
    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        await instance.send_event("line", 1)
        await instance.send_event("other", 2)
        await instance.send_event("end", 3)
        await instance.send_event("line", 4)
        await test.run_until_idle()
        assert await output_of(instance) == [[["line", 1], ["end", 3]], [["line", 4]]]
        assert await consumers(instance) == [
            (1, "lines"),
            (2, None),
            (3, "lines"),
            (4, "more lines"),
        ]

    run(scenario, order_of_lines(limit=2))


def test_waiting_for_several_events_returns_as_soon_as_one_is_there_and_nothing_on_timeout():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        await instance.send_event("end", "only")
        await test.run_until_idle()
        assert await keys_of(instance) == ["lines", "more lines"]
        await test.crash()
        await test.advance("5 minutes")
        assert await output_of(instance) == [[["end", "only"]], []]

    run(scenario, order_of_lines())


def test_the_history_says_what_a_wait_waits_for():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await asyncio.gather(
            step.wait_for_event("one", type="approval", timeout="1 minute"),
            step.wait_for_events("many", types=["line", "end"], limit=3, timeout="2 minutes"),
        )

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        one, many = await entry_at(instance, "one"), await entry_at(instance, "many")
        assert (one.type, one.status, one.wait_event_type) == (
            "wait_for_event",
            "waiting",
            "approval",
        )
        assert (many.type, many.status) == ("wait_for_event", "waiting")
        assert list(many.wait_event_type or ()) == ["line", "end"]
        assert (one.wake_at, many.wake_at) == (START + MINUTE, START + 2 * MINUTE)

    run(scenario, order)


def test_items_of_several_events_have_type_payload_and_an_aware_timestamp():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        (item,) = await step.wait_for_events("lines", types=["line"], limit=1, timeout="1 hour")
        return isinstance(item.timestamp, datetime) and item.timestamp == START

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.send_event("line")
        await test.run_until_idle()
        assert await output_of(instance) is True

    run(scenario, order)


@pytest.mark.parametrize(("passed", "taken"), [("9 seconds", True), ("10 seconds", False)])
def test_an_event_that_is_sent_after_the_clock_has_reached_the_end_of_a_wait_is_late(
    passed: str, taken: bool
):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.wait_for_event("word", type="word", timeout="10 seconds")
        except EventTimeoutError:
            await step.sleep("later", "1 minute")
            return False
        return True

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance(passed)
        await instance.send_event("word")
        await test.advance("1 minute")
        assert await output_of(instance) is taken

    run(scenario, order)
