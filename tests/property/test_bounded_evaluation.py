"""Whatever an expression or a schema is, its evaluation ends within limits, or with an error."""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from headwater.processors.cel_programs import ExpressionInvalid, Names, Programs, ResultKind
from headwater.processors.cel_values import encode_for_cel
from headwater.processors.evaluations import EvaluationProblem, Evaluations
from headwater.processors.expressions import Expression, ExpressionValues
from headwater.processors.json_schemas import JsonSchema, SchemaInvalid
from headwater.streams.evaluation.evaluator import EvaluationLimits, EvaluatorProcess

NAMES = Names("a", "b")
LIMITS = EvaluationLimits(wall_s=120.0)

# -- expressions of the whole language, of such types that most of them get far

DEPTH = 4
Sources = st.SearchStrategy[str]


def calls(pattern: str, *parts: Sources) -> Sources:
    """Expressions of a pattern, in which each {} is another expression."""
    return st.builds(pattern.format, *parts)


def anything(depth: int) -> Sources:
    return texts(depth) | lists(depth) | numbers(depth) | conditions(depth) | objects(depth)


@cache
def texts(depth: int) -> Sources:
    known = st.sampled_from(
        ["a.t", "b.t", "b.u", "a.t+b.u", "item[0]", "'a'", "''", "'aaab'", "'{}'"]
    )
    if depth == 0:
        return known
    text, number, some = texts(depth - 1), numbers(depth - 1), lists(depth - 1)
    return known | st.one_of(
        calls("({}) + ({})", text, text),
        calls("({}).replace({}, {})", text, text, text),
        calls("({}).replace({}, {}, {})", text, text, text, number),
        calls("({}).join({})", some, text),
        calls("'%s%d%.900f'.format([{}, {}, {}])", text, number, number),
        calls("({}).format([{}])", text, anything(depth - 1)),
        calls("({}).substring({}, {})", text, number, number),
        calls("({}).charAt({})", text, number),
        *(
            calls(f"({{}}).{name}()", text)
            for name in ["trim", "reverse", "lowerAscii", "upperAscii"]
        ),
        calls("strings.quote({})", text),
        calls("string(bytes({}) + b'a')", text),
        calls("string({})", number),
        calls("({}) ? ({}) : ({})", conditions(depth - 1), text, text),
    )


@cache
def lists(depth: int) -> Sources:
    known = st.sampled_from(["a.l", "item", "[]", "[1,2]", "['a',a.t]", "[a.l,a.l]", "b.m"])
    if depth == 0:
        return known
    some, inner = lists(depth - 1), anything(depth - 1)
    return known | st.one_of(
        calls("({}) + ({})", some, some),
        calls("({}).map(x, {})", some, inner),
        calls("({}).map(x, [x, {}])", some, inner),
        calls("({}).map(x, {}, {})", some, conditions(depth - 1), inner),
        calls("({}).filter(y, {})", some, conditions(depth - 1)),
        calls("({}).split({})", texts(depth - 1), texts(depth - 1)),
        calls("[{}, {}, {}]", inner, inner, inner),
        calls("[?a.?no, {}, b.no]", inner),
        calls("({}).map(x, [x, x.no, {}])", some | objects(depth - 1), inner),
        calls("({}).map(k, k + k)", objects(depth - 1)),
        calls("a.?l.orValue({})", some),
    )


@cache
def numbers(depth: int) -> Sources:
    known = st.sampled_from(["a.n", "0", "1", "-7", "2u", "1e308", "0.1", "9223372036854775807"])
    if depth == 0:
        return known
    number, text = numbers(depth - 1), texts(depth - 1)
    return known | st.one_of(
        *(calls(f"({{}}) {sign} ({{}})", number, number) for sign in "+-*/%"),
        calls("-({})", number),
        calls("({}) * 1.5 + ({})", number, number),
        calls("math.greatest({}, {})", number, number),
        calls("math.least({})", lists(depth - 1)),
        *(calls(f"math.{name}({{}})", number) for name in ["ceil", "floor", "round", "abs"]),
        calls("a.?n.optMap(n, n + ({})).orValue({})", number, number),
        calls("size({})", text | lists(depth - 1)),
        calls("({}).indexOf({})", text, text),
        calls("({}).lastIndexOf({})", text, text),
        *(calls(f"{name}({{}})", number | text) for name in ["int", "uint", "double"]),
        calls("timestamp({}).getHours({})", text | number, text),
        calls("(timestamp('2026-01-01T00:00:00Z') + duration({})).getFullYear()", text),
    )


