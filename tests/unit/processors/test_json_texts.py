"""JSON of unknown origin is read within limits; how deep it is does not depend on the parser."""

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.input_texts import (
    CONTAINERS_MAX,
    EXTREME_NUMBERS_MAX,
    JsonInvalid,
    TooDeep,
    check_numbers,
    read_json,
    within_levels,
)
from headwater.schemas.history import NESTING_MAX

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def wrapped(value: object, levels: int) -> str:
    return '{"[\\"":' * levels + json.dumps(value) + "}" * levels


def levels_of(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(levels_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES)
def test_as_many_levels_are_read_as_there_may_be_and_no_more(value: object):
    room = NESTING_MAX - levels_of(value)
    text = wrapped(value, room)
    assert within_levels(text) == text
    with pytest.raises(TooDeep, match="found more"):
        within_levels(wrapped(value, room + 1))


def test_brackets_in_strings_are_no_levels():
    text = json.dumps(["[" * 1_000, '"' + "{" * 1_000, "\\"])
    assert within_levels(text) == text


@pytest.mark.parametrize("end", ["", "\\"])
def test_a_string_that_does_not_end_is_looked_at_once(end: str):
    # For each of its quotes anew, it would take longer than a test may.
    inside = '\\"' * 1_000_000 + end
    text = "[" * NESTING_MAX + '"[' + inside
    assert within_levels(text) is text
    with pytest.raises(TooDeep):
        within_levels(f"[{text}")


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**400), 10**400)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON, st.booleans())
def test_every_value_is_read_as_it_was_written(value: object, ascii_only: bool):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert read_json(text) == value
    assert read_json(text.encode()) == value


@given(st.text() | st.text('[]{}"\\,:0123456789.eE+-ntrufalse \ud800') | st.binary())
def test_whatever_it_is_it_is_read_or_refused(text: str | bytes):
    try:
        read_json(text)
    except JsonInvalid:
        pass
    else:
        # What is read, Python reads alike, but for names that are twice.
        assert json.loads(text) == read_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e999",
        "[-1e999]",
        "9" * 400 + ".0",
        "1" * 4_301,
        "[1,]",
        "01",
        "1.",
        "'a'",
        r'"\ud800"',
        '"\ud800"',
        '"\n"',
        "\ufeff1",
        b'"\xff"',
        b"\xff\xfe1\x00",
        b"\x00",
    ],
)
def test_what_is_not_json_is_refused_by_one_error(text: str | bytes):
    with pytest.raises(JsonInvalid):
        read_json(text)


@given(VALUES)
def test_values_are_read_up_to_the_levels_that_there_may_be(value: object):
    room = NESTING_MAX - levels_of(value)
    text = wrapped(value, room)
    assert read_json(text) == json.loads(text)
    for deeper in (room + 1, room + 100):
        with pytest.raises(TooDeep, match="at most 128 levels"):
            read_json(wrapped(value, deeper).encode())


@pytest.mark.parametrize("inner", ["[" * 1_000_000, '{"":' * 1_000_000])
def test_levels_beyond_every_parser_are_refused_alike(inner: str):
    with pytest.raises(JsonInvalid, match="at most"):
        read_json(inner)
    opening = inner[:8_000]
    closing = opening.replace('"":', "").translate({ord("["): "]", ord("{"): "}"})
    with pytest.raises(TooDeep):
        read_json(opening + "0" + closing)


def test_lists_and_objects_are_counted_but_not_in_strings():
    full = "[" + ",".join(["{}"] * (CONTAINERS_MAX - 1)) + "]"
    assert len(read_json(full)) == CONTAINERS_MAX - 1
    with pytest.raises(JsonInvalid, match=f"at most {CONTAINERS_MAX} lists and objects, found"):
        read_json(full[:-1] + ",[]]")
    text = json.dumps({"a": "[" * CONTAINERS_MAX, "b": [[]]})
    assert read_json(text.encode()) == json.loads(text)


#: Numbers that some parser needs long for, the largest text of each that a request may have.
SLOW = [
    "1e308",
    "1.7976931348623157e308",
    "8.98846567431158e307",
    "4.9e-324",
    "2.2250738585072011e-308",
]


@pytest.mark.parametrize("number", SLOW)
def test_no_number_takes_long_to_read(number: str):
    # In proportion to a usual number, as the machine may be slow: it was 100 times that.
    def seconds(item: str) -> float:
        text = f"[{','.join([item] * 20_000)}]"
        best = math.inf
        for _ in range(5):
            begun = time.process_time()
            read_json(text)
            best = min(best, time.process_time() - begun)
        return best

    assert seconds(number) < 10 * seconds("72.5" + "0" * (len(number) - 4))


@pytest.mark.parametrize("number", ["1e308", "1.5E+299", "4.9e-324", "1e0308", "8.5e+00307"])
def test_a_text_of_numbers_near_the_limits_of_floats_is_not_read_into_typed_fields(number: str):
    numbers = [number] * (EXTREME_NUMBERS_MAX + 1)
    filler = '"' + "x" * 65_536 + '"'
    with pytest.raises(JsonInvalid, match="exponent of 200 or more, found 10001"):
        check_numbers(f"[{filler},{','.join(numbers)}]".encode())
    check_numbers(f"[{filler},{','.join(numbers[1:])}]".encode())


@pytest.mark.parametrize("text", ["1e30", "1e100", '"ce2d-e300"', '"e+3"', '"9f3e3a21"'])
def test_usual_texts_are_read_whatever_their_length(text: str):
    check_numbers(f"[{','.join([text] * 20_000)}]".encode())
