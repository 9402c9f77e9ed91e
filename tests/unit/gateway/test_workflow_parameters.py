"""Queries and headers of the workflow service, and the positions that they name."""

import pytest

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.parameters import prefers_async
from headwater.gateway.api.workflows.positions import format_positions, furthest, read_positions


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1@2",
        "workflow-history/1",
        "workflow-history/-1@2",
        "workflow-history/1@-2",
        "workflow-commands/1@2",
        "workflow-history/1@2,",
        "workflow-history/1@2 workflow-history/2@2",
        "workflow-history/1@" + "9" * 19,
        ",".join(f"workflow-history/{n}@0" for n in range(1_001)),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_what_is_no_position_is_named(text: str) -> None:
    with pytest.raises(Problem) as caught:
        read_positions([text])
    assert caught.value.code == "invalid_parameter"
    assert caught.value.extensions["field"] == "min_position"
    assert len(caught.value.detail) < 300


@pytest.mark.parametrize(
    ("prefer", "async_"),
    [
        ("respond-async", True),
        ("Respond-Async", True),
        ("wait=10, respond-async", True),
        ("respond-async; x=1", True),
        ("respond-asynchronously", False),
        ("return=minimal", False),
        ("", False),
    ],
)
def test_a_preference_is_read(prefer: str, async_: bool) -> None:
    assert prefers_async(prefer) is async_


def test_positions_are_read_as_they_are_stated() -> None:
    positions = {0: 5, 3: 0, 11: 10**15}
    text = format_positions(positions)
    expected = "workflow-history/0@5, workflow-history/3@0, workflow-history/11@1000000000000000"
    assert text == expected
    assert read_positions([text]) == positions
    assert read_positions(["workflow-history/0@5", "workflow-history/0@4"]) == {0: 5}


def test_positions_that_there_are_none_of_or_too_many_are_not_stated() -> None:
    assert format_positions({}) == ""
    assert format_positions({0: -1, 1: 2}) == "workflow-history/1@2"
    assert format_positions(dict.fromkeys(range(101), 1)) == ""
    assert furthest([(0, 1), (1, 5), (0, 3), (0, 2)]) == {0: 3, 1: 5}
