"""What a tick leaves to the next one."""

import asyncio

from headwater.streams.engine.turns import Turn
from headwater.streams.workflows.manual_ticks import Ticks


def test_a_host_that_begins_meanwhile_is_given_nothing_by_a_tick_that_counts_steps():
    hosts, closed = [0, 1], []

    def turn() -> None:
        hosts.append(2 + len(closed))
        closed.append(ticks.closed)
        ticks.record_turn(Turn([], [], 0, 0))

    ticks = Ticks(turn, list, lambda: hosts, lambda host, attempts: None)
    asyncio.run(ticks.tick(10, 5))
    assert closed == [{0, 2}, {1, 2, 3}]
    assert ticks.closed == set()
