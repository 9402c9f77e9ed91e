"""Values that are no JSON are refused with their place, and none is changed on its way."""

import math
from datetime import UTC, datetime
from enum import IntEnum, StrEnum

import pytest

from headwater import Continue, Step, UnserialisableError, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.history import NESTING_MAX
from headwater.streams.authoring.values import decode, encode
from tests.workflows.running import failure, output, run

#: The values are made here, because what contains itself cannot be written down.
CIRCULAR: dict = {"parent": {"children": []}}
CIRCULAR["parent"]["children"].append(CIRCULAR)
#: Deeper than the encoder goes, and than Python's stack.
DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]


class Colour(StrEnum):
    """Text as a member of an enumeration."""

    RED = "red"


class Number(IntEnum):
    """A number as a member of an enumeration."""

    ONE = 1


class Mute:
    """What cannot be shown."""

    def __repr__(self) -> str:
        """Fails."""
        raise LookupError


def refusal(value: object) -> str:
    """What is said of a value that is no JSON."""
    with pytest.raises(UnserialisableError) as caught:
        encode(value, "the result")
    message = str(caught.value)
    start = "expected the result to be JSON "
    assert message.startswith(start)
    return message.partition(", found ")[2]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({1: "a", "1": "b"}, "the key 1 of type int at $; convert it to text first"),
        ({None: 1}, "the key None of type NoneType at $; convert it to text first"),
        ({True: 1}, "the key True of type bool at $; convert it to text first"),
        ({False: 1}, "the key False of type bool at $; convert it to text first"),
        ({-1.5: 1}, "the key -1.5 of type float at $; convert it to text first"),
        ({1e300: 1}, "the key 1e+300 of type float at $; convert it to text first"),
        ({Number.ONE: 1}, "of type Number at $; convert it to text first"),
        ({(1, 2): 1}, "the key (1, 2) of type tuple at $; convert it to text first"),
        ([{"a": ({2: 1},)}], "the key 2 of type int at $[0].a[0]; convert it to text first"),
        ({"2026": {3: 1}}, "the key 3 of type int at $.2026; convert it to text first"),
        ({math.nan: 1}, "the key nan of type float at $; convert it to text first"),
    ],
)
def test_a_key_that_is_not_text_is_refused(value: object, told: str):
    assert told in refusal(value)


@pytest.mark.parametrize(
    "value",
    [
        {"1": "a", "-5": 1, "2026-01-01": [], "null": None, "true": True, "false": 1.5, "nan": 1},
        {"a": '"1": 2', "b": ['{"null":1}'], 'c"1': 1},
        [{"line1": {"sha256": "x"}}, 10**30, 0.1, "text"],
    ],
)
def test_keys_that_look_like_something_else_are_kept(value: object):
    assert decode(encode(value, "the result")) == value


def test_a_key_may_be_a_member_of_an_enumeration_of_text():
    assert decode(encode({Colour.RED: 1}, "the result")) == {"red": 1}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            {"items": [1, 2, 3, {"when": datetime(2026, 1, 1, tzinfo=UTC)}]},
            "datetime at $.items[3].when; convert it",
        ),
        ({1, 2}, "set at $; convert it"),
        ({"a": math.nan}, "nan at $.a: JSON has no such number; use None or text"),
        ([math.inf], "inf at $[0]: JSON has no such number; use None or text"),
        (CIRCULAR, "a dict at $.parent.children[0] that contains itself; leave that out"),
        ({"a": ["file \udcff"]}, "text that UTF-8 cannot hold at $.a[0], with a lone surrogate"),
        ({"file \udcff": 1}, "text that UTF-8 cannot hold at a key of $, with a lone surrogate"),
        (DEEP, "list, nested too deeply: make it flatter"),
        ([10**5_000], "list: Exceeds the limit"),
        ({Mute(): 1}, "the key (Mute) of type Mute at $"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(value: object, told: str):
    assert refusal(value).startswith(told)


def nested(levels: int) -> object:
    value: object = {"[[[": "{{{"}
    for _ in range(levels - 1):
        value = [value]
    return value


def test_a_value_has_so_many_levels_that_everybody_can_read_it():
    assert decode(encode(nested(NESTING_MAX), "the result")) == nested(NESTING_MAX)
    assert decode(encode("[" * 1_000, "the result")) == "[" * 1_000
    assert decode(encode([[]] * 1_000, "the result")) == [[]] * 1_000
    reported = "expected the result to have at most 128 levels of lists and dicts, found more"
    with pytest.raises(UnserialisableError, match=reported):
        encode(nested(NESTING_MAX + 1), "the result")


def test_a_step_whose_result_has_odd_keys_fails_at_once():
    calls: list[int] = []

    def prices() -> object:
        calls.append(1)
        return {1: "a", "1": "b"}

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("prices", prices)

    error = failure(order)
    assert error.name == "UnserialisableError"
    assert 'the result of step "prices"' in error.message
    assert "the key 1 of type int at $" in error.message
    assert len(calls) == 1


def test_odd_keys_of_other_values_are_refused_too():
    async def turn(step: Step, state: object) -> object:
        return Continue({"pages": {None: 1}})

    @workflow("looped")
    async def looped(event: WorkflowEvent, step: Step) -> None:
        await step.loop("pages", turn)

    @workflow("returned")
    async def returned(event: WorkflowEvent, step: Step) -> object:
        return {1: 1}

    @workflow("fine")
    async def fine(event: WorkflowEvent, step: Step) -> object:
        return {"1": 1}

    assert "at $.pages" in failure(looped, name="looped").message
    assert "the key 1" in failure(returned, name="returned").message
    assert output(fine, name="fine") == {"1": 1}

    async def scenario(test: WorkflowTest) -> None:
        with pytest.raises(UnserialisableError, match="the params of fine"):
            await test.create("fine", params={None: 1})

    run(scenario, fine)
