"""The watch of an event loop: what blocks it is measured, and named."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from headwater.streams.loop_watch import BLOCKED_S, Blocked, LoopWatch, log_blocked

BOUND_S = 30.0


def block_until(done: Callable[[], bool]) -> None:
    """Keeps the loop's thread busy until something is so, in another thread."""
    until = time.monotonic() + BOUND_S
    while not done() and time.monotonic() < until:
        pass
    assert done()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not done():  # noqa: ASYNC110 (another thread says so)
            await asyncio.sleep(0.01)


def test_a_block_is_reported_with_the_request_and_the_callback() -> None:
    reported: list[Blocked] = []
    late: list[float] = []

    async def scenario() -> None:
        watch = LoopWatch(late.append, reported.append)
        watch.start()

        async def application(scope: dict[str, Any]) -> None:
            block_until(lambda: watch._captured != "")
            since = time.thread_time()
            block_until(lambda: time.thread_time() - since > BLOCKED_S)

        await asyncio.create_task(
            application({"type": "http", "method": "POST", "path": "/admin/user\n/user_amara/wipe"})
        )
        await until(lambda: bool(reported))
        watch.stop()
        assert watch.longest in reported
        assert watch.longest_cpu.cpu_seconds > 0

    asyncio.run(scenario())
    (result, *_) = reported
    assert result.seconds >= BLOCKED_S
    assert result.where.startswith("POST '/admin/user\\n/...': ")
    assert "block_until < " in result.where
    assert "application" in result.where
    assert max(late) >= result.seconds


def test_a_loop_that_runs_has_no_block_however_much_there_is_to_do() -> None:
    async def scenario() -> LoopWatch:
        beats: list[float] = []
        watch = LoopWatch(beats.append)
        watch.start()
        await until(lambda: len(beats) > 5)
        watch.stop()
        return watch

    assert asyncio.run(scenario()).longest_cpu.cpu_seconds < 0.25


def test_a_stopped_watch_ends_its_thread_and_its_beats() -> None:
    async def scenario() -> None:
        watch = LoopWatch()
        watch.start()
        watch.stop()
        await until(lambda: not watch._thread.is_alive())

    asyncio.run(scenario())


def test_the_line_of_the_log_says_how_long_and_where(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log_blocked(Blocked(0.5, 0.25, "GET '/x': a.py:1 f"))
        log_blocked(Blocked(0.5, 0.25, ""))
    first, second = caplog.messages
    assert first == "the event loop was blocked for 0.50 s (0.25 s of CPU) by GET '/x': a.py:1 f"
    assert re.search("by a callback that was not captured$", second)
