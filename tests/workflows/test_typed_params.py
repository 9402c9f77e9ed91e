"""Params of types that JSON does not have arrive as they were, or are refused before a run."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, field_validator

from headwater import (
    ChildWorkflowError,
    InstanceNotFoundError,
    Step,
    UnserialisableError,
    WorkflowEvent,
    WorkflowParamsInvalidError,
    WorkflowTest,
    workflow,
)
from headwater.streams.code_host.apps import AppNotLoaded, load_app
from tests.workflows.running import begin, error_of, output_of, run

AT = datetime(2026, 7, 1, 8, 30, tzinfo=UTC)


class Size(IntEnum):
    SMALL = 1


class Color(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    tags: list[str]


class Row(TypedDict):
    at: datetime


@dataclass
class Line:
    sku: str
    price: Decimal
    tags: set[str] = field(default_factory=set)


class Record(msgspec.Struct):
    lines: list[Line]
    size: Size = Size.SMALL


class Order(BaseModel):
    """A model of pydantic."""

    number: int
    at: datetime
    lines: list[str] = []

    @field_validator("number")
    @classmethod
    def known(cls, number: int) -> int:
        """A rule that no schema has."""
        if number == 13:
            raise ValueError("13 is not a number of an order")
        return number


#: Types, with a value of each.
TYPED: list[tuple[Any, Any]] = [
    (datetime, AT),
    (date, date(2026, 7, 1)),
    (time, time(8, 30)),
    (timedelta, timedelta(days=1, seconds=5)),
    (UUID, UUID(int=5)),
    (Decimal, Decimal("1.50")),
    (bytes, b"\x00\xff"),
    (Size, Size.SMALL),
    (Color, Color.RED),
    (Point, Point(1, ["a"])),
    (Row, {"at": AT}),
    (Line, Line("tea", Decimal("1.5"), {"a", "b"})),
    (Record, Record([Line("tea", Decimal(1))])),
    (Order, Order(number=1, at=AT, lines=["tea"])),
    (list[Order], [Order(number=1, at=AT)]),
    (dict[str, Order], {"first": Order(number=1, at=AT)}),
    (Order | None, Order(number=1, at=AT)),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[date, int], {date(2026, 7, 1): 1}),
    (tuple[int, date], (1, date(2026, 7, 1))),
    (frozenset[int], frozenset({1, 2})),
    (dict[str, list[datetime | None]], {"a": [AT, None]}),
    (float, 5),
]
BY_TYPE = pytest.mark.parametrize(("form", "value"), TYPED, ids=[repr(form) for form, _ in TYPED])


def taking(form: object, seen: list[object]) -> Any:  # noqa: ANN401
    """A workflow that takes params of a type, and notes them."""

    @workflow("order")
    async def order(event: WorkflowEvent[form], step: Step) -> None:
        seen.append(event.payload)
        await step.do("never mind", lambda: None)

    return order


@BY_TYPE
@pytest.mark.parametrize("way", ["create", "batch", "child", "transaction"])
def test_params_of_a_type_arrive_as_they_were(form: object, value: object, way: str):
    seen: list[object] = []
    order = taking(form, seen)

    @workflow("shop")
    async def shop(event: WorkflowEvent, step: Step) -> None:
        if way == "child":
            await step.run_workflow("child", order, params=value)
        else:
            await step.do("begin", lambda tx: tx.create_workflow(order, id="i-2", params=value))

    async def scenario(test: WorkflowTest) -> None:
        if way == "create":
            await test.create(order, params=value)
        elif way == "batch":
            await test.create_batch(order, [{"id": "i-1", "params": value}])
        else:
            await test.create(shop)
        await test.run_until_idle()
        await test.crash()
        await test.run_until_idle()
        assert seen
        assert all(item == value for item in seen), seen

    run(scenario, order, shop)


@pytest.mark.parametrize(
    ("form", "params", "told"),
    [
        (datetime, "nonsense", 'params: "nonsense" is not a "date-time"'),
        (date, "2026-13-01", 'params: "2026-13-01" is not a "date"'),
        (time, "8:30", 'params: "8:30" is not a "time"'),
        (timedelta, "1 hour", 'params: "1 hour" is not a "duration"'),
        (UUID, "x", 'params: "x" is not a "uuid"'),
        (Decimal, "x", 'params: "x" is not a "decimal"'),
        (bytes, "***", 'params: "***" is not a "base64"'),
        (float, 2 * 10**308, "params: 2000"),
        (int, 1.5, 'params: 1.5 is not of type "integer"'),
        (dict[int, str], {"x": "a"}, '"x" does not match'),
        (dict[Size, str], {"2": "a"}, '"2" is not one of'),
        (Line, {"sku": "tea", "price": "cheap"}, 'params.price: "cheap" is not a "decimal"'),
        (Order, {"number": "one", "at": "2026-07-01T08:30:00Z"}, "params.number: "),
        (Order, {"number": 1, "at": "soon"}, 'params.at: "soon" is not a "date-time"'),
        (Order, {"number": 1, "at": "2026-07-01T08:30:00Z", "more": 1}, "'more' was unexpected"),
        (list[Order], [{"number": 1}], 'params[0]: "at" is a required property'),
    ],
)
def test_params_that_cannot_be_read_create_nothing(form: object, params: object, told: str):
    order = taking(form, [])

    async def scenario(test: WorkflowTest) -> None:
        with pytest.raises(WorkflowParamsInvalidError) as caught:
            await test.create(order, id="i-1", params=params)
        assert told in caught.value.detail
        with pytest.raises(WorkflowParamsInvalidError):
            await test.create_batch(order, [{"id": "i-1", "params": params}])
        with pytest.raises(InstanceNotFoundError):
            test.get(order, "i-1")

    run(scenario, order)


@pytest.mark.parametrize("form", [int, Size, Literal[1], Annotated[int, msgspec.Meta(ge=0)]])
def test_a_whole_number_is_an_integer_however_it_is_written(form: object):
    seen: list[object] = []
    order = taking(form, seen)

    async def scenario(test: WorkflowTest) -> None:
        await begin(test, params=1.0)
        assert seen[0] == 1
        assert isinstance(seen[0], int)

    run(scenario, order)


def test_what_a_model_checks_beyond_its_schema_fails_the_run_by_name():
    async def scenario(test: WorkflowTest) -> None:
        error = await error_of(await begin(test, params=Order.model_construct(number=13, at=AT)))
        assert error.name == "INVALID_PARAMS"
        assert "number: Value error, 13 is not a number of an order" in error.message

    run(scenario, taking(Order, []))


class Handmade:
    """A class that says nothing of its fields."""


class Callback(BaseModel):
    """A model with a field that JSON cannot have."""

    call: Callable[[], int]


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (Handmade, "Handmade cannot be read from JSON"),
        (list[Path], "Path cannot be read from JSON"),
        (dict[str, Handmade | None], "Handmade cannot be read from JSON"),
        (Callback, "Callback has no JSON Schema"),
        (Order | int, "Type unions containing a custom type may not contain any additional types"),
        (dict[float, int], "keys of a dict may be str, int without bounds, UUID, date"),
        (bytearray, "ByteArray is not a type for JSON"),
        (complex, "complex cannot be read from JSON"),
        (Annotated[str, msgspec.Meta(pattern="(?=a)a")], "its JSON Schema cannot be checked"),
        (Annotated[bytes, msgspec.Meta(max_length=2)], "a length of bytes cannot be checked"),
    ],
    ids=repr,
)
def test_a_type_that_no_params_can_have_is_refused_when_it_is_loaded(form: object, told: str):
    with pytest.raises(TypeError, match="params of the workflow order") as caught:
        WorkflowTest([taking(form, [])])
    assert told in str(caught.value)


def test_an_app_with_such_a_type_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shop_of_paths.py").write_text(
        "from pathlib import Path\n"
        "from headwater import workflow, WorkflowEvent\n"
        '@workflow("order")\n'
        "async def order(event: WorkflowEvent[Path], step) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AppNotLoaded, match="Path cannot be read from JSON"):
        load_app("shop_of_paths")


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({1: "a", "1": "b"}, "the key 1 of type int"),
        ({None: 1}, "the key None of type NoneType"),
        ({"at": AT, "a": [Handmade()]}, "Handmade at $.a[0]"),
        ({"a": math.nan}, "nan at $.a"),
    ],
)
def test_params_that_no_type_has_are_refused_where_they_are_sent(params: object, told: str):
    async def scenario(test: WorkflowTest) -> None:
        with pytest.raises(UnserialisableError) as caught:
            await test.create("order", params=params)
        assert told in str(caught.value)

    run(scenario, taking(Any, []))


def test_the_payload_of_an_event_may_have_types():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return (await step.wait_for_event("word", type="word")).payload

    @workflow("sender")
    async def sender(event: WorkflowEvent, step: Step) -> None:
        await step.do(
            "tell", lambda tx: tx.send_event(order, "i-2", "word", Line("tea", Decimal(1)))
        )

    async def scenario(test: WorkflowTest) -> None:
        first = await begin(test)
        await first.send_event("word", Order(number=1, at=AT))
        second = await begin(test, instance="i-2")
        await begin(test, name="sender", instance="s")
        assert await output_of(first) == {"number": 1, "at": "2026-07-01T08:30:00Z", "lines": []}
        assert await output_of(second) == {"sku": "tea", "price": "1", "tags": []}

    run(scenario, order, sender)


@pytest.mark.parametrize("form", [Point, Order])
def test_what_typed_params_hold_refuses_changes(form: Any):  # noqa: ANN401
    @workflow("order")
    async def order(event: WorkflowEvent[form], step: Step) -> None:
        getattr(event.payload, "lines" if form is Order else "tags").append("more")

    async def scenario(test: WorkflowTest) -> None:
        value = dict(TYPED)[form]
        error = await error_of(await begin(test, params=value))
        assert (error.name, "is read-only" in error.message) == ("TypeError", True)

    run(scenario, order)


def test_a_child_whose_params_do_not_fit_is_not_created():
    order = taking(datetime, [])

    @workflow("shop")
    async def shop(event: WorkflowEvent, step: Step) -> str:
        try:
            await step.run_workflow("child", order, id="i-2", params="soon")
        except ChildWorkflowError as error:
            return str(error)
        return ""

    async def scenario(test: WorkflowTest) -> None:
        reported = await output_of(await begin(test, name="shop"))
        assert 'params: "soon" is not a "date-time"' in reported
        with pytest.raises(InstanceNotFoundError):
            test.get(order, "i-2")

    run(scenario, order, shop)
