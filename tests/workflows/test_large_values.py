"""What is large together: no record of the history is more than Kafka takes, and what would be one
costs its instance at most.
"""

import asyncio

import pytest

from headwater import (
    Break,
    Continue,
    JoinError,
    Retry,
    Step,
    StepTx,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from headwater.processors.runs.limits import FAILURE_MESSAGE_MAX, POSTS_BYTES_MAX
from headwater.schemas.failures import MailboxFullError
from headwater.schemas.topics import MAX_RECORD_BYTES, MAX_VALUE_BYTES
from tests.workflows.running import begin, entry_at, error_of, output_of, run, state_of

NEVER = Retry(limit=0)
LARGE = "x" * 900_000
HUGE = "x" * 12_000_000


@workflow("echo")
async def echo(event: WorkflowEvent, step: Step) -> object:
    return event.payload


@workflow("nested")
async def nested(event: WorkflowEvent, step: Step) -> object:
    return await step.run_workflow("inner", "order", id="inner")


def raising(error: BaseException) -> object:
    def callback() -> None:
        raise error

    return callback


def assert_taken(test: WorkflowTest) -> None:
    """All that the log holds is of a size that Kafka takes."""
    assert max(len(record) for record in (*test._history, *test._commands)) <= MAX_VALUE_BYTES
    assert MAX_VALUE_BYTES < MAX_RECORD_BYTES


def test_many_children_may_begin_at_once():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        children = [step.run_workflow(f"c{n}", "echo", params=LARGE) for n in range(13)]
        return sum(len(item) for item in await asyncio.gather(*children))

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await begin(test)) == 13 * len(LARGE)
        assert_taken(test)

    run(scenario, order, echo)


@pytest.mark.parametrize("caught", [True, False])
def test_many_branches_may_fail_at_length(caught: bool):
    async def branch(step: Step) -> None:
        await step.do("fail", raising(ValueError("e" * 900_000)), retries=NEVER)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.join("j", **{f"b{n}": branch for n in range(14)})
        except JoinError as error:
            if not caught:
                raise
            return [len(item.message) for item in error.errors.values()]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert_taken(test)
        if caught:
            assert await output_of(instance) == [FAILURE_MESSAGE_MAX] * 14
            return
        error = await error_of(instance)
        assert (error.name, len(error.message)) == ("JoinError", FAILURE_MESSAGE_MAX)
        await instance.retry()
        await test.run_until_idle()
        assert await state_of(instance) == "errored"
        await test.crash()
        assert (await error_of(instance)).message == error.message

    run(scenario, order)


@pytest.mark.parametrize("where", ["step", "body", "rollback", "child"])
def test_an_error_may_be_as_long_as_it_likes(where: str):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        if where == "rollback":
            await step.checkpoint("from here")
            undo = lambda _: raising(ValueError(HUGE))()  # noqa: E731
            await step.do("done", lambda: None, rollback=undo)
        if where == "step":
            await step.do("fail", raising(ValueError(HUGE)), retries=Retry(limit=1, delay="1 s"))
        raise ValueError(HUGE)

    async def scenario(test: WorkflowTest) -> None:
        name = "nested" if where == "child" else "order"
        instance = await begin(test, name)
        await test.advance("1 hour")
        error = await error_of(instance)
        assert error.name == ("ChildWorkflowError" if where == "child" else "ValueError")
        assert len(error.message) == FAILURE_MESSAGE_MAX
        assert error.message.endswith("xxx… (cut; it had 12000000 characters)")
        assert_taken(test)

    run(scenario, order, nested)


def send(tx: StepTx, what: str, number: int) -> None:
    match what:
        case "create":
            tx.create_workflow("echo", id=f"i-{number}", params=LARGE)
        case "publish":
            tx.publish("topic", None, LARGE)
        case "key":
            tx.publish("topic", LARGE, None)
        case _:
            tx.send_event("echo", "i", "line", LARGE)


@pytest.mark.parametrize("what", ["create", "publish", "key", "event"])
def test_a_step_that_sends_too_much_fails_for_good(what: str):
    calls = []

    def callback(tx: StepTx) -> None:
        calls.append(1)
        for number in range(20):
            send(tx, what, number)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("send", callback)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        error = await error_of(instance)
        assert error.name == "UnserialisableError"
        assert f"at most 1000 records and commands, of {POSTS_BYTES_MAX} bytes" in error.message
        assert "found 2 of 1800" in error.message
        assert "send them from several steps, or store large data elsewhere" in error.message
        assert (len(calls), test.published("topic")) == (1, [])

    run(scenario, order)


