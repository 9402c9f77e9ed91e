"""Ticks: a worker that runs code only on request, by somebody else's clock.

What has no code in it goes on by itself: commands are decided, timers end sleeps and waits, and
attempts time out. Only an instance that is ready waits for a tick to be given to the code host.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from headwater.streams.engine.owner import Owner

#: Instances that are given out at a time when steps are counted.
_SLICE: Final = 10
#: As many instances as there are.
_ALL: Final = 1_000_000_000


class Ticks:
    """What the ticks of a worker have left to give out.

    Shape:  `wake_up` makes the worker take a turn; `owners` are those of its partitions.
    """

    def __init__(self, wake_up: Callable[[], None], owners: Callable[[], Iterable[Owner]]) -> None:
        self._wake_up = wake_up
        self._owners = owners
        self._left = 0
        self._given = 0
        self._steps = 0
        self._turned = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    @property
    def left(self) -> int:
        """How many instances the tick may still begin."""
        return self._left

    def turned(self, started: int, attempts_ended: int) -> None:
        """Takes note of a turn: how many instances were begun, how many attempts have ended."""
        self._left -= started
        self._given += started
        self._steps += attempts_ended
        self._turned.set()

    async def tick(self, max_instances: int | None = None, max_steps: int | None = None) -> int:
        """Takes what is ready now until it waits or ends; those that go on before those that begin.

        Shape:  at most so many instances; none is begun any more once so many attempts of steps
                have ended. Gives how many instances were given out. Of several calls at once each
                has its own turn.
        """
        async with self._one_at_a_time:
            wanted = _ALL if max_instances is None else max_instances
            self._given = self._steps = 0
            while wanted and (max_steps is None or self._steps < max_steps):
                before = self._given
                await self._give(wanted if max_steps is None else min(wanted, _SLICE))
                if max_steps is None or self._given == before:
                    break
                wanted -= self._given - before
            return self._given

    async def _give(self, count: int) -> None:
        """Gives out at most so many, and waits until all of them rest."""
        self._left = count
        try:
            await self._turn()
        finally:
            self._left = 0
        while any(owner.is_running() for owner in self._owners()):
            await self._turn()

    async def _turn(self) -> None:
        self._turned.clear()
        self._wake_up()
        await self._turned.wait()
