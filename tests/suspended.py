"""Processes that stand still."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import wait_until

#: State of a thread in /proc.
_STOPPED = "T"


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspends a process until the end of the block.

    The signal takes effect some time after `kill` has returned: threads that run meanwhile may
    still answer a request.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until_stopped(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_until_stopped(pid: int) -> None:
    """Waits until a process that was sent SIGSTOP stands still."""
    wait_until(lambda: _is_stopped(pid), f"all threads of {pid} to stop")


def _is_stopped(pid: int) -> bool:
    states = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states == {_STOPPED}
