"""What looks like what is asked for, and is not quite: authors are told, or it is made right."""

import asyncio
import copy
import functools
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from headwater import (
    NonRetryableError,
    Retry,
    RollbackError,
    Step,
    StepFailedError,
    WorkflowEvent,
    WorkflowParamsInvalidError,
    WorkflowTest,
    workflow,
)
from tests.workflows.running import begin, error_of, failure, keys_of, output, output_of, run

ONCE = Retry(limit=0)
#: A name of a file whose bytes are no UTF-8, as Python gives it.
SURROGATE = "file \udcff"


class Text(str):
    """Text, and more."""

    __slots__ = ()


class Names(StrEnum):
    """Names, as code that avoids typing them twice has them."""

    CHARGE = "charge"


def one(entry: object) -> object:
    """A workflow of one entry."""

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await entry(step)

    return order


@pytest.mark.parametrize(
    ("raising", "name"),
    [
        (lambda: None.foo, "AttributeError"),
        (lambda: undefined, "NameError"),  # noqa: F821
        (lambda: __import__("no_such_module"), "ModuleNotFoundError"),
    ],
)
def test_the_name_of_an_error_is_that_of_its_type(raising: object, name: str):
    async def caught(step: Step) -> str:
        try:
            await step.do("save", raising, retries=ONCE)
        except StepFailedError as error:
            return error.error.name
        return ""

    assert failure(one(lambda step: step.do("save", raising, retries=ONCE))).name == name
    assert output(one(caught)) == name


def test_an_error_that_is_not_to_be_retried_may_have_a_name_of_its_own():
    def refuse() -> None:
        raise NonRetryableError("no money", name=SURROGATE)

    error = failure(one(lambda step: step.do("charge", refuse)))
    assert (error.name, error.message) == ("file \\udcff", "no money")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (lambda step: step.do(SURROGATE, lambda: 1), "text that UTF-8 can hold"),
        (lambda step: step.do(Text("save"), lambda: 1), "a plain str, found Text"),
        (lambda step: step.do("a", lambda: 1, retries=Retry(limit=2**64)), "1,000,000,000, or inf"),
        (lambda step: step.do("a", lambda: 1, retries=Retry(limit=1e30)), "1,000,000,000, or inf"),
        (lambda step: step.do("a", lambda: 1, timeout=1e30), "at most 100 years"),
        (lambda step: step.do("a", lambda: 1, timeout="9" * 400), "at most 100 years"),
        (lambda step: step.sleep_until("a", math.inf), "Unix milliseconds, found inf"),
        (lambda step: step.sleep_until("a", math.nan), "Unix milliseconds, found nan"),
        (lambda step: step.sleep_until("a", "tomorrow"), "Unix milliseconds, found 'tomorrow'"),
        (lambda step: step.sleep_until("a", 1e30), "at most 365 days"),
        (lambda step: step.wait_for_events("a", types=["b"], limit=2.5), "found ('b',) and 2.5"),
        (lambda step: step.wait_for_events("a", types=["b"], limit=2**64), "from 1 to 10,000"),
        (lambda step: step.log.info({"a": 1}), "text, found {'a': 1}"),
        (lambda step: step.log.info("a", category=b"b"), "text, found 'a' and b'b'"),
        (lambda step: step.do("a", lambda tx: tx.publish("t", 42, {}), retries=ONCE), "key of a"),
        (lambda step: step.do("a", lambda tx: tx.publish(SURROGATE, "k", {}), retries=ONCE), "UTF"),
        (lambda step: step.do("a", lambda tx: tx.publish(b"t", "k", {}), retries=ONCE), "bytes"),
        (lambda step: step.do("a", lambda tx: tx.publish("", "k", 1), retries=ONCE), "found ''"),
        (lambda step: step.do("a", lambda tx: tx.publish("a b", "k", 1), retries=ONCE), "'a b'"),
        (lambda step: step.do("a", lambda tx: tx.publish("..", "k", 1), retries=ONCE), "'..'"),
        (lambda step: step.do("a", lambda tx: tx.publish("t" * 250, "", 1), retries=ONCE), "249"),
        (lambda step: step.do("a", lambda tx: tx.execute(SURROGATE), retries=ONCE), "SQL to be te"),
    ],
)
def test_what_cannot_be_recorded_is_refused(entry: object, told: str):
    assert told in failure(one(entry)).message


def test_lines_with_lone_surrogates_are_logged_with_their_numbers():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        (line,) = (await instance.history()).logs
        assert (line.message, line.category) == ("file \\udcff", "file \\udcff")

    run(scenario, one(lambda step: step.log.info(SURROGATE, category=SURROGATE)))


def test_a_name_may_be_a_member_of_an_enumeration():
    assert output(one(lambda step: step.do(Names.CHARGE, lambda: 5))) == 5


def test_a_moment_before_1970_is_over():
    assert output(one(lambda step: step.sleep_until("long ago", -1e30))) is None


def test_names_that_differ_are_different_entries():
    names = ["a/b", "a%2Fb", "a%252Fb", "50% off", "a%25"]

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return [await step.do(name, functools.partial(str, name)) for name in names]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == names
        assert await keys_of(instance) == ["a%2Fb", "a%252Fb", "a%25252Fb", "50% off", "a%2525"]

    run(scenario, order)


