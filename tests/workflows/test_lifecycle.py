"""Pause, resume, terminate, restart: what they do, and when they are refused."""

import re
from collections.abc import Awaitable, Callable

import pytest

from headwater import (
    EventTimeoutError,
    InstanceExistsError,
    InstanceNotFoundError,
    InstanceTerminalError,
    Step,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from tests.workflows.running import (
    HOUR,
    START,
    Calls,
    Deployed,
    Instance,
    begin,
    entry_at,
    error_of,
    output_of,
    pass_time,
    run,
    state_of,
)


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    """Fails if it is told to, otherwise sleeps an hour."""
    if event.payload == "fail":
        raise LookupError("sold out")
    if event.payload != "hurry":
        await step.sleep("cool off", "1 hour")
    return "done"


async def ended(test: WorkflowTest, how: str) -> Instance:
    """An instance that has ended in this way."""
    params = {"complete": "hurry", "errored": "fail", "terminated": None}[how]
    instance = await begin(test, params=params)
    if how == "terminated":
        await instance.terminate()
        await test.run_until_idle()
    assert await state_of(instance) == how
    return instance


ENDS = pytest.mark.parametrize("how", ["complete", "errored", "terminated"])


def test_an_instance_is_active_until_it_waits_and_then_complete():
    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        assert await state_of(instance) == "active"
        await test.run_until_idle()
        assert await state_of(instance) == "waiting"
        await test.advance("1 hour")
        status = await instance.status()
        assert (status.status, status.output, status.error) == ("complete", "done", None)

    run(scenario, order)


def test_an_errored_instance_has_an_error_and_no_output():
    async def scenario(test: WorkflowTest) -> None:
        status = await (await begin(test, params="fail")).status()
        assert (status.status, status.output) == ("errored", None)
        assert status.error is not None
        assert (status.error.name, status.error.message) == ("LookupError", "sold out")

    run(scenario, order)


def test_a_paused_instance_does_not_move_although_its_timer_runs():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.run_until_idle()
        assert await state_of(instance) == "paused"
        await test.advance("5 hours")
        assert await state_of(instance) == "paused"
        assert (await entry_at(instance, "cool off")).wake_at == START + HOUR
        await instance.resume()
        await test.run_until_idle()
        assert await output_of(instance) == "done"

    run(scenario, order)


def test_resuming_before_the_timer_is_due_waits_for_what_is_left():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.advance("40 minutes")
        await instance.resume()
        await test.run_until_idle()
        assert await state_of(instance) == "waiting"
        await test.advance("20 minutes")
        assert await output_of(instance) == "done"

    run(scenario, order)


def test_a_pause_takes_effect_at_the_next_step_boundary():
    calls = Calls()

    async def slow() -> str:
        calls.names.append("first")
        await pass_time("1 minute")
        return "kept"

    @workflow("order")
    async def slow_order(event: WorkflowEvent, step: Step) -> object:
        first = await step.do("first", slow)
        await step.do("second", calls.of("second"))
        return first

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.advance("1 minute")
        assert await state_of(instance) == "paused"
        assert (await entry_at(instance, "first")).result == "kept"
        assert calls.names == ["first"]
        await instance.resume()
        await test.run_until_idle()
        assert await output_of(instance) == "kept"
        assert calls.names == ["first", "second"]

    run(scenario, slow_order)


def test_an_instance_that_is_paused_before_its_first_tick_runs_nothing():
    calls = Calls()

    @workflow("order")
    async def quick(event: WorkflowEvent, step: Step) -> None:
        await step.do("first", calls.of("first"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        await instance.pause()
        await test.run_until_idle()
        assert await state_of(instance) == "paused"
        assert calls.names == []
        await instance.resume()
        await test.run_until_idle()
        assert await state_of(instance) == "complete"

    run(scenario, quick)


def test_pausing_twice_and_resuming_what_runs_change_nothing():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.resume()
        await test.run_until_idle()
        assert await state_of(instance) == "waiting"
        for _ in range(2):
            await instance.pause()
            await test.run_until_idle()
        assert await state_of(instance) == "paused"
        await instance.resume()
        await test.advance("1 hour")
        assert await output_of(instance) == "done"

    run(scenario, order)


def test_a_pause_survives_a_crash():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.run_until_idle()
        await test.crash()
        await test.advance("2 hours")
        assert await state_of(instance) == "paused"

    run(scenario, order)


def test_a_terminated_instance_never_goes_on():
    calls = Calls()

    @workflow("order")
    async def slow_order(event: WorkflowEvent, step: Step) -> None:
        await step.sleep("cool off", "1 hour")
        await step.do("ship", calls.of("ship"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.terminate()
        await test.advance("2 hours")
        await test.crash()
        await test.advance("2 hours")
        assert await state_of(instance) == "terminated"
        assert calls.names == []

    run(scenario, slow_order)


def test_a_paused_instance_may_be_terminated():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.run_until_idle()
        await instance.terminate()
        await test.run_until_idle()
        assert await state_of(instance) == "terminated"

    run(scenario, order)


def slow_once(calls: Calls) -> object:
    """A workflow whose first attempt ever takes a minute."""

    async def charge() -> str:
        calls.names.append("charge")
        if len(calls.names) == 1:
            await pass_time("1 minute")
            return "old"
        return "new"

    @workflow("order")
    async def slow_order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("charge", charge)

    return slow_order


def test_an_attempt_that_finishes_after_its_instance_was_terminated_changes_nothing():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.terminate()
        await test.advance("5 minutes")
        assert await state_of(instance) == "terminated"
        assert [entry.result for entry in (await instance.history()).steps if entry.result] == []

    run(scenario, slow_once(Calls()))


def test_an_attempt_that_finishes_after_a_restart_changes_nothing():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.restart()
        await test.advance("5 minutes")
        assert await output_of(instance) == "new"
        first = (await instance.history(run_number=0)).steps
        assert [entry.result for entry in first if entry.result] == []

    run(scenario, slow_once(Calls()))


@ENDS
def test_an_instance_that_has_ended_may_be_restarted(how: str):
    async def scenario(test: WorkflowTest) -> None:
        instance = await ended(test, how)
        await instance.restart()
        assert await state_of(instance) == "active"
        await test.advance("1 hour")
        assert await state_of(instance) == ("errored" if how == "errored" else "complete")

    run(scenario, order)


def test_a_restart_is_a_new_run_and_the_old_one_stays_to_be_read():
    code = Deployed()

    @workflow("order")
    async def charges(event: WorkflowEvent, step: Step) -> object:
        await step.do("charge", lambda: code.version)
        await step.log.info("charged", {"version": code.version})  # noqa: PLE1205 ours
        return [event.run_number, event.payload]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, params="x")
        assert await output_of(instance) == [0, "x"]
        code.version = 2
        await instance.restart()
        await test.run_until_idle()
        assert await output_of(instance) == [1, "x"]
        histories = [await instance.history(run_number=n) for n in (0, 1)]
        histories.append(await instance.history())
        result = [(history.steps[0].result, history.steps[0].run_number) for history in histories]
        assert result == [(1, 0), (2, 1), (2, 1)]
        assert [history.logs[0].data["version"] for history in histories] == [1, 2, 2]

    run(scenario, charges)


def test_timers_of_an_earlier_run_do_not_wake_a_later_one():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("30 minutes")
        await instance.restart()
        await test.run_until_idle()
        assert (await entry_at(instance, "cool off")).wake_at == START + 1.5 * HOUR
        await test.advance("59 minutes")
        assert await state_of(instance) == "waiting"
        await test.advance("1 minute")
        assert await output_of(instance) == "done"

    run(scenario, order)


def test_events_of_an_earlier_run_are_not_delivered_to_a_later_one():
    @workflow("order")
    async def waits(event: WorkflowEvent, step: Step) -> object:
        await step.sleep("cool off", "1 hour")
        try:
            reply = await step.wait_for_event("approval", type="approval", timeout="1 hour")
        except EventTimeoutError:
            return "timed out"
        return reply.payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.send_event("approval", "old")
        await test.run_until_idle()
        await instance.restart()
        await test.advance("3 hours")
        assert await output_of(instance) == "timed out"
        assert (await instance.history()).events == []
        (event,) = (await instance.history(run_number=0)).events
        assert (event.payload, event.run_number) == ("old", 0)

    run(scenario, waits)


REFUSED: dict[str, Callable[[Instance], Awaitable[None]]] = {
    "pause": lambda instance: instance.pause(),
    "terminate": lambda instance: instance.terminate(),
    "send_event": lambda instance: instance.send_event("approval"),
}


@ENDS
@pytest.mark.parametrize("command", REFUSED)
def test_commands_to_an_instance_that_has_ended_are_refused(command: str, how: str):
    async def scenario(test: WorkflowTest) -> None:
        instance = await ended(test, how)
        with pytest.raises(InstanceTerminalError) as caught:
            await REFUSED[command](instance)
        assert caught.value.code == "INSTANCE_TERMINAL"
        assert re.search(rf"i-1.*{how}|{how}.*i-1", str(caught.value)), caught.value
        assert await state_of(instance) == how

    run(scenario, order)


@pytest.mark.parametrize(
    "ask",
    [
        lambda instance: instance.status(),
        lambda instance: instance.send_event("approval"),
        lambda instance: instance.pause(),
        lambda instance: instance.restart(),
        lambda instance: instance.history(),
    ],
    ids=["status", "send_event", "pause", "restart", "history"],
)
def test_an_instance_that_does_not_exist_is_not_found(ask: Callable[[Instance], Awaitable]):
    async def scenario(test: WorkflowTest) -> None:
        async def find_and_ask() -> None:
            await ask(test.get("order", "nobody"))

        with pytest.raises(InstanceNotFoundError, match="nobody") as caught:
            await find_and_ask()
        assert caught.value.code == "INSTANCE_NOT_FOUND"

    run(scenario, order)


def test_an_id_that_is_taken_is_refused_and_its_owner_is_left_alone():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, params="fail")
        with pytest.raises(InstanceExistsError, match="i-1") as caught:
            await test.create("order", id="i-1", params="hurry")
        assert caught.value.code == "INSTANCE_ID_ALREADY_EXISTS"
        assert (await error_of(instance)).message == "sold out"

    run(scenario, order)


def test_the_same_id_under_another_workflow_is_another_instance():
    @workflow("invoice")
    async def invoice(event: WorkflowEvent, step: Step) -> str:
        return "paid"

    async def scenario(test: WorkflowTest) -> None:
        first = await begin(test, params="hurry")
        second = await begin(test, "invoice")
        assert [await output_of(first), await output_of(second)] == ["done", "paid"]

    run(scenario, order, invoice)
