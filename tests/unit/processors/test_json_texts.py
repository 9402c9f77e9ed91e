"""How deep a JSON text is does not depend on what a parser makes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.json_texts import TooDeep, within_levels
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