def test_what_a_step_sends_is_counted_in_bytes():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("send", lambda tx: tx.publish("topic", "é" * 500_000, "é" * 500_000))

    async def scenario(test: WorkflowTest) -> None:
        assert "found 1 of 2000" in (await error_of(await begin(test))).message

    run(scenario, order)


@workflow("patient")
async def patient(event: WorkflowEvent, step: Step) -> object:
    """Waits for many events side by side."""
    waits = [step.wait_for_event(f"w{n}", type=f"t{n}") for n in range(event.payload)]
    return sum(len(item.payload) for item in await asyncio.gather(*waits))


async def paused_with_events(test: WorkflowTest, count: int) -> object:
    instance = await begin(test, "patient", params=count)
    await instance.pause()
    for number in range(count):
        await instance.send_event(f"t{number}", LARGE)
    await instance.resume()
    await test.run_until_idle()
    return instance


def test_what_is_decided_at_once_and_fits_is_decided():
    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await paused_with_events(test, 11)) == 11 * len(LARGE)
        assert_taken(test)

    run(scenario, patient)


def test_what_is_decided_at_once_and_does_not_fit_costs_its_instance_alone():
    async def scenario(test: WorkflowTest) -> None:
        other = await begin(test, "patient", "i-2", 1)
        instance = await paused_with_events(test, 13)
        error = await error_of(instance)
        assert error.name == "RECORD_TOO_LARGE"
        assert "expected what is decided at once to have at most 10485760 bytes" in error.message
        assert_taken(test)
        await test.crash()
        assert (await error_of(instance)).message == error.message
        await other.send_event("t0", "1")
        await test.run_until_idle()
        assert await output_of(other) == 1

        # Begun anew, each wait takes its event by itself.
        await instance.retry()
        await test.run_until_idle()
        assert await output_of(instance) == 13 * len(LARGE)
        assert_taken(test)

    run(scenario, patient)


def test_the_children_of_an_instance_end_with_it():
    @workflow("sleeper")
    async def sleeper(event: WorkflowEvent, step: Step) -> object:
        await step.sleep("nap", "1 day")

    @workflow("family")
    async def family(event: WorkflowEvent, step: Step) -> object:
        child = step.run_workflow("child", "sleeper", id="child")
        waits = [step.wait_for_event(f"w{n}", type=f"t{n}") for n in range(13)]
        await asyncio.gather(child, *waits)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "family")
        await instance.pause()
        for number in range(13):
            await instance.send_event(f"t{number}", LARGE)
        await instance.resume()
        await test.run_until_idle()
        assert await state_of(instance) == "errored"
        assert (await entry_at(instance, "child")).status == "cancelled"
        assert await state_of(test.get("sleeper", "child")) == "terminated"

    run(scenario, family, sleeper)


@workflow("collector")
async def collector(event: WorkflowEvent, step: Step) -> int:
    """Keeps what each of its steps gives."""
    for number in range(event.payload):
        await step.do(f"s{number}", lambda: LARGE)
    await step.wait_for_event("go", type="go")
    return event.payload


def test_a_run_whose_results_are_too_large_together_fails_by_the_name_of_the_bound():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "collector", params=40)
        error = await error_of(instance)
        assert error.name == "RUN_TOO_LARGE"
        assert "expected the state of a run to have at most 33554432 bytes" in error.message
        assert (await instance.history()).steps[-1].name == "s36"
        assert_taken(test)
        await test.crash()
        assert (await error_of(instance)).message == error.message

    run(scenario, collector)


def test_events_take_half_of_a_run_and_the_next_is_refused_while_its_steps_go_on():
    async def scenario(test: WorkflowTest) -> None:
        other = await begin(test, "collector", "i-2", params=1)
        instance = await begin(test, "collector", params=12)
        for _ in range(18):
            await instance.send_event("line", LARGE)
        with pytest.raises(MailboxFullError, match="at most 16777216 bytes of events"):
            await instance.send_event("line", LARGE)
        await test.crash()
        with pytest.raises(MailboxFullError):
            await instance.send_event("line", LARGE)
        for item, count in ((instance, 12), (other, 1)):
            await item.send_event("go", None)
            await test.run_until_idle()
            assert await output_of(item) == count

    run(scenario, collector)


def test_a_loop_that_forgets_goes_on_for_ever():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def body(step: Step, state: int) -> object:
            await step.do("large", lambda: LARGE)
            return Break(state) if state == 60 else Continue(state + 1)

        return await step.loop("pages", body, state=0, history_every=5, history_keep=1)

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await begin(test)) == 60

    run(scenario, order)
