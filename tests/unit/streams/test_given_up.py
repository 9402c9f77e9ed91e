"""Goal: a takeover that comes to nothing takes nothing from who has the partition by then."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.workflow_parts import a_worker


class Restored:
    """A partition as a takeover leaves it."""

    number = 0

    def __init__(self) -> None:
        self.is_open = True
        store = SimpleNamespace(close=self.close)
        self.owner = SimpleNamespace(activations=list, instances=SimpleNamespace(store=store))

    def close(self) -> None:
        self.is_open = False


def test_a_stale_takeover_leaves_the_posts_of_who_has_the_partition():
    async def scenario() -> None:
        worker: Any = a_worker("127.0.0.1:1")
        ours, stale = Restored(), Restored()
        worker._driver.add_partition(ours)
        worker._outbox._open[0] = {"order/o-1": {1: False}}
        worker._forget(stale)
        assert (ours.is_open, stale.is_open) == (True, False)
        assert worker._outbox._open == {0: {"order/o-1": {1: False}}}
        worker._forget(worker._driver.remove_partition(0))
        assert not ours.is_open
        assert worker._outbox._open == {}

    asyncio.run(scenario())
