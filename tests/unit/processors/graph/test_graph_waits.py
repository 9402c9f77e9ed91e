"""Waits of a run, of which there may be thousands: what an event costs, and what one decision does.

An engine decides in process; its clock moves without timers, as that of an owner that is behind.
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from headwater.processors.graph.graph import graph_of
from headwater.processors.graph.timing import _HANDLED_MAX
from headwater.processors.graph.wait_index import index_of
from headwater.processors.runs.decisions import Facts, Rejection, Wake
from headwater.schemas.history import (
    FinishChild,
    OutcomeHeld,
    RunCompleted,
    SendEvent,
    TokenCompleted,
)
from tests.property.graph_playing import Played
from tests.workflows.graphing import edge, graph, node

MINUTE_MS = 60_000


def waiting(count: int, *others: dict[str, Any], **waits: object) -> Played:
    """A run in which so many nodes wait, and one of each of the others, in one fork."""
    wait = {"ref": "wait", **waits}
    fork = edge("start", "wait", siblingGroup="A", spawnCount=count)
    ways = [edge("start", other["ref"], siblingGroup="A") for other in others]
    join = {"synchronization": {"strategy": "all", "siblingGroup": "A"}}
    ends = [edge(begin["ref"], "end", **join) for begin in (wait, *others)]
    nodes = [node("start"), wait, *others, node("end")]
    played = Played(graph_of(graph(nodes, [fork, *ways, *ends])))
    (start,) = played.flying()
    played.complete(start, "{}")
    while played.live.has_backlog:
        played.request(Wake(played.now_ms, complete=True))
    assert len(played.live.waits) >= count
    return played


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions of Python and of C."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", ["other", "same", "time"])
def test_an_event_costs_the_same_with_any_number_of_waits(kind: str):
    """One for which nothing waits, or the oldest wait does, among waits for events or times."""

    def cost(count: int) -> int:
        wait = {"event": {"type": "same", "timeoutMs": MINUTE_MS}}
        played = waiting(count, **({"wait": {"durationMs": MINUTE_MS}} if kind == "time" else wait))
        run, engine = played.live, played.engine
        engine.next_wake_ms(run)
        played.now_ms += 1
        event = SendEvent("e", kind, "{}")

        def receive() -> None:
            # As an owner does: it decides, applies, and sets the timer of the run.
            facts = Facts("g", "i", played.now_ms, played.now_ms, "seed")
            decided = engine.decide_command(run, event, facts)
            played.append(decided)
            engine.next_wake_ms(run)

        return calls_of(receive)

    assert cost(2_000) < cost(10) * 1.2


def test_more_overdue_waits_than_one_decision_ends_hold_an_event_until_their_timer():
    approval = {"ref": "approval", "event": {"type": "go", "timeoutMs": 86_400_000}}
    played = waiting(_HANDLED_MAX + 500, approval, wait={"durationMs": MINUTE_MS})
    played.now_ms += 2 * MINUTE_MS
    decided = played.command(SendEvent("e", "go", "{}"))
    assert not isinstance(decided, Rejection)
    assert len(decided) == 2
    assert isinstance(decided[-1], OutcomeHeld)
    ended = _ended_by_timers(played)
    assert ended[-1] == 1 + 500
    assert max(ended) == _HANDLED_MAX
    # The event was consumed by the wait that it ended.
    assert played.live.mailbox == []


def test_more_overdue_waits_than_one_decision_ends_hold_the_end_of_a_child():
    child = {"ref": "child", "subworkflow": "w"}
    played = waiting(_HANDLED_MAX + 500, child, wait={"durationMs": MINUTE_MS})
    played.now_ms += 2 * MINUTE_MS
    (token,) = played.parents()
    decided = played.command(FinishChild(0, str(token.number), "{}"))
    assert not isinstance(decided, Rejection)
    assert [type(event) for event in decided] == [OutcomeHeld]
    assert sum(_ended_by_timers(played)) == _HANDLED_MAX + 501
    (last,) = played.flying()
    decided = played.complete(last, "{}")
    assert isinstance(decided[-1], RunCompleted)


def _ended_by_timers(played: Played) -> list[int]:
    """How many nodes end with each of the timers that are due."""
    ended = []
    while not played.flying():
        assert (played.engine.next_wake_ms(played.live) or 0) <= played.now_ms
        decided = played.request(Wake(played.now_ms, complete=True))
        assert not isinstance(decided, Rejection)
        ended.append(sum(isinstance(event, TokenCompleted) for event in decided))
    return ended


def test_the_index_of_waits_is_the_same_as_one_made_of_the_state():
    """After events, ends of waits, and a restart from bytes."""
    approval = {"ref": "approval", "event": {"type": "go", "timeoutMs": 5_000}}
    played = waiting(3, approval, event={"type": "x", "timeoutMs": MINUTE_MS})
    index_of(played.live)
    for number, event_type in enumerate(["x", "go", "x"]):
        played.now_ms += number
        played.command(SendEvent(str(number), event_type, "{}"))
        run = played.live
        again = played.engine.decode(played.engine.encode(run))
        assert list(index_of(run)) == list(index_of(again))
        assert list(index_of(run).waiting_for("x")) == list(index_of(again).waiting_for("x"))
