"""Waiting for what happens by itself and tells nobody, with a bound."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

#: Seconds for an answer over HTTP: no test is about how quick one is, and machines can be slow.
ANSWERED_WITHIN_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.3


def pauses_s() -> Iterator[float]:
    """Yield the seconds to sleep between polls, longer each time.

    A poll may open a connection to Postgres, or send requests: at 50 a second that takes more of
    the processor than what is waited for.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(1.4 * pause_s, _LONGEST_PAUSE_S)


async def until(done: Callable[[], object], within_s: float = 60.0) -> None:
    """Waits in an event loop."""
    async with asyncio.timeout(within_s):
        while not done():  # noqa: ASYNC110 (nobody would set an event)
            await asyncio.sleep(0.005)


def wait_until(done: Callable[[], object], what: str = "it", within_s: float = 60.0) -> None:
    """Waits where there is no loop."""
    deadline = time.monotonic() + within_s
    for pause_s in pauses_s():
        if done():
            return
        assert time.monotonic() < deadline, f"waited {within_s} s for {what}"
        time.sleep(pause_s)
