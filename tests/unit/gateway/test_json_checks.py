"""JSON that every reader reads alike: what is refused, by both ways of looking at it."""

import json
from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.gateway.api.json_checks import (
    SMALL_BYTES,
    DuplicateName,
    check_at_once,
    check_in_steps,
    check_text,
)
from headwater.processors.input_texts import TooDeep

Check: TypeAlias = Callable[[str], None]
WAYS: list[Check] = [check_at_once, check_in_steps]
LEVELS = 128

GOOD = [
    "null", "true", "-0", "1.5", '""', "[]", "{}", " [ ] ", '{"a":{"a":{"a":1}},"b":{"a":1}}',
    '[{"a":1},{"a":1}]', '{"a":[{"a":1},{"a":2}],"b":1}', '{"a":"a","b":"b"}', '{"":0," ":1}',
    '{"a":{},"b":{ },"c":{ "d" : 1 },"d":[]}', "1e308", "1.7976931348623157e308", "1e-400000",
    "1E+99", "9" * 4300, "-" + "9" * 4300, "0." + "1" * 5000, '"1e400"', '"[[[{{{\\""',
    '{"a\\"":1,"a":2}', '{"\\u0061b":1,"a":2}', '"\\ud83d\\ude00"', "[" * LEVELS + "]" * LEVELS,
    '{"e":1e5,"E":2E5}', '{"a":1,\n\t"b" \r: 2}', '"' + "[" * 500 + '"', '{"x":[1,2,{"x":[]}]}',
]  # fmt: skip

TWICE = [
    ('{"a":1,"a":2}', "'a'"),
    ('{"a":1,"b":{},"a":2}', "'a'"),
    ('{"a":1,"b":[{"c":1}],"a":2}', "'a'"),
    ('[[{"x":{"y":1,"y":2}}]]', "'y'"),
    ('{"\\u0061":1,"a":2}', "'a'"),
    ('{"a":1,"\\u0061":2}', "'a'"),
    ('{"é":1,"\\u00e9":2}', "'\\xe9'"),
    ('{"a" :1, "a"\n:2}', "'a'"),
    ('{"a":{"b":1},"c":{"b":1,"d":2,"b":3}}', "'b'"),
    ('{"":1,"":2}', "''"),
    ('{"\\n":1,"\\u000a":2}', "'\\n'"),
    ('{"\\/":1,"/":2}', "'/'"),
    ('{"' + "n" * 900 + '":1,"' + "n" * 900 + '":2}', repr("n" * 60)),
]

BAD = [
    "", " ", "{", "[", "]", "[1,]", '{"a":1,}', "nul", "NaN", "Infinity", "-Infinity", "01", "1.",
    ".5", "+1", "1e", "--1", "0x1", "1_0", "'a'", '"a', '"\n"', '"\\x"', '"\\u12"', '"\\ud800"',
    '"\\udc00"', '"\\ud800\\u0041"', '{"a" 1}', '{a:1}', "{1:1}", "[1 2]", "1 2", "[]]", "\ufeff1",
    "1e309", "-1e309", "1e400", "1E+400", "9" * 309 + ".0", "1" * 400 + "e1", "9" * 4301,
    "-" + "9" * 4301, "[1,1e400]", '{"a":1e400}', "[1e400,1]", "[" * 100 + "1e400" + "]" * 100,
    '["a",1e400,"b"]', "0.1e999", "/**/1",
]  # fmt: skip

DEEP = [
    "[" * (LEVELS + 1) + "]" * (LEVELS + 1),
    '{"a":' * (LEVELS + 1) + "1" + "}" * (LEVELS + 1),
    '[{"a":' * 65 + "1" + "}]" * 65,
    "[" * 50_000 + "]" * 50_000,
    '{"x":"' + "]" * 200 + '","y":' + "[" * LEVELS + "]" * LEVELS + "}",
]


@pytest.mark.parametrize("check", WAYS)
@pytest.mark.parametrize("text", GOOD)
def test_what_every_reader_reads_alike_is_taken(check: Check, text: str) -> None:
    check(text)


@pytest.mark.parametrize("check", WAYS)
@pytest.mark.parametrize(("text", "name"), TWICE)
def test_a_name_twice_in_one_object_is_named(check: Check, text: str, name: str) -> None:
    with pytest.raises(DuplicateName) as caught:
        check(text)
    assert str(caught.value) == name


@pytest.mark.parametrize("check", WAYS)
@pytest.mark.parametrize("text", BAD)
def test_what_is_no_json_or_no_number_is_refused(check: Check, text: str) -> None:
    assert _verdict(check, text) is ValueError


@pytest.mark.parametrize("check", WAYS)
@pytest.mark.parametrize("text", DEEP)
def test_too_many_levels_are_refused_as_such(check: Check, text: str) -> None:
    with pytest.raises(TooDeep):
        check(text)


@pytest.mark.parametrize("body", [b"\xff", b'"\xff"', b'"\xed\xa0\x80"', b'{"a":"\xc3"}'])
@pytest.mark.parametrize("padding", [0, SMALL_BYTES])
def test_what_is_not_utf_8_is_refused(body: bytes, padding: int) -> None:
    with pytest.raises(UnicodeDecodeError):
        check_text(body + b" " * padding)


def test_a_text_of_many_steps_is_looked_at_whole() -> None:
    """Faults at the seams of steps: long runs of whitespace, digits, strings and brackets."""
    for filling in (" " * 4095, " " * 70_000, "1," * 40_000 + "1,", '"",' * 5_000, "[]," * 60_000):
        for end, fault in (("1e400]", ValueError), ('{"a":1,"a":2}]', DuplicateName), ("2]", None)):
            text = "[" + (filling if filling.strip() else f"1{filling},") + end
            for check in WAYS:
                if fault is None:
                    check(text)
                else:
                    with pytest.raises(fault):
                        check(text)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(
            st.tuples(st.sampled_from(["a", "b", "", "\u00e9", '"', "{"]), inner), max_size=4
        )
    ),
    max_leaves=20,
)


def _written(value: object, draw_escape: Callable[[], bool]) -> str:
    """JSON of a value, in which a list of pairs is an object that may have a name twice."""
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        members = (
            f"{json.dumps(name, ensure_ascii=draw_escape())}: {_written(inner, draw_escape)}"
            for name, inner in value
        )
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(inner, draw_escape) for inner in value) + "]"
    return json.dumps(value)


def _verdict(check: Check, text: str) -> type[BaseException] | None:
    try:
        check(text)
    except (TooDeep, DuplicateName) as error:
        return type(error)
    except ValueError:
        return ValueError
    return None


@settings(max_examples=75, deadline=None)
@given(_VALUES, st.data())
def test_both_ways_agree(value: object, data: st.DataObject) -> None:
    text = _written(value, lambda: data.draw(st.booleans()))
    assert _verdict(check_at_once, text) == _verdict(check_in_steps, text), text


@settings(max_examples=75, deadline=None)
@given(st.text(st.sampled_from('[]{}",:\\ \n01e+-.at\u00e9ud8'), max_size=40))
def test_both_ways_agree_on_any_text(text: str) -> None:
    assert _verdict(check_at_once, text) == _verdict(check_in_steps, text), text
