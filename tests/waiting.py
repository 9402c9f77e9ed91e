"""Waiting for what happens by itself and tells nobody, with a bound."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

#: Seconds for an answer over HTTP: no test is about how quick one is, and machines can be slow.
ANSWERED_WITHIN_S: Final = 60.0


async def until(done: Callable[[], object], within_s: float = 60.0) -> None:
    """Waits in an event loop."""
    async with asyncio.timeout(within_s):
        while not done():  # noqa: ASYNC110 (nobody would set an event)
            await asyncio.sleep(0.005)


def wait_until(done: Callable[[], object], what: str = "it", within_s: float = 60.0) -> None:
    """Waits where there is no loop."""
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, f"waited {within_s} s for {what}"
        time.sleep(0.02)
