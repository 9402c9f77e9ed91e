"""Numbers of all kinds, missing parts, optional values and the order of objects in expressions."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from headwater.processors.cel_programs import ExpressionInvalid, Names, ResultKind
from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.expressions import Expression, ExpressionValues

NAMES = Names("input")
HUGE = 2**63
DATA: dict[str, Any] = {
    "id": 1,
    "price": 9.99,
    "whole": 7.0,
    "huge": HUGE,
    "lines": [{"p": 1, "tags": ["a"]}, {"q": 2}, {"p": 3.5}],
    "map": {"b": 1, "a": 2},
    "in": 5,
    "text": "x",
    "none": None,
}


def value(source: str, data: object = None, kind: ResultKind = ResultKind.VALUE) -> object:
    values = ExpressionValues({"input": DATA if data is None else data}, NAMES)
    return Expression(source, kind, NAMES, ["item"]).evaluate(values, {"item": {"p": 1}})


def message_of(source: str) -> str:
    problem = value(source)
    assert isinstance(problem, EvaluationProblem)
    assert not problem.missing
    return problem.message


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("input.price * input.id", 9.99),
        ("input.id * 2.5", 2.5),
        ("2 * 2.5", 5.0),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / 2.0", 3.5),
        ("input.whole / 2", 3.5),
        ("input.whole % 2", 1.0),
        ("-7 % 2.0", -1.0),
        ("7.0 % 2.0", 1.0),
        ("1u + 1", 2),
        ("2u - 3", -1),
        ("-input.huge", -HUGE),
        ("input.huge + 1", HUGE + 1),
        ("input.huge - 1", HUGE - 1),
        ("input.huge / 2", HUGE // 2),
        ("input.huge % 10", HUGE % 10),
        ("input.price * 2 > 10.0", True),
        ("input.id > 0.5", True),
        ("size(input.lines) > 2.5", True),
        ("1 == 1.0", True),
        ("1 != 1.5", True),
        ("1 in [1.0, 2.0]", True),
        ("input.whole in [7]", True),
        ("input.id < input.huge", True),
        ("input.price > 1 ? 1 : 1.5", 1),
        ("math.greatest(input.id, 1.5)", 1.5),
        ("math.least([3, 1.5, 2])", 1.5),
        ("math.ceil(3)", 3),
        ("math.ceil(input.price)", 10.0),
        ("math.floor(input.id)", 1),
        ("math.round(2.5)", 3.0),
        ("1 / 0.0 > 5.0", True),
    ],
)
def test_numbers_of_different_types_are_one_kind(source: str, expected: float):
    result = value(source)
    assert (type(result), result) == (type(expected), expected)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("input.whole % 0.5", "expected whole numbers for %, found 0.5"),
        ("input.whole % 0", "modulus by zero"),
        ("input.huge % (input.id - 1)", "modulus by zero"),
        ("input.huge / (input.id - 1)", "divide by zero"),
        ("input.huge * 4", "integer overflow"),
        ("1 / 0", "divide by zero"),
        ("input.id + input.text", "No matching overloads"),
    ],
)
def test_numbers_that_have_no_result_fail(source: str, message: str):
    assert message in message_of(source)


@pytest.mark.parametrize("source", ["1 < 'b'", "1 == 'a'", "'a' in [1.0]", "true ? 1 : 'a'"])
def test_values_of_other_types_are_not_compared(source: str):
    with pytest.raises(ExpressionInvalid, match="found no matching overload"):
        Expression(source, ResultKind.VALUE, NAMES)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{'id': input.id, 'note': input.note}", {"id": 1}),
        ("[input.id, input.note]", [1, None]),
        ("{'a': {'b': input.no, 'c': 1}, 'd': [input.no]}", {"a": {"c": 1}, "d": [None]}),
        ("{'n': input.no + 1, 'id': input.id}", {"id": 1}),
        ("[input.lines[7], input.id]", [None, 1]),
        ("input.lines.map(line, line.p)", [1, None, 3.5]),
        ("input.lines.map(line, has(line.p), line.q)", [None, None]),
        ("input.lines.map(line, line.p).filter(p, p != null)", [1, 3.5]),
        (
            "input.lines.map(line, {'p': line.p, 'n': 1})",
            [{"p": 1, "n": 1}, {"n": 1}, {"p": 3.5, "n": 1}],
        ),
        ("input.lines.map(line, line.p * 2)", [2, None, 7.0]),
        ("size([input.no, input.id])", 2),
        ("[input.no].exists(x, x == null)", True),
        ("input.lines.exists(line, [line.p] == [null])", True),
        ("input.lines.all(line, size([line.p]) == 1)", True),
        ("input.lines.exists_one(line, [line.q] == [2])", True),
        ("input.id == 1 ? {'a': input.no, 'b': 1} : {}", {"b": 1}),
        ("[input.no] == [] || true", True),
        ("{?'a': input.?no, 'b': input.no, 'c': 1}", {"c": 1}),
        ("[?input.?no, input.no, input.id]", [None, 1]),
        ("{'p': item.p, 'q': item.q, 'n': input.no}", {"p": 1}),
        ("input.map.map(k, {'k': k, 'no': input.no})", [{"k": "a"}, {"k": "b"}]),
        ("[input.no, 'a\\u0000b']", [None, "a\0b"]),
    ],
)
def test_a_missing_part_leaves_the_others(source: str, expected: object):
    assert value(source) == expected
    assert json.loads(value(source, kind=ResultKind.JSON)) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{'a': 1 / 0, 'b': input.no}", "divide by zero"),
        ("[input.no, input.none.x]", "expected an object to read a field of"),
        ("input.lines.map(line, [line.p, 1 / 0])", "divide by zero"),
        ("[input.?no]", "add orValue"),
    ],
)
def test_a_part_that_fails_fails_the_whole(source: str, message: str):
    assert message in message_of(source)


@pytest.mark.parametrize(
    "source",
    [
        "input.no",
        "input.no == null",
        "input.no != 'done'",
        "input.no + 1",
        "input.lines[9]",
        "input.lines.filter(line, line.p > 0)",
    ],
)
def test_a_missing_field_that_is_no_part_makes_the_whole_missing(source: str):
    problem = value(source)
    assert isinstance(problem, EvaluationProblem)
    assert problem.missing


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("has(input.a.b)", False),
        ("!has(input.a.b)", True),
        ("has(input.map.a)", True),
        ("has(input.a.b.c.d)", False),
        ("has(input.lines[0].p)", True),
        ("has(input.lines[9].p)", False),
        ("has(input.none)", True),
        ("has(input.in)", True),
        ("input.in + 1", 6),
        ("'input.in' + input.text", "input.inx"),
        ("input.?note", None),
        ("input.?id", 1),
        ("input.?note.orValue('n')", "n"),
        ("input.?id.optMap(x, x + 1)", 2),
        ("input.?a.?b.hasValue()", False),
        ("optional.of(1)", 1),
    ],
)
def test_a_field_may_be_missing(source: str, expected: object):
    assert value(source) == expected


def test_an_optional_value_is_no_condition():
    with pytest.raises(ExpressionInvalid, match="true or false"):
        Expression("input.?ok", ResultKind.CONDITION, NAMES)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("duration('90m')", "5400s"),
        ("duration('-1500ms')", "-1.500s"),
        ("duration('1us')", "0.000001s"),
        ("timestamp('2026-01-02T00:00:00Z') - timestamp('2026-01-01T00:00:00Z')", "86400s"),
        ("timestamp('2026-01-01T00:00:00Z') + duration('1h')", "2026-01-01T01:00:00Z"),
        ("{'d': duration('1s'), 'no': input.no}", {"d": "1s"}),
    ],
)
def test_times_and_durations_are_texts(source: str, expected: object):
    assert value(source) == expected
    assert json.loads(value(source, kind=ResultKind.JSON)) == expected


# -- order

#: Expressions whose results depend on the order in which a macro goes over an object.
ORDERED = [
    "input.m.map(k, k)",
    "input.m.filter(k, k != 'k3')",
    "input.m.map(k, input.m.map(l, k + l)).map(row, row[0])",
    "(input.m.k1 == 1 ? input.m : input.m).map(k, k)",
    "{'b': 1, 'a': 2, 'c': 3}.map(k, k)",
    "input.m.map(k, [k, input.no])",
]


def test_objects_are_iterated_in_the_order_of_their_keys():
    data = {"m": {f"k{index}": index for index in (5, 3, 11, 1, 2, 9, 8, 4, 7, 6, 10, 0)}}
    keys = sorted(data["m"])
    for _ in range(50):
        assert value("input.m.map(k, k)", data) == keys
    assert value("input.m.all(k, input.m[k] >= 0)", data) is True
    assert value(ORDERED[5], data) == [[key, None] for key in keys]
    assert value(ORDERED[4], data) == ["a", "b", "c"]


_OTHER = """
import json, sys
from tests.unit.processors.test_cel_parts import ORDERED, value
data = {"m": {f"k{index}": index for index in range(12)}}
print(json.dumps([value(source, data) for source in ORDERED]))
"""


def test_every_process_gives_the_same():
    answers = {
        subprocess.run(
            [sys.executable, "-c", _OTHER],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(answers) == 1