@cache
def conditions(depth: int) -> Sources:
    known = st.sampled_from(
        ["true", "false", "has(a.n)", "has(b.no.k)", "has(b.m.k)", "a.n==1", "x==1"]
    )
    if depth == 0:
        return known
    text, some, condition = texts(depth - 1), lists(depth - 1), conditions(depth - 1)
    inner = anything(depth - 1)
    macros = ["all", "exists", "exists_one"]
    searches = ["contains", "startsWith", "endsWith", "matches"]
    return known | st.one_of(
        *(calls(f"({{}}) {sign} ({{}})", inner, inner) for sign in ["==", "!=", "<", ">="]),
        *(calls(f"({{}}) {sign} ({{}})", condition, condition) for sign in ("&&", "||")),
        calls("!({})", condition),
        calls("({}) in ({})", inner, some),
        *(calls(f"({{}}).{name}(x, {{}})", some, condition) for name in macros),
        *(calls(f"({{}}).{name}({{}})", text, text) for name in searches),
        calls("({}).matches(r'((a|aa)+){{0,9}}$')", text),
        calls("({}).matches(r'(x?){{900}}')", text),
    )


@cache
def objects(depth: int) -> Sources:
    known = st.sampled_from(["a", "b", "b.m"])
    if depth == 0:
        return known
    inner = anything(depth - 1)
    return known | st.one_of(
        calls("{{'k': {}, 'l': {}}}", inner, inner),
        calls("{{'k': {}, ?'l': b.?m, 'n': b.no}}", inner),
    )


SOURCES = anything(DEPTH)

#: Each of them is cheap somewhere, and costly elsewhere.
ADVERSARIAL: list[dict[str, Any]] = [
    {"a": {"n": 3, "t": "aab", "l": [1, 2, 3]}, "b": {"t": "a", "m": {"k": 1}, "u": "x"}},
    {
        "a": {"n": 2**62, "t": "a" * 50_000, "l": list(range(20_000))},
        "b": {"t": "a", "m": {}, "u": "a" * 20_000 + "b"},
    },
    {
        "a": {"n": 1e308, "t": "", "l": ["a" * 500] * 1_500},
        "b": {"t": "", "m": {str(n): n for n in range(9_000)}, "u": ""},
    },
    {
        "a": {"n": -1, "t": "é\0" * 3_000, "l": [[["a"] * 40] * 40] * 20},
        "b": {"t": "é", "m": {"n": [{}]}, "u": "(x?){500}"},
    },
]


@pytest.fixture(scope="module")
def evaluator() -> Iterator[EvaluatorProcess]:
    process = EvaluatorProcess(LIMITS)
    yield process
    process.close()


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def check_expression(evaluator: EvaluatorProcess, source: str, values: dict[str, Any]) -> None:
    try:
        expression = Expression(source, ResultKind.VALUE, NAMES, ["item"])
    except ExpressionInvalid:
        return
    before = resident_mib()
    # No other exception, and nothing that is not a value of JSON.
    result = expression.evaluate(
        ExpressionValues(values, NAMES), {"item": values["a"]["l"]}, Evaluations(evaluator)
    )
    assert resident_mib() - before < 256, source
    if isinstance(result, EvaluationProblem):
        assert result.message
    else:
        json.dumps(result, allow_nan=False)


