"""Callbacks in tests: which of them wait for virtual time, and which for real events."""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from headwater.streams.replay.host_port import ATTEMPT, CurrentAttempt

#: Iterations of the event loop before callbacks count as waiting for something real.
_ITERATIONS: Final = 50
_REAL_WAIT_S: Final = 0.001


class Callbacks:
    """The callbacks that run in the process of a test.

    The test's clock advances when all of them have ended or wait for virtual time. A callback
    that waits for something real is awaited up to a limit. After that it no longer stops the clock,
    so that the timeout of its step can end it.
    """

    def __init__(self, running: Callable[[], Iterable[CurrentAttempt]], patience_ms: int) -> None:
        """Create the callbacks of a test.

        Args:
            running: Returns the running attempts.
            patience_ms: How long a callback is awaited, in milliseconds of real time.
        """
        self._running = running
        self._patience_s = patience_ms / 1_000
        self._sleepers: list[tuple[int, int, asyncio.Future[None], CurrentAttempt | None]] = []
        self._numbers = count()
        #: Attempts that did not end in time. Every attempt is a separate object.
        self._overdue: list[CurrentAttempt] = []

    async def sleep_until(self, due_ms: int) -> None:
        """Wait for a time of the test's clock. For use in a callback."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (due_ms, next(self._numbers), future, ATTEMPT.get()))
        await future

    def next_due_ms(self) -> int | None:
        """Return the next time that a callback waits for."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def wake(self, now_ms: int) -> None:
        """Wake the callbacks that wait for this or an earlier time."""
        while self._sleepers and self._sleepers[0][0] <= now_ms:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)

    def cancel(self) -> None:
        """Cancel all callbacks that wait for virtual time."""
        for _, _, future, _ in self._sleepers:
            future.cancel()
        self._sleepers.clear()
        self._overdue.clear()

    async def moved(self, has_moved: Callable[[], bool]) -> bool:
        """Let callbacks run until one of them has caused progress.

        Args:
            has_moved: Returns whether there was progress.

        Returns:
            False if all of them wait for virtual time, are overdue, or have ended.
        """
        loop = asyncio.get_running_loop()
        iterations, until = 0, loop.time() + self._patience_s
        while awake := self._awake():
            if iterations > _ITERATIONS and loop.time() > until:
                self._overdue += awake
                break
            await asyncio.sleep(0 if iterations < _ITERATIONS else _REAL_WAIT_S)
            iterations += 1
            if has_moved():
                return True
        return has_moved()

    def check(self) -> None:
        """Check that no callback is overdue.

        Raises:
            TimeoutError: One is. The message has its step.
        """
        asleep = self._asleep()
        running = {id(attempt) for attempt in self._running()} - asleep
        stuck = [attempt for attempt in self._overdue if id(attempt) in running]
        if stuck:
            named = ", ".join(
                f'"{attempt.key}" of {attempt.instance}, attempt {attempt.number}'
                for attempt in stuck
            )
            raise TimeoutError(
                f"expected the callback of each step to end, or to wait by `test.sleep`, within "
                f"{self._patience_s:g} s of real time, found still running: {named}. "
                "`test.advance` moves the clock past the timeout of a step anyway"
            )

    def _asleep(self) -> set[int]:
        return {id(attempt) for _, _, future, attempt in self._sleepers if not future.done()}

    def _awake(self) -> list[CurrentAttempt]:
        quiet = self._asleep() | {id(attempt) for attempt in self._overdue}
        return [attempt for attempt in self._running() if id(attempt) not in quiet]
