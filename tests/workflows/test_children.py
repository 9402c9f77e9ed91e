"""`step.run_workflow`: a child's output, its failure, and its end with its parent."""

import asyncio

import pytest

from headwater import ChildWorkflowError, Retry, Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import (
    Calls,
    Deployed,
    Flaky,
    begin,
    entry_at,
    error_of,
    output_of,
    run,
    state_of,
)


@workflow("invoice")
async def invoice(event: WorkflowEvent, step: Step) -> object:
    """Sleeps as long as its params say, then returns them."""
    await step.sleep("wait", (event.payload or {}).get("wait", "1 hour"))
    return {"paid": event.payload}


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    return await step.run_workflow("bill", "invoice", id="inv-1", params=event.payload)


def order_of(wait: str) -> object:
    """An order that gives its invoice, which waits so long, an hour."""

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        params = {"wait": wait}
        return await step.run_workflow(
            "bill", "invoice", id="inv-1", params=params, timeout="1 hour"
        )

    return order


def test_a_child_is_an_instance_of_its_own_whose_output_the_parent_gets():
    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test, params={"wait": "1 hour", "sku": "x"})
        child = test.get("invoice", "inv-1")
        assert [await state_of(parent), await state_of(child)] == ["waiting", "waiting"]
        entry = await entry_at(parent, "bill")
        assert (entry.name, entry.type, entry.status) == ("bill", "child", "waiting")
        await test.advance("1 hour")
        expected = {"paid": {"wait": "1 hour", "sku": "x"}}
        assert await output_of(child) == expected
        assert await output_of(parent) == expected

    run(scenario, order, invoice)


@pytest.mark.parametrize("finished", [False, True])
def test_a_crash_does_not_start_a_child_again(finished: bool):
    calls = Calls()

    @workflow("invoice")
    async def counting(event: WorkflowEvent, step: Step) -> int:
        await step.do("charge", calls.of("charge"))
        if not finished:
            await step.sleep("wait", "1 hour")
        return len(calls.names)

    @workflow("order")
    async def slow_order(event: WorkflowEvent, step: Step) -> object:
        paid = await step.run_workflow("bill", "invoice", id="inv-1")
        await step.sleep("cool off", "1 hour")
        return paid

    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test)
        for _ in range(3):
            await test.crash()
            await test.advance("1 hour")
        assert await output_of(parent) == 1
        assert calls.names == ["charge"]
        assert (await test.get("invoice", "inv-1").history()).steps[0].run_number == 0

    run(scenario, slow_order, counting)


def test_a_child_that_errors_raises_its_message_into_the_parent():
    @workflow("invoice")
    async def failing(event: WorkflowEvent, step: Step) -> None:
        raise LookupError("out of paper")

    @workflow("order")
    async def catching(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.run_workflow("bill", "invoice", id="inv-1")
        except ChildWorkflowError as error:
            return str(error)
        return None

    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test)
        assert "out of paper" in str(await output_of(parent))
        assert await state_of(test.get("invoice", "inv-1")) == "errored"

    run(scenario, catching, failing)


def test_a_child_that_takes_too_long_is_terminated_and_raises():
    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test)
        await test.advance(60 * 60 * 1000 - 1)
        assert await state_of(parent) == "waiting"
        await test.advance(1)
        await error_of(parent)
        assert await state_of(test.get("invoice", "inv-1")) == "terminated"

    run(scenario, order_of("2 hours"), invoice)


def test_a_child_that_ends_at_the_very_end_of_its_timeout_has_ended():
    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test)
        await test.advance("1 hour")
        assert await state_of(parent) == "complete"

    run(scenario, order_of("1 hour"), invoice)


@pytest.mark.parametrize("pauses", [False, True])
def test_a_child_that_ends_too_late_raises_also_if_its_parent_was_paused(pauses: bool):
    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test)
        if pauses:
            await parent.pause()
        await test.advance("3 hours")
        if pauses:
            assert await state_of(test.get("invoice", "inv-1")) == "complete"
            await parent.resume()
            await test.run_until_idle()
        assert (await error_of(parent)).name == "ChildWorkflowError"

    run(scenario, order_of("2 hours"), invoice)


