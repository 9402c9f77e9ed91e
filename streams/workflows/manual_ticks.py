"""Ticks: a worker that runs code only on request, by somebody else's clock.

What has no code in it goes on by itself: commands are decided, timers end sleeps and waits, and
attempts time out. Only an instance that is ready waits for a tick to be given to the code host.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from headwater.streams.engine.owner import Owner
from headwater.streams.engine.turns import Turn

#: Instances that are given out at a time when steps are counted: those that find none left are
#: handed back, and have been replayed for nothing.
_SLICE: Final = 10
#: As many instances as there are.
_ALL: Final = 1_000_000_000


class Done(NamedTuple):
    """What a tick did: instances that were given out, attempts of steps that have ended."""

    processed: int
    steps: int


class Ticks:
    """What the ticks of a worker have left to give out.

    Shape:  `wake_up` makes the worker take a turn; `owners` are those of its partitions; `hosts`
            gives the numbers of its hosts, and `allow` lets one of them begin so many attempts of
            steps, None any number.
    """

    def __init__(
        self,
        wake_up: Callable[[], None],
        owners: Callable[[], Iterable[Owner]],
        hosts: Callable[[], Collection[int]],
        allow: Callable[[int, int | None], None],
    ) -> None:
        self._wake_up = wake_up
        self._owners = owners
        self._hosts = hosts
        self._allow = allow
        self._left = 0
        self._given = 0
        self._steps = 0
        self._turned = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._only: int | None = None
        #: Whether no instance may begin.
        self.continuing = False

    @property
    def closed(self) -> set[int]:
        """Hosts whose turn it is not: steps are counted by each host, so one has all that are left.

        One that has begun since the tick did waits for the next.
        """
        return set() if self._only is None else set(self._hosts()) - {self._only}

    @property
    def left(self) -> int:
        """How many instances the tick may still begin."""
        return self._left

    def turned(self, turn: Turn) -> None:
        """Takes note of a turn: how many instances were begun, how many attempts have ended."""
        self._left = 0 if turn.yielded_back else self._left - turn.started
        self._given += turn.started
        self._steps += turn.attempts_ended
        self._turned.set()

    async def tick(
        self,
        max_instances: int | None = None,
        max_steps: int | None = None,
        *,
        continuing: bool = False,
    ) -> Done:
        """Takes what is ready now until it waits or ends; those that go on before those that begin.

        Shape:  at most so many instances, and so many attempts of steps: an instance that would
                begin one more goes on with the next tick; with continuing none that begin. Of
                several calls at once each has its own turn.
        """
        async with self._one_at_a_time:
            wanted = _ALL if max_instances is None else max_instances
            self._given = self._steps = 0
            self.continuing = continuing
            if max_steps is None:
                for host in self._hosts():
                    self._allow(host, None)
                await self._give(wanted)
            else:
                await self._give_by_host(wanted, max_steps)
            return Done(self._given, self._steps)

    async def _give_by_host(self, wanted: int, max_steps: int) -> None:
        try:
            for host in sorted(self._hosts(), reverse=True):  # that of the house comes last
                self._only = host
                before = -1
                while before < self._given < wanted and self._steps < max_steps:
                    before = self._given
                    self._allow(host, max_steps - self._steps)
                    await self._give(min(wanted - self._given, _SLICE))
        finally:
            self._only = None

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
