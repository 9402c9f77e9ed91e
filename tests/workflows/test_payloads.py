"""What a workflow is given of the outside cannot be changed, and is of the type it asks for."""

from __future__ import annotations

import copy
import sys
import types
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003, a type of params is known at run time
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

import attrs
import msgspec
import pytest

from headwater import (
    ChildWorkflowError,
    InstanceNotFoundError,
    Step,
    WorkflowEvent,
    WorkflowParamsInvalidError,
    WorkflowTest,
    workflow,
)
from headwater.streams.authoring.workflow_values import frozen
from headwater.streams.code_host.apps import AppNotLoaded, load_app
from tests.workflows.running import begin, error_of, output_of, run

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
AT = "2026-07-01T08:00:00Z"


@dataclass
class Line:
    """A line of an order."""

    sku: str
    tags: list[str] = field(default_factory=list)


@dataclass
class Order:
    """Params as a dataclass."""

    number: int
    lines: list[Line]
    extra: dict[str, list[int]] = field(default_factory=dict)
    colours: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Fixed:
    """A dataclass that refuses to have its fields set by itself."""

    number: int
    tags: list[str]


@dataclass
class Paged(Generic[T]):
    """A generic dataclass."""

    number: int
    tags: list[T]


class Record(msgspec.Struct):
    """Params as a Struct."""

    number: int
    tags: list[str]


class FixedRecord(msgspec.Struct, frozen=True):
    """A Struct that refuses to have its fields set by itself."""

    number: int
    tags: list[str]


@attrs.define
class Defined:
    """Params as a class of attrs."""

    number: int
    tags: list[str]


KINDS = [Line, Fixed, Paged[str], Record, FixedRecord, Defined]


