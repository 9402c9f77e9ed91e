"""Labels: how many, how long, and of which characters."""

import pytest

from headwater.processors.runs.limits import labels_of, labels_problem
from headwater.schemas.history import Label


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"n" * 64: "v" * 256},
        {"_.-aZ0": ""},
        {str(number): "" for number in range(16)},
        {"team": "blau \x01 ü 雪"},
    ],
)
def test_labels_within_their_limits_are_fine(labels: dict[str, object]):
    assert labels_problem(labels) is None


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({str(number): "" for number in range(17)}, "at most 16 labels, found 17"),
        ({"n" * 65: ""}, "of 1 to 64 characters"),
        ({"": ""}, "found ''"),
        ({".a": ""}, "not beginning with - or ., found '.a'"),
        ({"-a": ""}, "found '-a'"),
        ({"a b": ""}, "found 'a b'"),
        ({"a": "v" * 257}, "text of at most 256 characters"),
        ({"a": "\0"}, "without NUL as the label a"),
        ({"a": 7}, "found 7"),
    ],
)
def test_labels_beyond_them_are_refused(labels: dict[str, object], told: str):
    assert told in (labels_problem(labels) or "")


def test_labels_are_recorded_by_name():
    assert labels_of({"b": "1", "a": "2"}) == (Label("a", "2"), Label("b", "1"))
