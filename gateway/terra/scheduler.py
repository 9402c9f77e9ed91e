"""Turns of requests to Terra, waited for: a future for each request, and one timer for all."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headwater.gateway.terra.fair_queue import Party, Turns


class Scheduler:
    """Has requests wait for their turns.

    Args:
        turns: Decides whose turn it is.
        clock: A steady clock, in seconds.
        haste: How many times faster than the event loop's that clock runs.
    """

    def __init__(self, turns: Turns, clock: Callable[[], float], haste: float = 1.0) -> None:
        self._turns = turns
        self._clock = clock
        self._haste = haste
        self._granted: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, party: Party) -> AsyncIterator[None]:
        """Wait for a turn, and hold it while the request is under way.

        A caller that is cancelled while it waits takes no turn; one that is cancelled when it had
        just been granted gives it back.

        Raises:
            QueueFull: Too many requests wait.
        """
        await self._wait(party)
        try:
            yield
        finally:
            self._turns.end(party)
            self._serve()

    async def _wait(self, party: Party) -> None:
        number = self._turns.enqueue(party)
        granted = asyncio.get_running_loop().create_future()
        self._granted[number] = granted
        self._serve()
        try:
            await granted
        except asyncio.CancelledError:
            if self._granted.pop(number, None) is not None:
                self._turns.cancel(number)
            else:
                self._turns.give_back(party)
            self._serve()
            raise

    def _serve(self) -> None:
        """Grant what may be granted, and look again when more may be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._clock()
        for number in self._turns.grant(now_s):
            granted = self._granted.pop(number)
            if not granted.done():
                granted.set_result(None)
        next_s = self._turns.next_s(now_s)
        if next_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later((next_s - now_s) / self._haste, self._serve)
