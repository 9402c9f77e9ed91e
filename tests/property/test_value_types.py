"""A schema of params accepts what is read, and values of a type are read back as they were."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, create_model

from headwater.processors.runs.params import params_problem
from headwater.streams.authoring.value_types import ValueType
from headwater.streams.authoring.values import decode, encode_object

T = TypeVar("T")


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Color(StrEnum):
    RED = "red"


class Way(Enum):
    UP = "up"
    DOWN = "down"


class Point(NamedTuple):
    x: int
    at: date = date(2026, 1, 1)


class Row(TypedDict):
    number: int
    note: NotRequired[str]


@dataclass
class Line:
    sku: str
    count: int = 1
    tags: list[str] = field(default_factory=list)
    #: What has no JSON is a default all the same.
    odd: Any = field(default=None)


@dataclass
class Node:
    """Refers to itself."""

    value: int
    next: "Node | None" = None


@dataclass
class Paged(Generic[T]):
    items: list[T]
    cursor: T | None = None


@attrs.define
class Defined:
    number: int
    price: Decimal = Decimal("1.5")


class Record(msgspec.Struct, rename="camel"):
    the_number: int
    at: datetime | None = None


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    number: int


class Listed(msgspec.Struct, array_like=True):
    number: int
    text: str = ""


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Model(BaseModel):
    number: int
    at: datetime
    price: Decimal = Decimal(1)
    size: Size = Size.SMALL
    lines: list[Line] = []
    alias: str = Field("", alias="otherName")
    parent: "Model | None" = None
    days: timedelta = timedelta()
    id: UUID | None = None


class Ids(RootModel[list[int]]):
    pass


class Boxed(BaseModel, Generic[T]):
    value: T


#: Texts that are read as something, or nearly so.
TEXTS = [
    *("", "x", "1", "-1", "-0", "01", "1.0", "1e3", "nan", "Infinity", " 1", "1_0", "true", "\0"),
    *("2026-01-01", "2026-13-01", "2026-1-1", "20260101", "0000-01-01"),
    *("2026-01-01T00:00:00", "2026-01-01T00:00:00Z", "2026-01-01 00:00:00+01:00", "2026-01-01T00"),
    *("2026-01-01T24:00:00Z", "2026-01-01T23:59:60Z", "2026-01-01T00:00:00+2359", "nonsense"),
    *("9999-12-31T23:59:59.9999999Z", "00:00:00", "00:00:00.5+01:00", "24:00:00", "00:00"),
    *("P1D", "PT1.5S", "-P1D", "P1M", "P1Y", "P9999999999D", "p1d", "P"),
    *("12345678-1234-5678-1234-567812345678", "12345678123456781234567812345678"),
    *("{12345678-1234-5678-1234-567812345678}", "1234567-81234-5678-1234-567812345678"),
    *("12345678-1234-5678-1234-5678ABCDEF00", "YQ==", "YQ", "***", "Y Q=", "red", "up", "Cat"),
]
NUMBERS = [0, 1, 2, -1, 1.0, 1.5, -0.0, 1e300, 1e16, 2**63, -(2**64), 2**70, 10**400, 5]
ODD = [None, True, False, *NUMBERS, *TEXTS, [], [1, 1], [[1]], {}, {"x": 1}, {"1": "a"}]

forms = [
    *(int, float, str, bool, datetime, date, time, timedelta, UUID, Decimal, bytes, Size, Color),
    *(Way, Point, Row, Line, Node, Paged[int], Paged[date], Defined, Record, Strict, Listed, Cat),
    *(dict[int, str], dict[UUID, int], dict[date, int], dict[Size, int], dict[Way, int]),
    *(dict[Literal["a", "b"], int], dict[str, Line], dict[str, datetime], list[Row]),
    *(set[int], frozenset[str], set[date], tuple[int, str], tuple[date, ...], tuple[int, ...]),
    *(
        Literal[1, "a"],
        Literal[1, 2] | None,
        int | None,
        int | str | None,
        float | str,
        int | float,
    ),
    *(Cat | Dog, Cat | Dog | None, Line | int, list[Line | None], datetime | int, Decimal | None),
    Annotated[int, msgspec.Meta(ge=0, lt=10)],
    Annotated[str, msgspec.Meta(min_length=1, max_length=3, pattern="^[a-z0-9]")],
    Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)],
    Annotated[datetime, msgspec.Meta(tz=True)],
    Annotated[datetime, msgspec.Meta(tz=False)],
    Annotated[time, msgspec.Meta(tz=True)],
    dict[Annotated[str, msgspec.Meta(max_length=2)], int],
]
models = [Model, Ids, Boxed[int], Boxed[Line], list[Model], dict[str, Model], Model | None]

zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.integers(-1439, 1439).map(lambda item: timezone(timedelta(minutes=item))),
)
aware = st.one_of(st.none(), st.just(UTC))
st.register_type_strategy(datetime, st.datetimes(timezones=zones))
st.register_type_strategy(time, st.times(timezones=aware))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(Decimal, st.decimals(allow_nan=False))
st.register_type_strategy(str, st.text(st.characters(codec="utf-8"), max_size=5))
st.register_type_strategy(
    Line, st.builds(Line, sku=st.text("ab"), count=st.integers(), tags=st.lists(st.text("a")))
)
st.register_type_strategy(Ids, st.builds(Ids, st.lists(st.integers())))
st.register_type_strategy(
    Model,
    st.builds(
        Model,
        number=st.integers(),
        at=st.datetimes(timezones=aware),
        price=st.decimals(allow_nan=False, allow_infinity=False, places=2),
        lines=st.lists(st.builds(Line, sku=st.just("a")), max_size=2),
        otherName=st.just("b"),
        days=st.timedeltas(),
        id=st.one_of(st.none(), st.uuids()),
    ),
)
SPECIAL = {
    Paged[int]: st.builds(Paged, st.lists(st.integers()), st.integers()),
    Paged[date]: st.builds(Paged, st.lists(st.dates()), st.dates()),
    Annotated[datetime, msgspec.Meta(tz=True)]: st.datetimes(timezones=st.just(UTC)),
    Annotated[datetime, msgspec.Meta(tz=False)]: st.datetimes(),
    Annotated[time, msgspec.Meta(tz=True)]: st.times(timezones=st.just(UTC)),
    Annotated[int, msgspec.Meta(ge=0, lt=10)]: st.integers(0, 9),
    Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)]: st.just([1]),
    Annotated[str, msgspec.Meta(min_length=1, max_length=3, pattern="^[a-z0-9]")]: st.just("a"),
    dict[Annotated[str, msgspec.Meta(max_length=2)], int]: st.just({"a": 1}),
    Node: st.builds(Node, value=st.integers(), next=st.builds(Node, value=st.integers())),
}


def values_of(form: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401
    """Values of a type."""
    return SPECIAL[form] if form in SPECIAL else st.from_type(form)


@st.composite
def nearly(draw: st.DrawFn, value: Any) -> Any:  # noqa: ANN401
    """A JSON value in which one part, or one key, is another than it was."""
    odd = st.sampled_from(ODD)
    within = isinstance(value, dict | list) and len(value) > 0 and draw(st.integers(0, 3)) > 0
    if not within:
        return draw(odd)
    if isinstance(value, list):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(nearly(value[at])), *value[at + 1 :]]
    name = draw(st.sampled_from(sorted(value)))
    change = draw(st.integers(0, 4))
    rest = {item: value[item] for item in value if item != name}
    if change == 0:
        return rest
    if change == 1:
        return {**rest, draw(st.sampled_from(TEXTS)): value[name]}
    return {**value, name: draw(nearly(value[name]))}


def fault(declared: ValueType, value: object) -> str | None:
    """What the check of params before anything is created has against a value."""
    return params_problem(declared.schema(), json.dumps(value))


@settings(max_examples=75)
@given(form=st.sampled_from([*forms, *models]), data=st.data())
def test_a_value_of_a_type_is_accepted_and_read_back_equal(form: Any, data: st.DataObject):  # noqa: ANN401
    value = data.draw(values_of(form))
    declared = ValueType(form)
    text = encode_object(value, "the params")
    if value is not None:
        assert params_problem(declared.schema(), text) is None
    assert declared.read(text) == value


@settings(max_examples=100)
@given(form=st.sampled_from(forms), data=st.data())
def test_the_check_of_params_accepts_what_is_read(form: Any, data: st.DataObject):  # noqa: ANN401
    declared = ValueType(form)
    declared.check()
    plain = json.loads(encode_object(data.draw(values_of(form)), "the params"))
    value = data.draw(st.one_of(nearly(plain), st.sampled_from(ODD)))
    result = fault(declared, value)
    why = misfit(declared, value)
    if result is None:
        assert why is None
    elif why is None:
        # Reading drops what the check refuses: a field that has no name, and what comes twice.
        open_schema = (declared.schema() or "").replace(
            '"additionalProperties":false', '"title":""'
        )
        open_schema = open_schema.replace('"uniqueItems":true', '"title":""')
        assert value is None or params_problem(open_schema, json.dumps(value)) is None, result


def misfit(declared: ValueType, value: object) -> str | None:
    """Why a value cannot be read, if it cannot."""
    try:
        declared.read(json.dumps(value))
    except (msgspec.ValidationError, ValueError) as error:
        return str(error)
    return None


@settings(max_examples=50)
@given(form=st.sampled_from(models), data=st.data())
def test_a_model_reads_what_its_schema_accepts(form: Any, data: st.DataObject):  # noqa: ANN401
    declared = ValueType(form)
    declared.check()
    plain = json.loads(encode_object(data.draw(values_of(form)), "the params"))
    value = data.draw(nearly(plain))
    if fault(declared, value) is None:
        declared.read(json.dumps(value))


@pytest.mark.parametrize("text", ["true", "", "-", "1.2.3", "NaN", "Infinity"])
def test_a_decimal_of_a_model_is_no_other_text(text: str):
    model = create_model("Priced", price=(Decimal, ...))
    assert fault(ValueType(model), {"price": text}) is not None
    assert fault(ValueType(model), {"price": "12.50"}) is None


def test_a_number_beyond_every_float_is_refused():
    assert fault(ValueType(float), 10**400) is not None
    assert fault(ValueType(float), -(10**400)) is not None
    assert fault(ValueType(float), 10**308) is None


@given(text=st.text(alphabet='[]{}:,"\\u0d81e-+.tfn \ufeffNaIrlsy', max_size=12))
@example(text=' {"a": [1, 2.5, null]} ')
@example(text="1 2")
@example(text='{"a":}')
@settings(deadline=None)
def test_texts_are_decoded_as_by_the_standard_library(text: str):
    def outcome(of: Callable[[str], Any]) -> str:
        try:
            return repr(of(text))
        except ValueError as error:
            return repr(error)

    assert outcome(decode) == outcome(json.loads)
