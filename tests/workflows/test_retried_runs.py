"""Errored instances that are retried: what is done again, what is kept, when they are refused."""

import asyncio

import pytest

from headwater import (
    Break,
    Continue,
    Retry,
    RollbackError,
    Step,
    StepFailedError,
    StepTx,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from headwater.schemas.failures import InstanceNotErroredError, StepNotFoundError
from tests.workflows.mending import retried, well
from tests.workflows.running import (
    HOUR,
    MINUTE,
    START,
    Calls,
    Deployed,
    begin,
    entry_at,
    error_of,
    keys_of,
    output_of,
    pass_time,
    published,
    run,
    state_of,
)


def test_a_retry_does_the_failed_step_again_and_nothing_that_is_done():
    work = well("quote", "ship")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        quote = await step.do("quote", work.of("quote"))
        paid = await step.do("charge", work.of("charge"))
        return [quote, paid, await step.do("ship", work.of("ship"))]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await error_of(instance)).message == "charge is broken"
        assert work.taken() == ["quote", "charge"]
        work.mended.add("charge")
        await test.advance("1 day")
        await retried(test, instance)
        assert await output_of(instance) == ["quote", "charge", "ship"]
        assert work.taken() == ["charge", "ship"]
        assert (await instance.status()).run_number == 1
        assert await keys_of(instance) == ["quote", "charge", "ship"]

    run(scenario, order)