def test_terminating_a_parent_ends_its_children_and_theirs():
    @workflow("basket")
    async def basket(event: WorkflowEvent, step: Step) -> object:
        return await step.run_workflow("order", "order", id="child", params={"wait": "1 hour"})

    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test, "basket")
        await parent.terminate()
        await test.run_until_idle()
        child, grandchild = test.get("order", "child"), test.get("invoice", "inv-1")
        assert [await state_of(item) for item in (parent, child, grandchild)] == ["terminated"] * 3
        await test.advance("2 hours")
        assert await state_of(grandchild) == "terminated"

    run(scenario, basket, order, invoice)


def test_a_parent_that_fails_ends_its_children():
    @workflow("order")
    async def failing(event: WorkflowEvent, step: Step) -> None:
        async def fail_later() -> None:
            await step.sleep("wait", "1 minute")
            raise LookupError("sold out")

        await asyncio.gather(step.run_workflow("bill", "invoice", id="inv-1"), fail_later())

    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test)
        await test.advance("1 minute")
        assert (await error_of(parent)).message == "sold out"
        assert await state_of(test.get("invoice", "inv-1")) == "terminated"

    run(scenario, failing, invoice)


def test_the_child_of_a_loser_ends_with_the_race():
    async def bills(step: Step) -> object:
        return await step.run_workflow("bill", "invoice", id="inv-1")

    async def waits(step: Step) -> None:
        await step.sleep("wait", "1 minute")

    @workflow("order")
    async def racing(event: WorkflowEvent, step: Step) -> object:
        return (await step.race("fastest", bill=bills, timeout=waits)).winner

    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test)
        await test.advance("1 minute")
        assert await output_of(parent) == "timeout"
        assert await state_of(test.get("invoice", "inv-1")) == "terminated"

    run(scenario, racing, invoice)


def test_restarting_a_parent_restarts_the_child_of_its_entry():
    flaky, code = Flaky(1, "paid"), Deployed()

    @workflow("invoice")
    async def failing(event: WorkflowEvent, step: Step) -> object:
        return [code.version, await step.do("charge", flaky, retries=Retry(limit=0))]

    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test)
        assert await state_of(parent) == "errored"
        code.version = 2
        await parent.restart()
        await test.run_until_idle()
        assert await output_of(parent) == [2, "paid"]
        child = test.get("invoice", "inv-1")
        assert (await entry_at(child, "charge")).run_number == 1

    run(scenario, order, failing)


def test_an_id_that_belongs_to_someone_else_raises_and_leaves_them_alone():
    async def scenario(test: WorkflowTest) -> None:
        stranger = await begin(test, "invoice", "inv-1", params={"wait": "3 hours"})
        parent = await begin(test, params={"wait": "1 minute"})
        assert "inv-1" in (await error_of(parent)).message
        assert await state_of(stranger) == "waiting"
        await test.advance("3 hours")
        assert await output_of(stranger) == {"paid": {"wait": "3 hours"}}

    run(scenario, order, invoice)


def test_two_parents_do_not_share_a_child():
    async def scenario(test: WorkflowTest) -> None:
        first = await begin(test, instance="first", params={"wait": "1 hour"})
        second = await begin(test, instance="second", params={"wait": "1 hour"})
        assert await state_of(second) == "errored"
        await test.advance("1 hour")
        assert await output_of(first) == {"paid": {"wait": "1 hour"}}

    run(scenario, order, invoice)


def test_a_parent_waits_for_many_children_at_once():
    @workflow("basket")
    async def basket(event: WorkflowEvent, step: Step) -> object:
        waits = ["3 hours", "1 hour", "2 hours"]
        paid = await asyncio.gather(
            *(
                step.run_workflow(f"bill {n}", "invoice", id=f"inv-{n}", params={"wait": wait})
                for n, wait in enumerate(waits)
            )
        )
        return [item["paid"]["wait"] for item in paid]

    async def scenario(test: WorkflowTest) -> None:
        parent = await begin(test, "basket")
        for _ in range(3):
            assert await state_of(parent) == "waiting"
            await test.crash()
            await test.advance("1 hour")
        assert await output_of(parent) == ["3 hours", "1 hour", "2 hours"]

    run(scenario, basket, invoice)
