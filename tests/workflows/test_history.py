"""`instance.history()`: the shape of its rows, and their order."""

import asyncio
from datetime import datetime

from headwater import (
    Break,
    Continue,
    NonRetryableError,
    Step,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from tests.workflows.running import (
    CRASH,
    HOUR,
    START,
    Calls,
    Flaky,
    begin,
    entry_at,
    keys_of,
    pass_time,
    run,
)


def is_aware(moment: object) -> bool:
    return isinstance(moment, datetime) and moment.tzinfo is not None


def test_a_completed_step_has_every_attribute():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("quote", lambda: {"price": 3})

    async def scenario(test: WorkflowTest) -> None:
        (entry,) = (await (await begin(test)).history()).steps
        assert (entry.step_key, entry.name, entry.type) == ("quote", "quote", "do")
        assert (entry.status, entry.attempts, entry.max_attempts) == ("completed", 1, 6)
        assert (entry.result, entry.error) == ({"price": 3}, None)
        assert (entry.next_retry_at, entry.wake_at, entry.wait_event_type) == (None, None, None)
        assert (entry.created_at, entry.updated_at) == (START, START)
        assert is_aware(entry.created_at)
        assert is_aware(entry.updated_at)
        assert entry.run_number == 0

    run(scenario, order)


def test_a_row_keeps_the_time_of_its_creation_and_shows_that_of_its_last_change():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.sleep("cool off", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        entry = await entry_at(instance, "cool off")
        assert (entry.created_at, entry.updated_at) == (START, START + HOUR)
        assert (entry.wake_at, entry.status) == (START + HOUR, "completed")

    run(scenario, order)


def test_an_event_has_every_attribute_before_and_after_it_is_taken():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.sleep("cool off", "1 hour")
        await step.wait_for_event("approval", type="approval")
        await step.sleep("warm up", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.send_event("approval", {"approved": True})
        await test.run_until_idle()
        (event,) = (await instance.history()).events
        assert (event.type, event.payload) == ("approval", {"approved": True})
        assert (event.created_at, event.run_number) == (START, 0)
        assert (event.delivered_at, event.consumed_by_step_key) == (None, None)
        await test.advance("1 hour")
        (event,) = (await instance.history()).events
        assert event.created_at == START
        assert event.delivered_at == START + HOUR
        assert is_aware(event.delivered_at)
        assert event.consumed_by_step_key == "approval"

    run(scenario, order)


def test_a_log_line_has_every_attribute():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def charge() -> None:
            await step.log.info("charged", {"amount": 125}, category="payments")  # noqa: PLE1205 ours

        await step.do("charge", charge)

    async def scenario(test: WorkflowTest) -> None:
        logs = (await (await begin(test)).history()).logs
        (line,) = [line for line in logs if line.category == "payments"]
        assert (line.level, line.message, line.data) == ("info", "charged", {"amount": 125})
        assert (line.step_key, line.attempt, line.is_replay) == ("charge", 1, False)
        assert line.created_at == START
        assert is_aware(line.created_at)

    run(scenario, order)


def test_each_kind_of_entry_has_its_type():
    async def one_step(step: Step) -> object:
        return await step.do("load", lambda: 1)

    async def one_page(step: Step, state: dict) -> object:
        return Break(None)

    @workflow("invoice")
    async def invoice(event: WorkflowEvent, step: Step) -> str:
        return "paid"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("a", lambda: 1)
        await step.checkpoint("b")
        await step.sleep("c", 0)
        await step.wait_for_event("d", type="go")
        await step.wait_for_events("e", types=["go"], limit=1, timeout="1 hour")
        await step.loop("f", one_page, state={})
        await step.join("g", only=one_step)
        await step.race("h", only=one_step)
        await step.run_workflow("i", "invoice", id="inv-1")
        await step.removed("j", kind="step")

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        await instance.send_event("go", 1)
        await instance.send_event("go", 2)
        await test.run_until_idle()
        steps = [entry for entry in (await instance.history()).steps if "/" not in entry.step_key]
        assert [(entry.name, entry.type) for entry in steps] == [
            ("a", "do"),
            ("b", "checkpoint"),
            ("c", "sleep"),
            ("d", "wait_for_event"),
            ("e", "wait_for_event"),
            ("f", "loop"),
            ("g", "join"),
            ("h", "race"),
            ("i", "child"),
            ("j", "removed"),
        ]
        assert {entry.status for entry in steps[:-1]} == {"completed"}

    run(scenario, order, invoice)


def test_rows_are_in_the_order_in_which_entries_were_first_reached():
    flaky = Flaky(1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await asyncio.gather(
            step.do("zeta", flaky),
            step.sleep("wait", "5 seconds"),
            step.do("alpha", lambda: 1),
        )
        await step.do("middle", lambda: 1)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await keys_of(instance) == ["zeta", "wait", "alpha"]
        await test.crash()
        await test.advance("10 seconds")
        assert await keys_of(instance) == ["zeta", "wait", "alpha", "middle"]

    run(scenario, order)


def test_the_history_of_an_instance_that_did_nothing_is_empty_lists():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        history = await (await begin(test)).history()
        assert (history.steps, history.events, history.tokens) == ([], [], [])
        assert [line for line in history.logs if line.category != "system"] == []

    run(scenario, order)


def test_reading_history_and_status_changes_neither():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        lines = await step.do("lines", lambda: ["tea"])
        await step.sleep("cool off", "1 hour")
        await step.do("count", lambda: len(lines))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        (await instance.history()).steps[0].result.append("poison")
        await test.crash()
        await test.advance("1 hour")
        assert (await entry_at(instance, "lines")).result == ["tea"]
        assert (await entry_at(instance, "count")).result == 1

    run(scenario, order)


@CRASH
def test_what_a_loop_begins_anew_comes_behind_what_was_reached_before(crash: bool):
    """Also for a retry from there, which does again what was reached later, and nothing else."""
    calls = Calls()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def turn(step: Step, number: int) -> Continue | Break:
            await step.do("work", lambda: pass_time("1 minute"))
            return Break(number) if number else Continue(1)

        async def beside() -> None:
            await step.do("charge", calls.of("charge"))
            await step.sleep("rest", "10 minutes")
            raise NonRetryableError("sold out")

        await asyncio.gather(step.loop("turns", turn, state=0, commit_interval=1), beside())

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        # The second iteration is committed, and nothing is recorded of its step.
        await test.advance("1 minute")
        if crash:
            await test.crash()
        await test.advance("9 minutes")
        assert await keys_of(instance) == [
            "turns",
            "turns/~0/work",
            "charge",
            "rest",
            "turns/~1/work",
        ]
        await instance.retry(from_step="turns/~1/work")
        await test.advance("10 minutes")
        assert calls.names == ["charge"]

    run(scenario, order)
