"""Schedule requests to Terra: one future for each waiting request, and one timer for all."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headwater.gateway.builtin.terra.fair_queue import FairQueue, Party


class RequestScheduler:
    """Delays requests until the queue grants their turns.

    Args:
        queue: Decides which requests may be sent.
        clock: Returns seconds of a monotonic clock.
        speedup: How many times faster than the event loop's clock that clock runs.
    """

    def __init__(self, queue: FairQueue, clock: Callable[[], float], speedup: float = 1.0) -> None:
        self._queue = queue
        self._clock = clock
        self._speedup = speedup
        self._granted: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, party: Party) -> AsyncIterator[None]:
        """Wait for a turn, and hold it while the request is in progress.

        A caller that is cancelled while it waits takes no turn; one that is cancelled after the
        turn was granted returns it.

        Raises:
            QueueFull: Too many requests wait.
        """
        await self._wait(party)
        try:
            yield
        finally:
            self._queue.end(party)
            self._serve()

    async def _wait(self, party: Party) -> None:
        number = self._queue.enqueue(party)
        granted = asyncio.get_running_loop().create_future()
        self._granted[number] = granted
        self._serve()
        try:
            await granted
        except asyncio.CancelledError:
            if self._granted.pop(number, None) is not None:
                self._queue.cancel(number)
            else:
                self._queue.return_turn(party)
            self._serve()
            raise

    def _serve(self) -> None:
        """Grant turns, and set a timer for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._clock()
        for number in self._queue.grant(now_s):
            granted = self._granted.pop(number)
            if not granted.done():
                granted.set_result(None)
        next_s = self._queue.next_s(now_s)
        if next_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later((next_s - now_s) / self._speedup, self._serve)
