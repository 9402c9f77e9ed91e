"""Callbacks under test: which of them wait for virtual time, and which for something real."""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from headwater.streams.authoring.attempt import ATTEMPT, CurrentAttempt

#: Turns of the real event loop that callbacks get before they count as waiting for something real.
_TURNS: Final = 50
_REAL_WAIT_S: Final = 0.001


class Callbacks:
    """The callbacks that are under way in the process of a test.

    Time of the test's clock goes on when each of them has ended, or waits for that time. A callback
    that waits for something real is waited for, up to a limit; after that it no longer holds up
    the clock, so that the timeout of its step can end it.
    """

    def __init__(self, running: Callable[[], Iterable[CurrentAttempt]], patience_ms: int) -> None:
        """Make the callbacks of a test.

        Args:
            running: Returns the attempts that are under way.
            patience_ms: Real time for which a callback is waited for.
        """
        self._running = running
        self._patience_s = patience_ms / 1_000
        self._sleepers: list[tuple[int, int, asyncio.Future[None], CurrentAttempt | None]] = []
        self._numbers = count()
        #: Attempts that were waited for in vain. Each is an object of its own.
        self._given_up: list[CurrentAttempt] = []

    async def sleep_until(self, due_ms: int) -> None:
        """Wait for a time of the test's clock; called in a callback."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (due_ms, next(self._numbers), future, ATTEMPT.get()))
        await future

    def next_due_ms(self) -> int | None:
        """Return the next time for which a callback waits."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def wake(self, now_ms: int) -> None:
        """Wake the callbacks that wait for this time, or an earlier one."""
        while self._sleepers and self._sleepers[0][0] <= now_ms:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)

    def cancel(self) -> None:
        """Cancel all that wait for virtual time."""
        for _, _, future, _ in self._sleepers:
            future.cancel()
        self._sleepers.clear()
        self._given_up.clear()

    async def moved(self, has_moved: Callable[[], bool]) -> bool:
        """Let callbacks run on until one of them has moved the run.

        Args:
            has_moved: Returns whether it is so.

        Returns:
            False when all of them wait for virtual time, were waited for in vain, or have ended.
        """
        loop = asyncio.get_running_loop()
        turns, until = 0, loop.time() + self._patience_s
        while awake := self._awake():
            if turns > _TURNS and loop.time() > until:
                self._given_up += awake
                break
            await asyncio.sleep(0 if turns < _TURNS else _REAL_WAIT_S)
            turns += 1
            if has_moved():
                return True
        return has_moved()

    def check(self) -> None:
        """See that no callback was waited for in vain.

        Raises:
            TimeoutError: One was; the message names its step.
        """
        asleep = self._asleep()
        running = {id(each) for each in self._running()} - asleep
        stuck = [each for each in self._given_up if id(each) in running]
        if stuck:
            named = ", ".join(
                f'"{each.key}" of {each.instance}, attempt {each.number}' for each in stuck
            )
            raise TimeoutError(
                f"expected the callback of each step to end, or to wait by `test.sleep`, within "
                f"{self._patience_s:g} s of real time, found still running: {named}. "
                "`test.advance` moves the clock past the timeout of a step all the same"
            )

    def _asleep(self) -> set[int]:
        return {id(each) for _, _, future, each in self._sleepers if not future.done()}

    def _awake(self) -> list[CurrentAttempt]:
        quiet = self._asleep() | {id(each) for each in self._given_up}
        return [each for each in self._running() if id(each) not in quiet]
