"""Messages of queues in the harness: delivered once, after their delay, by rule."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from headwater import Retry, Step, StepTx, WorkflowEvent, WorkflowTest, workflow
from headwater.processors.queue_messages import DELIVERY


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: object, **named: object) -> None:
        asyncio.run(test(*arguments, **named))

    return run


RULES = """
[[rule]]
name = "wake"
queue = "__wkf_workflow_*"
workflow = "order"
mode = "signal_with_start"
id = 'event.body.runId'
event = "wake"
payload = 'event.body'
when = 'has(event.body.runId)'

[[rule]]
name = "begin"
queue = "__wkf_workflow_*"
workflow = "order"
mode = "start"
"""


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    if event.payload == {"waits": True} or "runId" in (event.payload or {}):
        reply = await step.wait_for_event("wake", type="wake")
        return {"woken": reply.payload}
    return event.payload


def sender(**options: object) -> object:
    @workflow("sender")
    async def send(event: WorkflowEvent, step: Step) -> None:
        def enqueue(tx: StepTx) -> None:
            tx.enqueue(event.payload["queue"], event.payload["message"], **options)

        await step.do("enqueue", enqueue, retries=Retry(limit=0))

    return send


async def sent(test: WorkflowTest, queue: str, message: object) -> None:
    await test.create("sender", id="s", params={"queue": queue, "message": message})
    await test.run_until_idle()


def orders(test: WorkflowTest) -> list[str]:
    names = (key.partition("/") for key in test._records._records)
    return sorted(instance for name, _, instance in names if name == "order")


@in_loop
async def test_a_message_is_a_run_of_the_workflow_of_its_queue():
    async with WorkflowTest([sender(), order]) as test:
        await sent(test, "order", {"sku": "x"})
        (run_id,) = orders(test)
        assert (await test.get("order", run_id).status()).output == {"sku": "x"}


@in_loop
async def test_a_delayed_message_is_delivered_when_it_is_due_and_survives_crashes():
    async with WorkflowTest([sender(delay="30 seconds"), order]) as test:
        await sent(test, "order", {"sku": "x"})
        assert not orders(test)
        await test.crash()
        await test.advance("29 seconds")
        assert not orders(test)
        await test.advance("2 seconds")
        await test.crash()
        await test.run_until_idle()
        assert len(orders(test)) == 1


@in_loop
async def test_a_rule_starts_or_signals_whatever_the_name_of_the_queue_is():
    async with WorkflowTest([sender(), order], rules=RULES) as test:
        queue = "__wkf_workflow_workflow//./src/order.ts//order"
        await test.create("order", id="o-1", params={"waits": True})
        await sent(test, queue, {"runId": "o-1"})
        assert (await test.get("order", "o-1").status()).output == {"woken": {"runId": "o-1"}}
        await test.get("sender", "s").restart()
        await test.run_until_idle()


@in_loop
async def test_a_message_that_signals_creates_what_is_missing():
    async with WorkflowTest([sender(), order], rules=RULES) as test:
        await sent(test, "__wkf_workflow_x", {"runId": "o-2"})
        assert (await test.get("order", "o-2").status()).output == {"woken": {"runId": "o-2"}}


@in_loop
async def test_a_message_without_a_destination_is_an_instance_that_has_errored():
    async with WorkflowTest([sender(), order]) as test:
        await sent(test, "no//such", 1)
        names = [key for key in test._records._records if key.startswith(f"{DELIVERY}/")]
        assert len(names) == 1
        status = await test.get(DELIVERY, names[0].partition("/")[2]).status()
        assert status.status == "errored"
        assert "without a rule" in status.error.message


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"delay": "400 days"}, "at most 365 days"),
        ({"headers": {"a": 1}}, "expected headers as texts"),
    ],
)
@in_loop
async def test_a_wrong_argument_fails_the_step(options: dict[str, object], told: str):
    async with WorkflowTest([sender(**options), order]) as test:
        await sent(test, "order", None)
        assert told in (await test.get("sender", "s").status()).error.message
