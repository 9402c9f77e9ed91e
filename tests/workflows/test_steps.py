"""`step.do`: its callbacks, its results, and which calls are the same step."""

import asyncio
import contextlib
from functools import partial

import pytest

from headwater import (
    DuplicateStepError,
    HistoryDivergedError,
    Step,
    StepTx,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from tests.workflows.running import (
    START,
    Calls,
    begin,
    entry_at,
    failure,
    keys_of,
    output,
    output_of,
    run,
)


def add(left: int, right: int) -> int:
    return left + right


async def add_later(left: int, right: int) -> int:
    await asyncio.sleep(0)
    return left + right


async def three() -> int:
    return await add_later(1, 2)


class Till:
    def total(self) -> int:
        return 3

    def knows_its_transaction(self, tx: StepTx) -> bool:
        return hasattr(tx, "publish")

    async def __call__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "callback",
    [lambda: 3, three, lambda: add_later(1, 2), partial(add, 1, 2), Till().total, Till()],
    ids=["lambda", "async", "returns an awaitable", "partial", "bound method", "callable object"],
)
def test_a_step_takes_any_callable_without_arguments(callback: object):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("quote", callback)

    assert output(order) == 3


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (lambda tx: hasattr(tx, "publish"), True),
        (lambda tx, extra=3: (hasattr(tx, "publish"), extra) == (True, 3), True),
        (Till().knows_its_transaction, True),
        (lambda value=3: value, 3),
        (lambda *rest: len(rest), 0),
        (lambda *, flag=False: flag, False),
    ],
    ids=["one", "one and a default", "method", "default only", "variadic", "keyword only"],
)
def test_only_a_callback_with_one_required_parameter_gets_a_transaction(
    callback: object, expected: object
):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("save", callback)

    assert output(order) == expected


@pytest.mark.parametrize("value", [None, False, 0, "", [], {"a": [1, 2.5, None, "é"]}, "ok"])
def test_a_completed_step_does_not_run_again_whatever_it_returned(value: object):
    calls = Calls()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        result = await step.do("quote", calls.of("quote", value))
        await step.sleep("cool off", "1 hour")
        return [result]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == [value]
        assert calls.names == ["quote"]

    run(scenario, order)


def test_the_same_name_again_returns_the_first_result_and_runs_nothing():
    calls = Calls()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.do("quote", calls.of("first", 1))
        again = await step.do("quote", calls.of("again", 2))
        return [first, again]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == [1, 1]
        assert calls.names == ["first"]
        assert await keys_of(instance) == ["quote"]

    run(scenario, order)


def test_the_same_name_twice_at_once_raises_into_the_second_call():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first, second = await asyncio.gather(
            step.do("quote", lambda: 1), step.do("quote", lambda: 2), return_exceptions=True
        )
        return [first, isinstance(second, DuplicateStepError)]

    assert output(order) == [1, True]


def test_an_uncaught_duplicate_step_names_the_step():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await asyncio.gather(step.do("quote", lambda: 1), step.do("quote", lambda: 2))

    error = failure(order)
    assert error.name == "DuplicateStepError"
    assert "quote" in error.message


def test_strict_mode_refuses_a_name_that_repeats_one_after_the_other():
    calls = Calls()

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("quote", calls.of("first"))
        try:
            await step.do("quote", calls.of("again"))
        except HistoryDivergedError as error:
            return "quote" in str(error)
        return None

    assert output(order) is True
    assert calls.names == ["first"]


def test_steps_with_different_names_may_run_at_once():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await asyncio.gather(
            step.do("a", lambda: 1), step.do("b", three), step.do("c", lambda: 2)
        )

    assert output(order) == [1, 3, 2]


def test_steps_at_once_overlap():
    entered: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = asyncio.Event()

        async def meet(name: str) -> str:
            entered.append(name)
            if len(entered) == 2:
                both.set()
            await asyncio.wait_for(both.wait(), timeout=60)
            return name

        return await asyncio.gather(
            step.do("a", lambda: meet("a")), step.do("b", lambda: meet("b"))
        )

    assert output(order) == ["a", "b"]


def test_changing_a_result_in_the_workflow_does_not_change_the_record():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        lines = await step.do("lines", lambda: ["tea"])
        lines.append("milk")
        await step.sleep("cool off", "1 hour")
        return lines

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await entry_at(instance, "lines")).result == ["tea"]
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == ["tea", "milk"]

    run(scenario, order)


@pytest.mark.parametrize("value", [(1, 2), {1: "one"}], ids=["tuple", "integer key"])
def test_a_workflow_sees_the_same_type_live_and_on_replay(value: object):
    seen: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        seen.append(repr(await step.do("pair", lambda: value)))
        await step.sleep("cool off", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        await begin(test)
        await test.crash()
        await test.advance("1 hour")
        assert len(set(seen)) <= 1, seen

    run(scenario, order)


def test_a_workflow_is_told_who_it_is_and_what_it_was_given():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return {
            "payload": event.payload,
            "at": event.timestamp == START,
            "aware": event.timestamp.tzinfo is not None,
            "who": [event.workflow_name, event.instance_id, event.run_number],
        }

    assert output(order, params={"sku": "x"}) == {
        "payload": {"sku": "x"},
        "at": True,
        "aware": True,
        "who": ["order", "i-1", 0],
    }


@pytest.mark.parametrize("params", [None, 0, "text", [1, 2], {"a": None}])
def test_any_json_value_may_be_given_as_params(params: object):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return [event.payload]

    assert output(order, params=params) == [params]


def test_a_workflow_cannot_change_the_payload_that_its_replay_gets():
    seen: list[object] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        seen.append(event.payload["count"])
        with contextlib.suppress(TypeError):
            event.payload["count"] = 99
        await step.sleep("cool off", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, params={"count": 1})
        await test.crash()
        await test.advance("1 hour")
        await output_of(instance)
        assert set(seen) == {1}

    run(scenario, order)


def test_an_uncaught_error_of_the_body_ends_the_instance_with_its_name_and_message():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("quote", lambda: 1)
        raise LookupError("no such sku")

    error = failure(order)
    assert (error.name, error.message) == ("LookupError", "no such sku")