def made(kind: type) -> object:
    """A value of some type, as params of it are read."""
    return msgspec.convert({"number": 1, "sku": "tea", "tags": ["a"]}, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_typed_payload_holds_refuses_changes(kind: type):
    value = frozen(made(kind))
    with pytest.raises(TypeError, match="read-only"):
        value.tags.append("b")
    assert value == made(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_typed_payload_is_still_what_it_was(kind: type):
    value = frozen(made(kind))
    assert type(value) is getattr(kind, "__origin__", kind)
    assert value == made(kind)
    assert made(kind) == value
    assert value == frozen(made(kind))
    assert repr(value) == repr(made(kind))
    assert msgspec.json.encode(value) == msgspec.json.encode(made(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_a_typed_payload_may_be_changed(kind: type):
    value = frozen(made(kind))
    copy.deepcopy(value).tags.append("b")
    copy.copy(value.tags).append("b")
    assert value == made(kind)


def test_a_read_only_payload_can_be_read_as_a_type():
    plain = {"number": 1, "lines": [{"sku": "tea", "tags": ["hot"]}]}
    assert msgspec.convert(frozen(plain), Order) == msgspec.convert(plain, Order)


@pytest.mark.parametrize(
    "change",
    [
        lambda order: order.lines.append(1),
        lambda order: order.lines[0].tags.append("b"),
        lambda order: order.extra["a"].append(2),
    ],
)
def test_a_run_that_changes_its_typed_payload_fails(change: object):
    @workflow("order")
    async def order(event: WorkflowEvent[Order], step: Step) -> None:
        change(event.payload)

    async def scenario(test: WorkflowTest) -> None:
        params = {"number": 1, "lines": [{"sku": "tea"}], "extra": {"a": [1]}}
        error = await error_of(await begin(test, params=params))
        assert (error.name, "is read-only" in error.message) == ("TypeError", True)

    run(scenario, order)


@pytest.mark.parametrize("several", [True, False])
def test_the_payload_of_an_event_is_read_only(several: bool):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        if several:
            (got,) = await step.wait_for_events("word", types=["word"])
        else:
            got = await step.wait_for_event("word", type="word")
        try:
            got.payload["lines"].append(2)
        except TypeError as error:
            return [str(error), got.payload, got.payload == {"lines": [1]}]
        return None

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.send_event("word", {"lines": [1]})
        await test.run_until_idle()
        reported, payload, same = await output_of(instance)
        assert "is read-only" in reported
        assert (payload, same) == ({"lines": [1]}, True)

    run(scenario, order)


async def refused(test: WorkflowTest, params: object, told: str) -> None:
    """Nothing is created with these params, and the caller is told why."""
    with pytest.raises(WorkflowParamsInvalidError) as caught:
        await test.create("order", id="i-9", params=params)
    assert told in caught.value.detail
    assert caught.value.detail.startswith("expected the params that order takes, found params")


def module(source: str, name: str = "shop_of_params") -> types.ModuleType:
    """A module with this source."""
    made = types.ModuleType(name)
    sys.modules[name] = made
    try:
        exec(compile(source, f"{name}.py", "exec"), vars(made))  # noqa: S102, source of this test
    finally:
        del sys.modules[name]
    return made


FOR_TYPE_CHECKERS = """
from __future__ import annotations
import headwater as face
from typing import TYPE_CHECKING
{imports}
@face.workflow("order")
async def order(event: {annotation}, step: Step) -> str:
    return "ran"
{after}
"""


def order_of(annotation: str, imports: str = "", after: str = "") -> object:
    """A workflow whose annotations are for type checkers."""
    source = FOR_TYPE_CHECKERS.format(annotation=annotation, imports=imports, after=after)
    return module(source).order


IMPORTED = "if TYPE_CHECKING:\n    from headwater import Step, WorkflowEvent"
WHOLE = "if TYPE_CHECKING:\n    import headwater"


@pytest.mark.parametrize(
    ("annotation", "imports", "after"),
    [
        ("WorkflowEvent[int]", IMPORTED, ""),
        ("headwater.WorkflowEvent[int]", WHOLE, ""),
        ("face.WorkflowEvent[int]", "", ""),
        ("WorkflowEvent['int']", IMPORTED, ""),
        ("WorkflowEvent[Later]", IMPORTED, "Later = int"),
    ],
)
def test_params_are_checked_also_when_types_are_for_type_checkers(
    annotation: str, imports: str, after: str
):
    async def scenario(test: WorkflowTest) -> None:
        await refused(test, "not an int", '"not an int" is not of type "integer"')
        assert await output_of(await begin(test, instance="i-2", params=5)) == "ran"

    run(scenario, order_of(annotation, imports, after))


def test_a_type_of_params_that_is_not_there_at_run_time_is_refused():
    missing = order_of("WorkflowEvent[models.Order]", IMPORTED)
    with pytest.raises(TypeError, match=r"order, WorkflowEvent.*'models'.*import it at run time"):
        WorkflowTest([missing])


@pytest.mark.parametrize("annotation", ["Event", "'any words'", "Missing[int]", "WorkflowEvent"])
def test_a_workflow_that_declares_no_type_of_params_takes_any(annotation: str):
    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await begin(test, params=["anything"])) == "ran"

    run(scenario, order_of(annotation))


def test_the_type_of_params_may_be_local_to_where_the_workflow_is():
    @dataclass
    class Local:
        number: int

    def declared() -> object:
        @workflow("order")
        async def order(event: WorkflowEvent[Local], step: Step) -> int:
            return event.payload.number

        return order

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await begin(test, params={"number": 5})) == 5
        await refused(test, {"number": "five"}, 'params.number: "five" is not of type "integer"')

    run(scenario, declared())


def test_the_type_of_params_is_named_plainly():
    @workflow("order")
    async def order(event: WorkflowEvent[dict[str, list[Order]] | None], step: Step) -> None:
        await step.do("never", lambda: 1)

    assert f"{order.params_type()!r}" == "dict[str, list[Order]] | None"


class Sale(msgspec.Struct):
    lines: list[Line]
    at: datetime
    extra: dict[str, int] = {}


@pytest.mark.parametrize(
    ("params", "told"),
    [
        (None, "null is not of type"),
        ([], "[] is not of type"),
        ({"lines": []}, '"at" is a required property'),
        ({"lines": [{"sku": "a"}, {"sku": 1}], "at": AT}, "params.lines[1].sku: 1 is not of type"),
        ({"lines": [], "at": AT, "extra": {"a": "b"}}, "params.extra.a: "),
        ({"lines": [], "at": AT, "more": 1}, "'more' was unexpected"),
        ({"lines": [{"sku": "a", "more": 1}], "at": AT}, "params.lines[0]: "),
    ],
)
def test_params_that_do_not_fit_create_nothing_and_say_where(params: object, told: str):
    @workflow("order")
    async def order(event: WorkflowEvent[Sale], step: Step) -> int:
        return len(event.payload.lines)

    @workflow("shop")
    async def shop(event: WorkflowEvent, step: Step) -> object:
        await step.do("begin", lambda tx: tx.create_workflow(order, id="i-2", params=params))
        try:
            return await step.run_workflow("child", order, id="i-3", params=params)
        except ChildWorkflowError as error:
            return str(error)

    async def scenario(test: WorkflowTest) -> None:
        await refused(test, params, told)
        with pytest.raises(WorkflowParamsInvalidError):
            await test.create_batch("order", [{"id": "i-1", "params": params}])
        fits = {"lines": [{"sku": "tea"}], "at": AT, "extra": {"a": 1}}
        assert await output_of(await begin(test, params=fits)) == 1
        instance = await begin(test, name="shop", instance="s")
        assert told in await output_of(instance)
        (line,) = (await instance.history()).logs
        assert told in line.message
        with pytest.raises(InstanceNotFoundError):
            test.get("order", "i-2")

    run(scenario, order, shop)


def test_a_mapping_takes_any_names():
    @workflow("order")
    async def order(event: WorkflowEvent[dict[str, int]], step: Step) -> int:
        return len(event.payload)

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await begin(test, params={"a": 1, "b": 2})) == 2

    run(scenario, order)


def test_the_constraints_of_params_are_checked():
    @workflow("order")
    async def order(event: WorkflowEvent[Annotated[int, msgspec.Meta(gt=0)]], step: Step) -> int:
        return event.payload

    async def scenario(test: WorkflowTest) -> None:
        assert await output_of(await begin(test, params=5)) == 5
        await refused(test, -5, "params: -5 is less than or equal to the minimum of 0")

    run(scenario, order)


def test_an_app_whose_type_of_params_is_not_there_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = FOR_TYPE_CHECKERS.format(
        annotation="WorkflowEvent[Amount]", imports=IMPORTED, after=""
    )
    (tmp_path / "shop_without_a_type.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AppNotLoaded, match="import it at run time"):
        load_app("shop_without_a_type")
    sys.modules.pop("shop_without_a_type", None)
