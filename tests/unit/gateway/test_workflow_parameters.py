"""Queries and headers of the workflow service, and the positions that they name."""

from collections.abc import Callable
from typing import Any

import pytest

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows import parameters
from headwater.gateway.workflows.parameters import HistoryAsked, Listing
from headwater.gateway.workflows.positions import furthest, read_positions, stated


def test_what_is_not_said_has_its_default() -> None:
    assert parameters.read_listing({}) == Listing(None, 50, None)
    assert parameters.read_history({}) == HistoryAsked(
        None, 50, "asc", None, None, False, None, None, None
    )
    assert parameters.read_min_position({}) == {}
    assert parameters.read_last_event_id({}, {}) is None


def test_what_is_said_is_read() -> None:
    listing = {"status": ["waiting"], "pageSize": ["100"], "cursor": ["abc"], "other": ["x", "y"]}
    assert parameters.read_listing(listing) == Listing("waiting", 100, "abc")
    history = {
        "runNumber": ["2"],
        "pageSize": ["1"],
        "order": ["desc"],
        "stepsCursor": ["s"],
        "eventsCursor": ["e"],
        "includeLogs": ["true"],
        "logsCursor": ["l"],
        "logLevel": ["warn"],
        "logCategory": ["système"],
    }
    assert parameters.read_history(history) == HistoryAsked(
        2, 1, "desc", "s", "e", True, "l", "warn", "système"
    )
    assert parameters.read_last_event_id({"lastEventId": ["7"]}, {}) == 7
    assert parameters.read_last_event_id({"lastEventId": ["7"]}, {"last-event-id": "-1"}) == -1


Read = Callable[[dict[str, list[str]]], Any]


@pytest.mark.parametrize(
    ("read", "name", "values"),
    [
        (parameters.read_listing, "status", ["done"]),
        (parameters.read_listing, "status", [""]),
        (parameters.read_listing, "status", ["Active"]),
        (parameters.read_listing, "status", ["active", "active"]),
        *[
            (read, "pageSize", [size])
            for read in (parameters.read_listing, parameters.read_history)
            for size in (
                "0",
                "-1",
                "101",
                "ten",
                "",
                " 5",
                "1e1",
                "1_0",
                "5.0",
                "9" * 30,
                "٣",
                "\0",
            )
        ],
        (parameters.read_listing, "cursor", [""]),
        (parameters.read_listing, "cursor", ["a" * 1_025]),
        (parameters.read_listing, "cursor", ["a", "b"]),
        (parameters.read_history, "runNumber", ["-1"]),
        (parameters.read_history, "runNumber", ["2147483648"]),
        (parameters.read_history, "order", ["up"]),
        (parameters.read_history, "includeLogs", ["yes"]),
        (parameters.read_history, "includeLogs", [""]),
        (parameters.read_history, "logLevel", ["trace"]),
        (parameters.read_history, "logCategory", [""]),
        (parameters.read_history, "logCategory", ["a" * 65]),
        (parameters.read_history, "stepsCursor", [""]),
        (parameters.read_history, "eventsCursor", [""]),
        (parameters.read_history, "logsCursor", [""]),
        *[
            (parameters.read_min_position, "min_position", [text])
            for text in (
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
            )
        ],
        (lambda query: parameters.read_last_event_id(query, {}), "lastEventId", ["-2"]),
        (lambda query: parameters.read_last_event_id(query, {}), "lastEventId", ["x"]),
        (lambda query: parameters.read_last_event_id(query, {}), "lastEventId", [str(2**63)]),
    ],
    ids=lambda value: "" if callable(value) else ascii(value)[:40],
)
def test_a_fault_is_named(read: Read, name: str, values: list[str]) -> None:
    with pytest.raises(Problem) as caught:
        read({name: values})
    assert caught.value.code == "invalid_parameter"
    assert caught.value.extensions["field"] == name
    assert len(caught.value.detail) < 300


def test_a_header_that_is_no_event_id_is_named() -> None:
    with pytest.raises(Problem) as caught:
        parameters.read_last_event_id({}, {"last-event-id": "abc"})
    assert caught.value.extensions["field"] == "Last-Event-ID"


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
    assert parameters.prefers_async({"prefer": prefer}) is async_
    assert not parameters.prefers_async({})


def test_positions_are_read_as_they_are_stated() -> None:
    positions = {0: 5, 3: 0, 11: 10**15}
    text = stated(positions)
    expected = "workflow-history/0@5, workflow-history/3@0, workflow-history/11@1000000000000000"
    assert text == expected
    assert read_positions([text]) == positions
    assert read_positions(["workflow-history/0@5", "workflow-history/0@4"]) == {0: 5}


def test_positions_that_there_are_none_of_or_too_many_are_not_stated() -> None:
    assert stated({}) == ""
    assert stated({0: -1, 1: 2}) == "workflow-history/1@2"
    assert stated(dict.fromkeys(range(101), 1)) == ""
    assert furthest([(0, 1), (1, 5), (0, 3), (0, 2)]) == {0: 3, 1: 5}
