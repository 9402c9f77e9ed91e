"""Expressions: what they give, what they say when they cannot, and that they end."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.cel_programs import ExpressionInvalid, Names, ResultKind
from headwater.processors.expressions import (
    COPIED_MAX,
    SOURCE_MAX,
    EvaluationProblem,
    Expression,
    ExpressionValues,
)
from headwater.schemas.history import NESTING_MAX

EVENT = {
    "user_id": "user_1",
    "reference": None,
    "body": {"data": [{"score": 1, "rate": 52.5, "tags": ["a", "b"]}], "empty": []},
}


def value(source: str, gives: ResultKind = ResultKind.JSON, event: object = EVENT) -> object:
    return Expression(source, gives).evaluate(ExpressionValues({"event": event}))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("event.user_id", '"user_1"'),
        ("event.body.data[0]", '{"score":1,"rate":52.5,"tags":["a","b"]}'),
        ("{'user': event.user_id, 'n': size(event.body.data)}", '{"user":"user_1","n":1}'),
        ("[1, 2.0, true, null, 'ä']", '[1,2.0,true,null,"ä"]'),
        ("event.body.data.map(each, each.score)", "[1]"),
        ("event.reference", "null"),
        ("timestamp('2026-01-01T00:00:00Z')", '"2026-01-01T00:00:00Z"'),
        ("duration('1h')", '"3600s"'),
        ("event.missing == 1 || true", "true"),
        ("event.user_id.upperAscii()", '"USER_1"'),
    ],
)
def test_a_value_is_json(source: str, expected: str):
    result = value(source)
    assert isinstance(result, str)
    assert sorted(result) == sorted(expected)


def test_a_text_and_a_condition():
    assert value("'sleep-' + event.user_id", ResultKind.TEXT) == "sleep-user_1"
    assert value("event.body.data[0].score > 0.5", ResultKind.CONDITION) is True


@pytest.mark.parametrize(
    ("source", "gives", "told"),
    [
        ("'a' +", ResultKind.JSON, "line 1, column 6: Syntax error"),
        ("\n 'a' + ", ResultKind.JSON, "line 2, column 8: Syntax error"),
        ("user.id", ResultKind.JSON, "line 1, column 5: undeclared reference to 'user.id'"),
        (
            "shout(event.user_id)",
            ResultKind.JSON,
            "line 1, column 6: undeclared reference to 'shout'",
        ),
        ("'a' + 1", ResultKind.JSON, "line 1, column 5: found no matching overload for '_+_'"),
        ("1 + 2", ResultKind.TEXT, "expected an expression that gives a text, found int"),
        (
            "'a'",
            ResultKind.CONDITION,
            "expected an expression that gives true or false, found string",
        ),
        ("", ResultKind.TEXT, "Syntax error"),
        ("(" * 100 + "1" + ")" * 100, ResultKind.JSON, "recursion limit"),
        ("x" * 200_000, ResultKind.JSON, "limit"),
    ],
)
def test_what_is_no_expression_is_told_with_its_place(source: str, gives: ResultKind, told: str):
    with pytest.raises(ExpressionInvalid) as caught:
        Expression(source, gives)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("source", "gives", "told", "missing"),
    [
        ("event.missing", ResultKind.JSON, 'Key not found in map : "missing"', True),
        ("event.body.empty[0]", ResultKind.JSON, "index=0", True),
        ("event.user_id.x", ResultKind.JSON, "SELECT", False),
        ("1 / int(event.body.data[0].score - 1)", ResultKind.JSON, "divide by zero", False),
        ("event.reference + 'x'", ResultKind.TEXT, "No matching overloads", False),
        ("event.body.data[0].score", ResultKind.TEXT, "expected a text, found 1", False),
        ("event.user_id", ResultKind.CONDITION, "expected true or false, found 'user_1'", False),
        ("0.0 / 0.0", ResultKind.JSON, "expected a JSON value, found nan", False),
        ("b'abc'", ResultKind.JSON, "bytearray is no JSON", False),
    ],
)
def test_an_error_of_evaluation_is_a_value(
    source: str, gives: ResultKind, told: str, missing: bool
):
    result = value(source, gives)
    assert isinstance(result, EvaluationProblem)
    assert told in result.message
    assert result.missing is missing


def test_an_expression_that_would_not_end_in_time_is_stopped():
    ten = "[0,1,2,3,4,5,6,7,8,9]"
    source = "0"
    for name in "abcdefg":
        source = f"{ten}.map({name}, {source})"
    result = value(f"size({source})")
    assert isinstance(result, EvaluationProblem)
    assert "budget exceeded" in result.message


texts = st.text('aä€😀"\\ \n', max_size=5)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from("abc"), json_values))
def test_any_json_goes_in_and_comes_out(event: dict[str, object]):
    result = value("event", ResultKind.JSON, event)
    assert isinstance(result, str)
    assert json.loads(result) == event


SHARED = Names("input", "state")
LOCAL = ("item", "_branch")


def local_value(source: str, state: object = None, **local: object) -> object:
    facts = ExpressionValues(
        {"input": {"list": list(range(COPIED_MAX + 1))}, "state": state}, SHARED
    )
    return Expression(source, ResultKind.VALUE, SHARED, LOCAL).evaluate(facts, local)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("item.n + 1", 2),
        ("_branch.index == 3 ? item : state", {"n": 1}),
        # A macro's own name is the macro's.
        ("[5, 6].map(item, item * 2)", [10, 12]),
        ("[item.n].map(item, item + 1)", [2]),
        ("{'item': item.n}", {"item": 1}),
        ("'item'", "item"),
        ("state.item", "other"),
        ("input.list[item.n]", 1),
        ("item.n  // of the branch", 1),
        ("timestamp('2026-01-01T00:00:00Z')", "2026-01-01T00:00:00Z"),
    ],
)
def test_names_of_its_own_come_with_each_evaluation(source: str, expected: object):
    result = local_value(source, {"item": "other"}, item={"n": 1}, _branch={"index": 3})
    assert result == (expected if not source.endswith("state") else {"n": 1})


def test_a_name_without_a_value_is_an_error_unless_it_is_absorbed():
    fault = local_value("item == 1")
    assert isinstance(fault, EvaluationProblem)
    assert (fault.missing, "undeclared variable item" in fault.message) == (False, True)
    assert local_value("item == 1 || true") is True


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("state.no", True),
        ("state.no.more", True),
        ("state['no']", True),
        ("state.list[1]", True),
        ("state.list[-1]", True),
        ("state.list['a']", False),
        ("state.none.more", False),
        ("state.text.more", False),
        ("1 / 0", False),
        ("int('x')", False),
        ("9223372036854775807 + state.list[0]", False),
        ("b'bytes'", False),
        ("double('NaN')", False),
        ("{1: 2}", False),
    ],
)
def test_what_is_missing_is_told_apart_from_every_other_error(source: str, missing: bool):
    fault = local_value(source, {"list": [1], "none": None, "text": "x"})
    assert isinstance(fault, EvaluationProblem)
    assert fault.missing is missing


def test_a_list_that_map_would_copy_too_often_is_refused_and_named():
    for source in ("input.list.map(n, n + 1)", "[1].map(x, input.list.filter(n, n > x))"):
        fault = local_value(source)
        assert isinstance(fault, EvaluationProblem)
        assert fault.message == (
            "expected lists of at most 2000 items for map and filter, "
            "found one of 2001 in input.list"
        )
    assert local_value("input.list.exists(n, n == 7)") is True
    assert local_value("state.few.map(n, n + 1).size() + input.list.size()", {"few": [1]}) == 2002


def test_a_value_that_is_wrapped_again_and_again_has_an_end():
    value: object = 1
    for _ in range(NESTING_MAX):
        value = local_value("[state.v]", {"v": value})
        assert isinstance(value, list)
    fault = local_value("[state.v]", {"v": value})
    assert isinstance(fault, EvaluationProblem)
    assert "more than 128 levels of lists and maps" in fault.message


@pytest.mark.parametrize(
    "source",
    [
        "x" * (SOURCE_MAX + 1),
        "(" * 1000 + "1" + ")" * 1000,
        "[" * 1000 + "]" * 1000,
        "input" + ".a" * 1000,
        "cel.bind(a, 1, a)",
        "headwater_local('item')",
        "other",
        "other(1)",
    ],
)
def test_what_is_too_long_too_deep_or_unknown_is_not_compiled(source: str):
    with pytest.raises(ExpressionInvalid):
        Expression(source, ResultKind.VALUE, SHARED, LOCAL)


def test_where_a_fault_is_does_not_count_what_was_put_around():
    with pytest.raises(ExpressionInvalid, match="line 1, column 8: undeclared reference to 'no'"):
        Expression("item + no", ResultKind.VALUE, SHARED, LOCAL)


def test_macros_within_macros_end():
    fault = local_value("input.list.exists(a, input.list.exists(b, a + b < 0))")
    assert isinstance(fault, EvaluationProblem)
    assert "Iteration budget exceeded" in fault.message


WITH_NUL = {"text": "a\0b", "k\0y": ["\0", {"x": "c\0"}]}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("state", WITH_NUL),
        ("state.text", "a\0b"),
        ("[state.text + item]", ["a\0b\0"]),
        ("size(state.text)", 3),
        ("state.text == 'a'", False),
        ("state.text == item", False),
        ("state.map(key, key).size()", 2),
        ("item", "\0"),
        ("{item: state.text}", {"\0": "a\0b"}),
    ],
)
def test_the_character_nul_is_one_like_others(source: str, expected: object):
    assert local_value(source, WITH_NUL, item="\0") == expected


def test_a_json_text_has_the_character_nul_escaped():
    assert value("event", ResultKind.JSON, WITH_NUL) == json.dumps(
        WITH_NUL, separators=(",", ":"), sort_keys=True
    )


def test_what_stands_in_for_nul_is_let_alone_by_itself():
    assert local_value("[state.text, item]", {"text": "\ufdd0"}, item="a") == ["\ufdd0", "a"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"state.text.contains('\u0000')", "a\0b"),
        ("[state.text + '']", "\0\ufdd0"),
        ("[item + '']", "\0\ufdd0"),
    ],
)
def test_what_nothing_can_stand_in_for_is_an_error(source: str, text: str):
    fault = local_value(source, {"text": text}, item=text)
    assert isinstance(fault, EvaluationProblem)
    assert (fault.missing, "NUL" in fault.message) == (False, True)


def test_a_number_of_more_than_64_bits_is_told_by_its_name_alone():
    fault = local_value("item.n", {}, item={"n": 2**70})
    assert isinstance(fault, EvaluationProblem)
    assert f"'item['n'] -> {2**70}'" in fault.message
    assert "0x" not in fault.message


def test_a_map_is_in_the_order_of_its_keys_whatever_process_evaluates_it():
    names = "hgfedcba"
    given = {key: {"z": 1, "y": 2, "x": 3} for key in names}
    result = local_value("[state, item]", given, item=given)
    assert json.dumps(result) == json.dumps([given, given], sort_keys=True)


@pytest.mark.parametrize(
    "source",
    [
        "{'b': state.n, 'a': [item, 1, -7, 1.5, true, null, 'ä', {}]}",
        "[state, {'of': item}]",
        "[[[[state.deep]]]]",
        "[]",
        "{'a': 1, 'a': 2}",
        "{1: 2}",
        "{state.key: 1}",
        "[state.missing]",
        "[state.n.of]",
        "[2u, b'a']",
        "[9223372036854775807, -9223372036854775808, 1e300]",
        "[state.big]",
        r"['a\u0000b']",
        "{'a': has(state.n)}",
        "[state.n + 1]",
        "[missing_item]",
    ],
)
def test_what_only_arranges_fields_gives_what_the_library_gives(source: str):
    deep: object = "x"
    for _ in range(125):
        deep = [deep]
    state = {"n": 1, "z": {"b": 1, "a": [2.0]}, "key": "k", "deep": deep}
    if "big" in source:
        state["big"] = 2**70
    expression = Expression(source, ResultKind.VALUE, SHARED, ["item", "missing_item"])
    facts, local = (
        ExpressionValues({"input": {}, "state": state}, SHARED),
        {"item": {"z": 1, "a": "\0"}},
    )
    read = expression.evaluate(facts, local)
    expression.__dict__["_arrangement"] = None
    assert repr(expression.evaluate(facts, local)) == repr(read)
