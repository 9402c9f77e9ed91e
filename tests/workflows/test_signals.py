"""Events that create the instance that they are for."""

import pytest

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.failures import InvalidLabelsError
from headwater.schemas.history import Label, Once, ReplySent, Sender, SendEvent, StartRun
from tests.workflows.running import Instance, begin, output_of, run, state_of

BLUE = (Label("team", "blue"),)


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    """Waits for two lines."""
    await step.log.info("begins")
    first = await step.wait_for_event("first", type="line")
    second = await step.wait_for_event("second", type="line")
    return [event.payload, first.payload, second.payload]


async def tell(
    test: WorkflowTest, number: int, start: str | None = '"made"', workflow: str = "order"
) -> ReplySent:
    """A program sends its event of this number."""
    sender = Sender("~hooks", "webhooks-3", 0, number)
    event_id = f"~hooks/webhooks-3#{number}"
    command = SendEvent(event_id, "line", str(number), sender, start, labels=BLUE)
    reply = await test.send(workflow, "i-1", command)
    await test.run_until_idle()
    return reply


async def told(test: WorkflowTest, *numbers: int) -> Instance:
    for number in numbers:
        assert (await tell(test, number)).code == ""
    return test.get("order", "i-1")


def test_an_event_creates_its_instance_which_finds_it_in_its_mailbox():
    async def scenario(test: WorkflowTest) -> None:
        instance = await told(test, 1)
        assert await state_of(instance) == "waiting"
        history = await instance.history()
        assert [(event.payload, event.consumed_by_step_key) for event in history.events] == [
            (1, "first"),
        ]
        assert [line.is_replay for line in history.logs] == [False]
        state = test.runs("order", "i-1")[0]
        assert state is not None
        assert state.labels == BLUE

    run(scenario, order)


def test_the_event_is_another_for_an_instance_that_is_there():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, params="begun")
        await told(test, 1, 2)
        assert await output_of(instance) == ["begun", 1, 2]

    run(scenario, order)


@pytest.mark.parametrize("crashes", [False, True])
def test_a_copy_is_known_also_of_the_event_that_created_and_after_the_end(crashes: bool):
    async def scenario(test: WorkflowTest) -> None:
        instance = await told(test, 1)
        for _ in range(2):
            if crashes:
                await test.crash()
            assert (await tell(test, 1)).code == "EVENT_ALREADY_RECEIVED"
        await told(test, 2)
        assert await output_of(instance) == ["made", 1, 2]
        if crashes:
            await test.crash()
        assert (await tell(test, 2)).code == "EVENT_ALREADY_RECEIVED"
        assert (await tell(test, 3)).code == "INSTANCE_TERMINAL"
        assert (await instance.status()).run_number == 0

    run(scenario, order)


def test_a_copy_is_known_after_a_restart():
    async def scenario(test: WorkflowTest) -> None:
        instance = await told(test, 1, 2)
        await instance.restart()
        assert (await tell(test, 2)).code == "EVENT_ALREADY_RECEIVED"
        assert await state_of(instance) == "waiting"

    run(scenario, order)


async def tell_once(test: WorkflowTest, key: str, line: str, start: str | None = '"made"') -> str:
    """A caller sends an event under a key, perhaps not for the first time."""
    command = SendEvent(f"evt-{line}", "line", line, None, start, Once(key, line))
    code = (await test.send("order", "i-1", command)).code
    await test.run_until_idle()
    return code


@pytest.mark.parametrize("crashes", [False, True])
def test_an_event_under_a_key_is_received_once_also_after_crashes_ends_and_restarts(crashes: bool):
    async def again(test: WorkflowTest) -> list[str]:
        if crashes:
            await test.crash()
        return [await tell_once(test, "k", "1"), await tell_once(test, "k", "2")]

    async def scenario(test: WorkflowTest) -> None:
        known = ["EVENT_ALREADY_RECEIVED", "idempotency_conflict"]
        assert await tell_once(test, "k", "1") == ""
        assert await again(test) == known
        instance = await told(test, 2)
        assert await output_of(instance) == ["made", 1, 2]
        assert await again(test) == known
        await instance.restart()
        assert await again(test) == known
        await test.advance("1 day")
        await instance.restart()
        assert await tell_once(test, "l", "3") == ""
        assert await tell_once(test, "k", "2") == ""

    run(scenario, order)


@pytest.mark.parametrize("crashes", [False, True])
def test_an_instance_is_created_once_under_a_key_for_as_long_as_it_is(crashes: bool):
    async def start(test: WorkflowTest, key: str, params: str) -> str:
        if crashes:
            await test.crash()
        return (await test.send("order", "i-1", StartRun(params, once=Once(key, params)))).code

    async def scenario(test: WorkflowTest) -> None:
        assert await start(test, "k", "1") == ""
        for _ in range(2):
            assert await start(test, "k", "1") == "INSTANCE_CREATED_BEFORE"
            assert await start(test, "k", "2") == "idempotency_conflict"
            assert await start(test, "l", "1") == "INSTANCE_ID_ALREADY_EXISTS"
            await test.get("order", "i-1").restart()
        assert (await test.get("order", "i-1").status()).run_number == 2

    run(scenario, order)


def test_a_retry_keeps_the_labels_and_the_key_of_the_creation():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        raise LookupError("sold out")

    async def scenario(test: WorkflowTest) -> None:
        start = StartRun("1", once=Once("k", "1"), labels=BLUE)
        assert (await test.send("order", "i-1", start)).code == ""
        await test.run_until_idle()
        await test.get("order", "i-1").retry()
        assert (await test.send("order", "i-1", start)).code == "INSTANCE_CREATED_BEFORE"
        state = test.runs("order", "i-1")[1]
        assert state is not None
        assert state.labels == BLUE

    run(scenario, order)


@workflow("shop")
async def shop(event: WorkflowEvent, step: Step) -> None:
    """Creates an order with a label."""
    labels = event.payload
    await step.do("order", lambda tx: tx.create_workflow(order, id="i-1", params=1, labels=labels))


def test_an_instance_that_a_step_creates_has_its_labels_also_after_a_restart():
    async def scenario(test: WorkflowTest) -> None:
        await test.create(shop, id="s-1", params={"team": "blue"}, labels={"kind": "shop"})
        await test.run_until_idle()
        await test.get("order", "i-1").restart()
        result = [*test.runs("order", "i-1").values()]
        assert [run and run.labels for run in result] == [(Label("team", "blue"),)] * 2
        (shop_run,) = test.runs("shop", "s-1").values()
        assert shop_run.labels == (Label("kind", "shop"),)
        with pytest.raises(InvalidLabelsError, match="expected the name of a label"):
            await test.create(shop, labels={"": "x"})

    run(scenario, order, shop)


def test_nothing_is_created_of_a_workflow_that_is_not_known_or_without_a_start():
    async def scenario(test: WorkflowTest) -> None:
        assert (await tell(test, 1, workflow="other")).code == "WORKFLOW_NOT_FOUND"
        assert (await tell(test, 1, start=None)).code == "INSTANCE_NOT_FOUND"
        await told(test, 1)

    run(scenario, order)
