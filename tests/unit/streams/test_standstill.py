"""The watch over an event loop: one that stands still is reported, with what it is busy with."""

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from headwater.streams.ownership.watchdog import StandstillWatch

PATIENCE_S = 30


def blocked_until(done: list[int] | pytest.LogCaptureFixture, words: str = "") -> None:
    """Block the thread of the loop until something has come."""
    deadline = time.monotonic() + PATIENCE_S
    while not (done if isinstance(done, list) else words in done.text):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_loop_that_stands_still_is_reported_with_what_it_decides_and_goes_on(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    async def scenario() -> None:
        watch = StandstillWatch(
            lambda: "a decision for order/o-1 in partition 3",
            end=lambda _: pytest.fail("expected it to go on"),
            look_s=0.01,
            report_after=3,
            end_after=1_000_000,
        )
        with watch.watching():
            blocked_until(caplog, "is blocked")

    asyncio.run(scenario())
    assert "it is busy with a decision for order/o-1 in partition 3" in caplog.text
    assert "in blocked_until" in capfd.readouterr().err, "the stacks of all threads"


def test_a_loop_that_stands_still_for_very_long_ends_its_process():
    ended: list[int] = []

    async def scenario() -> None:
        watch = StandstillWatch(
            lambda: "no decision", end=ended.append, look_s=0.01, report_after=3, end_after=6
        )
        with watch.watching():
            blocked_until(ended)

    asyncio.run(scenario())
    assert ended[0] == 70


def test_looks_are_counted_and_not_time(caplog: pytest.LogCaptureFixture):
    # As after a suspension: much time has passed, and the loop had no turn between two looks.
    watch = StandstillWatch(lambda: "no decision", look_s=3_600, report_after=2, end_after=3)
    watch._beats = 1
    watch.look()
    watch.look()
    assert caplog.text == ""
    watch._beats = 2
    watch.look()
    watch.look()
    assert caplog.text == ""


#: Code in C that holds the interpreter: no thread of Python goes on.
HELD = """
import asyncio, ctypes
from headwater.streams.ownership import watchdog

async def main():
    watchdog._SLACK_S = 0.5
    watch = watchdog.StandstillWatch(lambda: "", look_s=0.1, report_after=5, end_after=20)
    with watch.watching():
        await asyncio.sleep(0.5)
        ctypes.PyDLL(None).sleep(1_000)

asyncio.run(main())
"""


def test_a_process_whose_interpreter_is_held_writes_its_stacks_and_ends():
    held = subprocess.Popen([sys.executable, "-c", HELD], stderr=subprocess.PIPE, text=True)
    try:
        _, errors = held.communicate(timeout=PATIENCE_S)
    finally:
        held.kill()
    assert held.returncode == -signal.SIGALRM, errors
    assert "in main" in errors