@dataclass
class Card:
    """A way to pay."""

    number: str


@dataclass
class Cash:
    """Another."""

    coins: int


@pytest.mark.parametrize(
    "form", [dict, dict[str, Any], list, dict | None, dict[str, int] | None], ids=repr
)
def test_no_params_are_none_which_a_type_that_says_nothing_of_what_is_in_it_allows(form: object):
    @workflow("order")
    async def order(event: WorkflowEvent[form], step: Step) -> object:
        return event.payload is None

    @workflow("strict")
    async def strict(event: WorkflowEvent[dict[str, int]], step: Step) -> None:
        await step.do("never", lambda: 1)

    async def scenario(test: WorkflowTest) -> None:
        with pytest.raises(WorkflowParamsInvalidError, match="null is not of type"):
            await test.create("strict")

    assert output(order) is True
    run(scenario, strict)


def test_a_type_that_no_json_can_be_told_by_is_refused():
    @workflow("order")
    async def order(event: WorkflowEvent[Card | Cash], step: Step) -> None:
        await step.do("never", lambda: 1)

    with pytest.raises(TypeError, match=r"order, Card \| Cash, .* more than one dataclass"):
        WorkflowTest([order])


def test_a_payload_can_be_copied_and_the_copy_changed():
    @workflow("order")
    async def order(event: WorkflowEvent[dict], step: Step) -> object:
        deep, shallow = copy.deepcopy(event.payload), copy.copy(event.payload)
        deep["lines"][0]["count"] += 1
        deep["lines"].append(2)
        shallow["more"] = True
        return [deep, shallow, event.payload]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, params={"lines": [{"count": 1}]})
        assert await output_of(instance) == [
            {"lines": [{"count": 2}, 2]},
            {"lines": [{"count": 1}], "more": True},
            {"lines": [{"count": 1}]},
        ]

    run(scenario, order)


def test_a_kind_of_rollback_error_arrives_as_a_rollback_error():
    class NoStock(RollbackError):
        """A reason of the author's."""

    def reserve() -> None:
        raise NoStock("none left")

    async def caught(step: Step) -> str:
        try:
            await step.do("reserve", reserve)
        except RollbackError as error:
            return str(error)
        return ""

    assert output(one(caught)) == "none left"


def test_a_callback_under_a_decorator_gets_its_transaction():
    def traced(function: object) -> object:
        @functools.wraps(function)
        def call(*arguments: object) -> object:
            return function(*arguments)

        return call

    @traced
    def save(tx: object) -> str:
        tx.publish("saved", "k", 1)
        return "saved"

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await begin(test)) == "saved"
        assert [record.value for record in test.published("saved")] == [1]

    run(scenario, one(lambda step: step.do("save", save)))


def test_a_branch_may_have_any_name():
    async def branch(step: Step) -> int:
        return await step.do("work", lambda: 1)

    async def both(step: Step) -> object:
        won = await step.race("race", name=branch)
        return [await step.join("join", name=branch, self=branch), won.winner]

    assert output(one(both)) == [{"name": 1, "self": 1}, "name"]


@pytest.mark.parametrize("slow", ["sleep", "wait"])
def test_what_a_loser_completed_last_is_rolled_back(slow: str):
    undone: list[object] = []

    async def quick(step: Step) -> object:
        return await step.do("quick", lambda: 1)

    async def other(step: Step) -> None:
        await step.do("booked", lambda: 2, rollback=undone.append)
        if slow == "sleep":
            await step.sleep("nap", "1 hour")
        else:
            await step.wait_for_event("word", type="word")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("from here")
        await step.race("first", quick=quick, other=other)
        raise ValueError("all for nothing")

    assert failure(order).message == "all for nothing"
    assert undone == [2]


@pytest.mark.parametrize("partial", [True, False])
def test_lines_of_a_rollback_handler_are_kept(partial: bool):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        logs = [
            (line.message, line.step_key, line.attempt) for line in (await instance.history()).logs
        ]
        assert logs == [("booking", "book", 1), ("undone", "book", 1)]

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def book() -> int:
            await step.log.info("booking")
            return 1

        async def undo(_result: int) -> None:
            await step.log.info("undone")

        await step.checkpoint("from here")
        await step.do("book", book, rollback=functools.partial(undo) if partial else undo)
        raise ValueError("all for nothing")

    run(scenario, order)


@pytest.mark.parametrize("together", [True, False])
def test_sleeps_are_allowed_where_steps_are_not(together: bool):
    @workflow("order")
    async def order(event: WorkflowEvent[int], step: Step) -> str:
        steps = [step.do(str(number), int) for number in range(event.payload)]
        if together:
            await asyncio.gather(*steps)
        else:
            for item in steps:
                await item
        await step.sleep("nap", "1 minute")
        return "rested"

    async def scenario() -> None:
        async with WorkflowTest([order], max_steps=5) as test:
            allowed = await begin(test, instance="allowed", params=5)
            refused = await begin(test, instance="refused", params=6)
            await test.advance("1 minute")
            assert await output_of(allowed) == "rested"
            error = await error_of(refused)
            assert error.name == "MAX_STEPS_EXCEEDED"
            assert error.message.startswith("expected at most 5 entries")

    asyncio.run(scenario())
