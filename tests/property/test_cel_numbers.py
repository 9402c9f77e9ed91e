"""Arithmetic in expressions equals a naive model over the numbers of JSON."""

import math
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.cel_programs import Names, ResultKind
from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.expressions import Expression, ExpressionValues

NAMES = Names("a", "b")
INTEGERS = range(-(2**63), 2**64)
INT = range(-(2**63), 2**63)
#: A number as JSON may write it.
numbers = st.one_of(
    st.integers(-20, 20),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-20, 20).map(float),
    st.floats(-1e6, 1e6, allow_nan=False),
    st.floats(allow_nan=False, allow_infinity=False),
)


class Refused(Exception):
    """The model has no result."""


def divide(a: float, b: float) -> float:
    if isinstance(a, float) or isinstance(b, float):
        if b == 0:
            raise Refused  # Not a number of JSON.
        return a / b
    if b == 0:
        raise Refused
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def remainder(a: float, b: float) -> float:
    if isinstance(a, float) or isinstance(b, float):
        if not float(a).is_integer() or not float(b).is_integer() or b == 0:
            raise Refused
        return math.fmod(a, b)
    return a - b * divide(a, b)


MODEL: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": divide,
    "%": remainder,
}
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
EXPRESSIONS = {op: Expression(f"a {op} b", ResultKind.VALUE, NAMES) for op in MODEL | COMPARISONS}


def evaluated(operator: str, a: object, b: object) -> object:
    return EXPRESSIONS[operator].evaluate(ExpressionValues({"a": a, "b": b}, NAMES))


def expected(operator: str, a: float, b: float) -> float:
    """The model's result; Refused where CEL has none, because of its integers."""
    result = MODEL[operator](a, b)
    if isinstance(result, float):
        if not math.isfinite(result):
            raise Refused
        return result
    if result not in INTEGERS:
        raise Refused
    signed = [value in INT for value in (a, b)]
    # Operations of the library on two of one kind stay within it.
    if all(signed) and result not in INT:
        raise Refused
    if not any(signed) and result < 0:
        raise Refused
    return result


@given(st.sampled_from(sorted(MODEL)), numbers, numbers)
def test_arithmetic_equals_the_model(operator: str, a: float, b: float):
    result = evaluated(operator, a, b)
    try:
        model = expected(operator, a, b)
    except Refused:
        assert isinstance(result, EvaluationProblem)
        assert not result.missing
    else:
        assert (type(result), result) == (type(model), model)


small = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.sampled_from(sorted(COMPARISONS)), small, small)
def test_comparisons_equal_the_model(operator: str, a: float, b: float):
    assert evaluated(operator, a, b) is COMPARISONS[operator](a, b)


@given(st.sampled_from(["+", "-", "*", "%"]), st.integers(-99, 99), st.integers(1, 99))
def test_arithmetic_does_not_depend_on_how_json_wrote_a_number(operator: str, a: int, b: int):
    results = {evaluated(operator, x, y) for x in (a, float(a)) for y in (b, float(b))}
    assert len(results) == 1
    (quotient,) = {evaluated("/", x, y) for x, y in ((a, float(b)), (float(a), b))}
    assert quotient == a / b