BRIEF = settings(
    max_examples=80,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
#: Twenty thousand in all. Hypothesis remembers what it has drawn for as long as a test runs, with
#: 20 KB of each expression and 160 KB of each schema.
LONG = settings(BRIEF, max_examples=500)
BLOCKS = pytest.mark.parametrize("block", range(40))


def check_environments(source: str) -> None:
    names = Names("a", "b")
    try:
        programs = Programs(source, ResultKind.VALUE, names, ["item"])
    except ExpressionInvalid:
        return
    values = ADVERSARIAL[0]
    local = {"item": encode_for_cel(values["a"]["l"])}
    if programs.plain is None or programs.goes_over_objects({"item": values["a"]["l"]}, values):
        return
    activation = names.plain.Activation(values)
    plain = programs.plain.evaluate(activation, local)
    if not isinstance(plain, EvaluationProblem):
        full = programs.full.evaluate(activation, local)
        assert repr(full) == repr(plain), source


@seed(57)
@BRIEF
@given(SOURCES)
def test_both_environments_have_the_same_result(source: str):
    check_environments(source)


@seed(57)
@BRIEF
@given(SOURCES, st.sampled_from(ADVERSARIAL))
def test_every_expression_ends_within_its_limits(
    evaluator: EvaluatorProcess, source: str, values: dict[str, Any]
):
    check_expression(evaluator, source, values)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@BLOCKS
def test_every_expression_ends_within_its_limits_for_hours(evaluator: EvaluatorProcess, block: int):
    @LONG
    @given(SOURCES, st.sampled_from(ADVERSARIAL))
    def check(source: str, values: dict[str, Any]) -> None:
        check_expression(evaluator, source, values)

    check()


@seed(57)
@BRIEF
@given(SOURCES, st.sampled_from(ADVERSARIAL[:1]))
def test_a_process_gives_what_the_library_gives_here(
    evaluator: EvaluatorProcess, source: str, values: dict[str, Any]
):
    try:
        expression = Expression(source, ResultKind.VALUE, NAMES)
    except ExpressionInvalid:
        return
    facts = ExpressionValues(values, NAMES)
    nothing_inline = Evaluations(evaluator)
    nothing_inline._inline_ns = -1
    assert expression.evaluate(facts, {}, nothing_inline) == expression.evaluate(facts)


# -- schemas of the whole vocabulary

NAMES_OF_FIELDS = st.sampled_from(["n", "t", "l", "0", "é"])
PATTERNS = st.sampled_from(["a+", r"^\p{L}{9}$", "(a|aa)*b", r"(\w{1,40}){1,40}", "[", "(?=a)"])
NUMBERS = st.sampled_from([0, 1, -1, 3, 0.01, 1e308, 1e-300, 2**70])
REFERENCES = st.sampled_from(
    ["#", "#/$defs/d0", "#/$defs/d1", "#/$defs/none", "#a", "https://example.org/x"]
)
LEAVES = st.one_of(
    st.booleans(),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["string", "number", "integer", "object", "array", "null", "boolean"]
            )
        }
    ),
    st.fixed_dictionaries({"pattern": PATTERNS}),
    st.fixed_dictionaries({"multipleOf": NUMBERS}),
    st.fixed_dictionaries({"minimum": NUMBERS, "exclusiveMaximum": NUMBERS}),
    st.fixed_dictionaries({"enum": st.lists(NUMBERS | st.text("ab"), max_size=4)}),
    st.fixed_dictionaries({"const": NUMBERS | st.lists(NUMBERS)}),
    st.fixed_dictionaries(
        {"maxLength": st.integers(0, 9), "format": st.sampled_from(["email", "date", "regex"])}
    ),
    st.fixed_dictionaries({"uniqueItems": st.just(True), "minItems": st.integers(0, 3)}),
    st.fixed_dictionaries({"required": st.lists(NAMES_OF_FIELDS, unique=True)}),
    st.fixed_dictionaries({"$ref": REFERENCES}),
    st.fixed_dictionaries({"$dynamicRef": REFERENCES}),
)


def applied(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    one = [
        "items",
        "additionalProperties",
        "contains",
        "not",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "if",
        "then",
        "else",
    ]
    several = st.lists(inner, min_size=1, max_size=4)
    by_name = st.dictionaries(NAMES_OF_FIELDS, inner, max_size=4)
    return st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(one, inner),
            **dict.fromkeys(["allOf", "anyOf", "oneOf", "prefixItems"], several),
            **dict.fromkeys(["properties", "dependentSchemas"], by_name),
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=3),
        },
    )


SCHEMAS = st.recursive(LEAVES, applied, max_leaves=20)
WHOLE = st.builds(
    lambda schema, first, second: {"allOf": [schema], "$defs": {"d0": first, "d1": second}},
    SCHEMAS,
    SCHEMAS,
    SCHEMAS,
)
CHECKED: list[Any] = [
    {"n": 1, "t": "aab", "l": [1, 1.0, "a"]},
    [[1] * 30_000, ["a"] * 30_000],
    {str(n): {"n": n, "l": [n]} for n in range(20_000)},
    ["a" * 100_000, {"t": "a" * 100_000}],
    [1e308, 19.99, 2**63] * 5_000,
]


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"n": value, "l": [value]}
    return value


CHECKED.append(nested(14))


def check_schema(evaluator: EvaluatorProcess, schema: dict[str, Any], value: object) -> None:
    try:
        compiled = JsonSchema(schema)
    except SchemaInvalid:
        return
    before = resident_mib()
    fault = compiled.problem(value, "value", Evaluations(evaluator))
    assert resident_mib() - before < 256, schema
    assert fault is None or fault.startswith("value")


@seed(57)
@BRIEF
@given(WHOLE, st.sampled_from(CHECKED))
def test_every_check_ends_within_its_limits(
    evaluator: EvaluatorProcess, schema: dict[str, Any], value: object
):
    check_schema(evaluator, schema, value)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@BLOCKS
def test_every_check_ends_within_its_limits_for_hours(evaluator: EvaluatorProcess, block: int):
    @LONG
    @given(WHOLE, st.sampled_from(CHECKED))
    def check(schema: dict[str, Any], value: object) -> None:
        check_schema(evaluator, schema, value)

    check()
