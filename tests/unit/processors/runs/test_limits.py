"""The checks of what comes from outside."""

import pytest

from headwater.processors.runs.limits import (
    FAILURE_MESSAGE_MAX,
    VALUE_BYTES_MAX,
    bounded,
    name_problem,
    value_problem,
)


@pytest.mark.parametrize("name", ["a", "A-b_9", "_a", "9", "x" * 10])
def test_names_of_the_alphabet_are_taken(name: str):
    assert name_problem("a name", name, 10) is None


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "é", "a\n", "x" * 11, None, 5, b"a"])
def test_other_names_are_refused_and_shown(name: object):
    reported = name_problem("a name", name, 10)
    assert reported is not None
    assert reported.startswith("expected a name of 1 to 10 characters")
    assert reported.endswith(repr(name))


def test_a_long_name_is_shown_in_part():
    assert len(name_problem("a name", "x" * 10_000, 10) or "") < 300


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("x", True),
        ("x" * VALUE_BYTES_MAX, True),
        ("x" * (VALUE_BYTES_MAX + 1), False),
        ("é" * (VALUE_BYTES_MAX // 2), True),
        ("é" * (VALUE_BYTES_MAX // 2 + 1), False),
    ],
    ids=["short", "largest", "too large", "largest of two bytes each", "too large of two"],
)
def test_a_value_is_measured_in_bytes(text: str, *, fits: bool):
    reported = value_problem("params", text)
    assert (reported is None) == fits
    assert fits or f"found {len(text.encode())}" in str(reported)


def test_a_text_that_is_too_long_is_cut_once_and_says_so():
    short = "x" * FAILURE_MESSAGE_MAX
    assert bounded(short) is short
    cut = bounded("x" * 12_000_000)
    assert len(cut) == FAILURE_MESSAGE_MAX
    assert cut.endswith("x… (cut; it had 12000000 characters)")
    assert bounded(cut) is cut
    assert bounded("x" * 100, 50) == "x" * 20 + "… (cut; it had 100 characters)"
