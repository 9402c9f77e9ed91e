"""What is known to be wrong and not mended yet; a test that begins to pass fails, and moves."""

import pytest

from headwater import EventTimeoutError, Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import (
    Flaky,
    Unreachable,
    begin,
    entry_at,
    output_of,
    pass_time,
    run,
    state_of,
)


@pytest.mark.xfail(
    strict=True,
    reason="an attempt's start has no event: the owner would record one where it sends Attempt, "
    "which makes the run active and the entry pending, in the fold and in the rows",
)
def test_while_a_later_attempt_runs_its_step_is_under_way_and_its_instance_active():
    peer = Flaky(failures=1, error=Unreachable)

    async def call() -> object:
        value = peer()
        await pass_time("5 seconds")
        return value

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("call", call)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("10 seconds")
        assert peer.calls == 2
        entry = await entry_at(instance, "call")
        assert await state_of(instance) == "active"
        assert (entry.status, entry.next_retry_at) == ("pending", None)

    run(scenario, order)


@pytest.mark.xfail(
    strict=True,
    reason="at one instant of the harness's clock waits end before what else is due has had its "
    "effects: `waits.due` would have to end waits only when all that was sent until then is heard",
)
def test_an_event_that_another_workflow_sends_at_the_very_deadline_counts():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            return (await step.wait_for_event("paid", type="paid", timeout="10 seconds")).payload
        except EventTimeoutError:
            return "timed out"

    @workflow("payer")
    async def payer(event: WorkflowEvent, step: Step) -> None:
        await step.sleep("nap", "10 seconds")
        await step.do("pay", lambda tx: tx.send_event("order", "i-1", "paid", 1))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await begin(test, "payer", "p-1")
        await test.advance("10 seconds")
        assert await output_of(instance) == 1

    run(scenario, order, payer)
