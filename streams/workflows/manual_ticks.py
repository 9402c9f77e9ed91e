"""Ticks: a worker that runs code only on request, for example by an external scheduler.

Everything without authors' code continues on its own: commands are decided, timers end sleeps and
waits, and attempts time out. Only the assignment of ready instances to code hosts waits for ticks.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from headwater.streams.engine.owner import Owner
from headwater.streams.engine.turns import Turn

#: Instances assigned at a time if attempts are limited. Those for which no attempt is left are
#: yielded back, and were replayed in vain.
_SLICE: Final = 10
#: Effectively no limit.
_ALL: Final = 1_000_000_000


class TickResult(NamedTuple):
    """Result of a tick: assigned instances, and ended attempts of steps."""

    processed: int
    steps: int


class Ticks:
    """The ticks of a worker.

    Args:
        wake_up: Makes the worker take a turn.
        owners: Returns the owners of its partitions.
        hosts: Returns the numbers of its hosts.
        allow: Limits the number of step attempts that a host may start; None for no limit.
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
        self._started = 0
        self._steps = 0
        self._turned = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._only: int | None = None
        #: Whether no run may start.
        self.continuing = False

    @property
    def closed(self) -> set[int]:
        """Hosts that get no instances: with limited attempts, hosts are served one at a time.

        A host that was started during the tick waits for the next one.
        """
        return set() if self._only is None else set(self._hosts()) - {self._only}

    @property
    def left(self) -> int:
        """Number of instances that the tick may still assign."""
        return self._left

    def record_turn(self, turn: Turn) -> None:
        """Record the result of a turn."""
        self._left = 0 if turn.yielded_back else self._left - turn.started
        self._started += turn.started
        self._steps += turn.attempts_ended
        self._turned.set()

    async def tick(
        self,
        max_instances: int | None = None,
        max_steps: int | None = None,
        continuing: bool = False,
    ) -> TickResult:
        """Run ready instances until they wait or end. Those that continue come first.

        Concurrent calls are executed one after the other.

        Args:
            max_instances: Largest number of instances.
            max_steps: Largest number of step attempts. An instance that would start another one
                continues with the next tick.
            continuing: Whether no run may start.
        """
        async with self._one_at_a_time:
            limit = _ALL if max_instances is None else max_instances
            self._started = self._steps = 0
            self.continuing = continuing
            if max_steps is None:
                for host in self._hosts():
                    self._allow(host, None)
                await self._run_slice(limit)
            else:
                await self._run_by_host(limit, max_steps)
            return TickResult(self._started, self._steps)

    async def _run_by_host(self, limit: int, max_steps: int) -> None:
        try:
            for host in sorted(self._hosts(), reverse=True):  # the built-in app's host is last
                self._only = host
                before = -1
                while before < self._started < limit and self._steps < max_steps:
                    before = self._started
                    self._allow(host, max_steps - self._steps)
                    await self._run_slice(min(limit - self._started, _SLICE))
        finally:
            self._only = None

    async def _run_slice(self, count: int) -> None:
        """Assign up to `count` instances, and wait until all of them rest."""
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