def test_the_run_before_stays_as_it_was_and_a_line_says_what_is_done_again():
    work = well("quote")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("quote", work.of("quote"))
        return await step.do("charge", work.of("charge"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended.add("charge")
        await retried(test, instance)
        before, now = await instance.history(0), await instance.history()
        assert [(step.step_key, step.status) for step in before.steps] == [
            ("quote", "completed"), ("charge", "errored"),
        ]  # fmt: skip
        assert [(step.step_key, step.status) for step in now.steps] == [
            ("quote", "completed"), ("charge", "completed"),
        ]  # fmt: skip
        assert [(line.category, line.message) for line in now.logs] == [
            ("system", "run 0 is retried; done again: charge; kept: 1 entries"),
        ]
        assert now.logs[0].data == {"from": None, "again": ["charge"], "reopened": []}

    run(scenario, order)


def test_what_a_retry_keeps_outlives_crashes_before_it_and_after_it():
    work = well("a", "c")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        result = [await step.do("a", work.of("a")), await step.do("b", work.of("b"))]
        await step.sleep("nap", "1 hour")
        return [*result, await step.do("c", work.of("c"))]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        work.mended.add("b")
        await retried(test, instance)
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == ["a", "b", "c"]
        assert work.taken() == ["a", "b", "b", "c"]

    run(scenario, order)


async def three_seconds(test: WorkflowTest, *, crashes: bool) -> None:
    for _ in range(3):
        if crashes:
            await test.crash()
        await test.advance("1 second")


@pytest.mark.parametrize("crashes", [False, True])
def test_what_is_done_again_keeps_its_place_among_the_steps(crashes: bool):
    work, nights = well("look"), 0

    def day() -> None:
        nonlocal nights
        nights += 1
        assert nights % 2 == 0, "at night nobody answers"

    def undo(_: object) -> None:
        """Have the step done again by a retry."""

    async def errs() -> None:
        if nights <= 6:
            raise RollbackError("days are undone")

    async def turn(step: Step, state: int) -> Continue | Break:
        await step.do("day", day, retries=Retry(limit=1, delay="1 second"), rollback=undo)
        return Continue(state + 1) if state < 2 else Break(state)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("begin")
        await step.loop("days", turn, state=0, commit_interval=1)
        await step.do("look", work.of("look"))
        await errs()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await three_seconds(test, crashes=False)
        before = await keys_of(instance)
        assert before[-1] == "look"
        await retried(test, instance)
        await three_seconds(test, crashes=crashes)
        assert (await instance.status()).status == "complete"
        assert nights == 2 * (3 + 3)
        assert await keys_of(instance) == before

    run(scenario, order)


def test_a_step_that_fails_again_can_be_retried_again():
    work = well("a")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return [await step.do(name, work.of(name)) for name in "abc"]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await retried(test, instance)
        assert (await error_of(instance)).message == "b is broken"
        work.mended.add("b")
        await retried(test, instance)
        assert (await error_of(instance)).message == "c is broken"
        await test.crash()
        work.mended.add("c")
        await retried(test, instance)
        assert await output_of(instance) == ["a", "b", "c"]
        assert work.taken() == ["a", "b", "b", "b", "c", "c"]
        assert (await instance.status()).run_number == 3

    run(scenario, order)


def test_the_code_sees_the_same_time_numbers_and_uuids():
    seen: list[object] = []
    work = well()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        seen.append([event.timestamp, await step.now(), await step.random(), await step.uuid()])
        await step.do("charge", work.of("charge"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        work.mended.add("charge")
        await retried(test, instance)
        assert await state_of(instance) == "complete"
        assert seen[0] == seen[-1]
        assert seen[0][0] == START

    run(scenario, order)


def test_from_a_step_on_all_is_done_again_that_was_reached_after_it():
    work = well("a", "b", "c")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return [await step.do(name, work.of(name)) for name in "abcd"]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.taken()
        work.mended.add("d")
        await retried(test, instance, "b")
        assert await output_of(instance) == [*"abcd"]
        assert work.taken() == [*"bcd"]

    run(scenario, order)


def test_a_step_that_is_not_there_cannot_be_retried_from():
    work = well()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("a", work.of("a"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        with pytest.raises(StepNotFoundError, match="'b'"):
            await instance.retry(from_step="b")
        assert (await instance.status()).run_number == 0

    run(scenario, order)


@pytest.mark.parametrize("status", ["waiting", "paused", "complete", "terminated"])
def test_only_what_has_errored_is_retried(status: str):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.sleep("nap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if status == "complete":
            await test.advance("1 hour")
        elif status != "waiting":
            await (instance.pause() if status == "paused" else instance.terminate())
        assert await state_of(instance) == status
        with pytest.raises(InstanceNotErroredError, match="restart"):
            await instance.retry()

    run(scenario, order)


def test_code_that_failed_itself_runs_again_over_everything_once_it_is_mended():
    work, code = well("a"), Deployed()

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        result = await step.do("a", work.of("a"))
        if code.version == 1:
            raise KeyError("typo")
        return result

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await error_of(instance)).name == "KeyError"
        code.version = 2
        await retried(test, instance)
        assert await output_of(instance) == "a"
        assert work.taken() == ["a"]

    run(scenario, order)


def test_a_strict_workflow_that_was_changed_against_its_history_is_mended_by_removed():
    work, code = well("a", "b"), Deployed()

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        if code.version == 1:
            await step.do("a", work.of("a"))
        if code.version == 3:
            await step.removed("a", kind="step")
        await step.sleep("nap", "1 hour")
        return await step.do("b", work.of("b"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        code.version = 2
        await test.advance("1 hour")
        assert (await error_of(instance)).name == "HistoryDivergedError"
        code.version = 3
        await retried(test, instance)
        assert await output_of(instance) == "b"
        assert work.taken() == ["a", "b"]

    run(scenario, order)


def test_an_error_that_was_met_is_not_tried_again():
    work = well("plan b")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.do("plan a", work.of("plan a"))
        except StepFailedError:
            await step.do("plan b", work.of("plan b"))
        return await step.do("last", work.of("last"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended |= {"plan a", "last"}
        work.taken()
        await retried(test, instance)
        assert await output_of(instance) == "last"
        assert work.taken() == ["last"]
        assert (await entry_at(instance, "plan a")).status == "errored"

    run(scenario, order)


def test_two_that_fail_at_once_are_both_done_again():
    work = well("c")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await asyncio.gather(*(step.do(name, work.of(name)) for name in "abc"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended |= {"a", "b"}
        work.taken()
        await retried(test, instance)
        assert await output_of(instance) == [*"abc"]
        assert "c" not in work.taken()

    run(scenario, order)


def test_a_sleep_that_was_under_way_goes_on_and_a_wait_begins_anew():
    work = well()

    async def fails_later() -> None:
        await pass_time("5 minutes")
        work.of("pay")()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        got, _, _ = await asyncio.gather(
            step.wait_for_event("answer", type="answer", timeout="1 hour"),
            step.sleep("nap", "1 hour"),
            step.do("pay", fails_later),
        )
        return got.payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("5 minutes")
        await error_of(instance)
        await test.advance("20 minutes")
        work.mended.add("pay")
        await retried(test, instance)
        assert (await entry_at(instance, "nap")).wake_at == START + HOUR
        assert (await entry_at(instance, "answer")).wake_at == START + HOUR + 25 * MINUTE
        await test.advance("50 minutes")
        assert (await entry_at(instance, "nap")).status == "completed"
        await instance.send_event("answer", 42)
        await test.run_until_idle()
        assert await output_of(instance) == 42

    run(scenario, order)


def test_attempts_of_a_step_that_were_cut_off_count_no_more():
    work = well()
    attempts = Calls()

    def flaky() -> object:
        attempts.of("call")()
        if len(attempts.names) < 4:
            raise ConnectionError("no answer")
        return "ok"

    async def fails_later() -> None:
        await pass_time("1 minute")
        work.of("pay")()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        result = await asyncio.gather(
            step.do("flaky", flaky, retries=Retry(limit=2, delay="1 hour")),
            step.do("pay", fails_later),
        )
        return result[0]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        await error_of(instance)
        work.mended.add("pay")
        await retried(test, instance)
        assert (await entry_at(instance, "flaky")).attempts == 1
        await test.advance("1 minute")
        await test.advance("1 day")
        assert await output_of(instance) == "ok"

    run(scenario, order)


def test_events_that_nobody_has_taken_are_taken_over_and_those_that_were_stay_taken():
    work = well()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.wait_for_event("first", type="line")
        await step.do("pay", work.of("pay"))
        second = await step.wait_for_event("second", type="line")
        return [first.payload, second.payload]

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        for number in (1, 2, 3):
            await instance.send_event("line", number)
        await test.run_until_idle()
        await error_of(instance)
        assert [event.consumed_by_step_key for event in (await instance.history()).events] == [
            "first", None, None,
        ]  # fmt: skip
        await test.crash()
        work.mended.add("pay")
        await retried(test, instance)
        assert await output_of(instance) == [1, 2]
        now, before = await instance.history(), await instance.history(0)
        assert [(event.payload, event.consumed_by_step_key) for event in now.events] == [
            (2, "second"), (3, None),
        ]  # fmt: skip
        assert [event.consumed_by_step_key for event in before.events] == ["first", None, None]

    run(scenario, order)


def test_from_a_wait_on_events_that_were_taken_do_not_come_again():
    work = well()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        got = await step.wait_for_event("line", type="line")
        await step.do("pay", work.of("pay"))
        return got.payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        await instance.send_event("line", 1)
        await test.run_until_idle()
        work.mended.add("pay")
        await retried(test, instance, "line")
        assert await state_of(instance) == "waiting"
        await instance.send_event("line", 2)
        await test.run_until_idle()
        assert await output_of(instance) == 2

    run(scenario, order)


def test_a_child_that_failed_is_started_again_and_one_that_is_done_is_not():
    work = well("good")

    @workflow("invoice")
    async def invoice(event: WorkflowEvent, step: Step) -> object:
        return await step.do("pay", work.of(event.payload))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return [
            await step.run_workflow(name, "invoice", id=name, params=name)
            for name in ("good", "bad")
        ]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await error_of(instance)).name == "ChildWorkflowError"
        work.taken()
        work.mended.add("bad")
        await retried(test, instance)
        assert await output_of(instance) == ["good", "bad"]
        assert work.taken() == ["bad"]
        runs = [(await test.get("invoice", n).status()).run_number for n in ("good", "bad")]
        assert runs == [0, 1]

    run(scenario, order, invoice)


def test_a_child_that_ended_with_its_parent_is_started_again():
    work = well()

    @workflow("sleeper")
    async def sleeper(event: WorkflowEvent, step: Step) -> str:
        await step.sleep("nap", "1 hour")
        return "rested"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await asyncio.gather(
            step.run_workflow("child", "sleeper", id="c-1"), step.do("pay", work.of("pay"))
        )

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await state_of(test.get("sleeper", "c-1")) == "terminated"
        work.mended.add("pay")
        await retried(test, instance)
        assert await state_of(test.get("sleeper", "c-1")) == "waiting"
        await test.advance("1 hour")
        assert await output_of(instance) == ["rested", "pay"]

    run(scenario, order, sleeper)


def test_a_child_that_is_retried_itself_ends_well_and_its_parent_stays_as_it_is():
    work = well()

    @workflow("invoice")
    async def invoice(event: WorkflowEvent, step: Step) -> object:
        return await step.do("pay", work.of("pay"))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.run_workflow("child", "invoice", id="c-1")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended.add("pay")
        child = test.get("invoice", "c-1")
        await retried(test, child)
        assert await output_of(child) == "pay"
        assert await state_of(instance) == "errored"

    run(scenario, order, invoice)


def test_posts_of_steps_that_are_kept_are_not_sent_again():
    work = well()

    def tell(tx: StepTx) -> None:
        tx.publish("orders", "o-1", 1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("tell", tell)
        await step.do("pay", work.of("pay"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended.add("pay")
        await retried(test, instance)
        assert await state_of(instance) == "complete"
        assert published(test, "orders") == [("o-1", 1)]

    run(scenario, order)


def test_log_lines_before_what_is_done_again_are_told_as_replayed():
    work = well("a")

    @workflow("order", replayed_lines=True)
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.log.info("begins")
        await step.do("a", work.of("a"))
        await step.do("pay", work.of("pay"))
        await step.log.info("ends")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended.add("pay")
        await retried(test, instance)
        lines = [(line.message, line.is_replay) for line in (await instance.history()).logs]
        assert lines[1:] == [("begins", True), ("ends", False)]

    run(scenario, order)


def test_a_run_that_was_retried_is_restarted_from_the_beginning():
    work = well("a")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return [await step.do(name, work.of(name)) for name in "ab"]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        work.mended.add("b")
        await retried(test, instance)
        await instance.restart()
        await test.run_until_idle()
        assert await output_of(instance) == [*"ab"]
        assert work.taken() == [*"ab", "b", *"ab"]

    run(scenario, order)
