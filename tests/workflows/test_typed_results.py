"""Results of types that JSON does not have come back as the functions are annotated."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import begin, error_of, failure, output_of, run

AT = datetime(2026, 7, 1, 8, 30, tzinfo=UTC)


@dataclass
class Quote:
    price: Decimal
    at: datetime


class Point(NamedTuple):
    x: int
    y: int


class Order(BaseModel):
    number: int
    day: date


def quote() -> Quote:
    """A dataclass."""
    return Quote(Decimal("1.50"), AT)


async def point() -> Point:
    """A tuple with names, of an async function."""
    return Point(1, 2)


def order() -> Order:
    """A model of pydantic."""
    return Order(number=1, day=date(2026, 7, 1))


def orders() -> "list[Order]":
    """An annotation as text."""
    return [order()]


def pairs() -> dict[int, tuple[int, date]]:
    """Keys and tuples."""
    return {1: (2, date(2026, 7, 1))}


def moment() -> datetime:
    """A time."""
    return AT


RESULTS = pytest.mark.parametrize(
    ("function", "value"),
    [
        (quote, quote()),
        (point, Point(1, 2)),
        (order, order()),
        (orders, orders()),
        (pairs, pairs()),
        (moment, AT),
    ],
)


@RESULTS
def test_a_result_of_a_step_comes_back_as_its_function_is_annotated(
    function: Callable[[], Any], value: object
):
    seen: list[object] = []
    undone: list[object] = []

    @workflow("shop")
    async def shop(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before")
        result = await step.do("made", function, rollback=undone.append)
        seen.append((type(result), result))
        await step.sleep("rest", "1 minute")
        raise ValueError("roll back")

    async def scenario(test: WorkflowTest) -> None:
        await begin(test, "shop")
        await test.crash()
        await test.advance("2 minutes")
        assert len(seen) > 1
        assert seen == [(type(value), value)] * len(seen)
        assert undone == [value]

    run(scenario, shop)


def test_a_local_type_is_known_too():
    @dataclass
    class Local:
        day: date

    @workflow("shop")
    async def shop(event: WorkflowEvent, step: Step) -> object:
        def made() -> "Local":
            return Local(date(2026, 7, 1))

        result = await step.do("made", made)
        return [isinstance(result, Local), result.day.isoformat()]

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await begin(test, "shop")) == [True, "2026-07-01"]

    run(scenario, shop)


def test_a_result_that_is_not_as_its_function_is_annotated_fails_the_step():
    def wrong() -> Quote:
        return {"price": "1"}  # type: ignore[return-value]

    @workflow("order")
    async def shop(event: WorkflowEvent, step: Step) -> None:
        await step.do("made", wrong)

    error = failure(shop)
    assert error.name == "UnserialisableError"
    assert 'the result of step "made" to be Quote, as its function is annotated' in error.message


def test_a_recorded_result_that_no_longer_fits_is_named():
    class Version:
        form: Any = Quote

    @workflow("shop")
    async def shop(event: WorkflowEvent, step: Step) -> None:
        def made() -> Any:  # noqa: ANN401
            return quote()

        made.__annotations__["return"] = Version.form
        await step.do("made", made)
        await step.sleep("rest", "1 minute")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "shop")
        Version.form = Order
        await test.crash()
        await test.advance("1 minute")
        error = await error_of(instance)
        assert error.name == "TypeError"
        assert 'the recorded result of the step "made" to be Order' in error.message

    run(scenario, shop)


@workflow("bill")
async def bill(event: WorkflowEvent, step: Step) -> Quote:
    """Its output is a dataclass."""
    return quote()


def test_the_output_of_a_workflow_is_of_the_type_that_it_returns():
    @workflow("shop")
    async def shop(event: WorkflowEvent, step: Step) -> object:
        typed = await step.run_workflow("typed", bill)
        plain = await step.run_workflow("plain", "bill")
        return [typed == quote(), plain]

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create(bill, id="b")
        assert await instance.result() == quote()
        plain = {"price": "1.50", "at": "2026-07-01T08:30:00Z"}
        assert (await instance.status()).output == plain
        assert await test.get("bill", "b").result() == plain
        assert await output_of(await begin(test, "shop")) == [True, plain]

    run(scenario, bill, shop)


def test_an_output_that_json_cannot_be_read_as_is_refused_when_it_is_loaded():
    @workflow("shop")
    async def shop(event: WorkflowEvent, step: Step) -> Path:
        return Path()

    with pytest.raises(TypeError, match="the output of the workflow shop, Path, to be one that"):
        WorkflowTest([shop])
