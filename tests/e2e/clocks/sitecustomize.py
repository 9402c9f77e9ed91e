"""Gives a process of a test a clock that jumps: Python imports this before anything else.

With TEST_CLOCKS, a folder, and TEST_CLOCK, the name of a part, the clock of the day is ahead by as
many seconds as the file of that name says, or behind where they are negative. Code hosts have a
clock of their own, `<name>-host`. Clocks that only go forward stay as they are, as when the
operating system sets the time.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

#: How often the file is read.
_READ_EVERY_NS = 20_000_000


class _Clock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._time_ns, self._monotonic_ns = time.time_ns, time.monotonic_ns
        self._ahead_ns, self._read_at_ns = 0, 0

    def time_ns(self) -> int:
        now_ns = self._monotonic_ns()
        if now_ns - self._read_at_ns > _READ_EVERY_NS:
            self._read_at_ns = now_ns
            with contextlib.suppress(OSError):  # It has not jumped yet.
                self._ahead_ns = int(float(self._file.read_text()) * 1_000_000_000)
        return self._time_ns() + self._ahead_ns

    def time(self) -> float:
        return self.time_ns() / 1_000_000_000


def _shift() -> None:
    folder, name = os.environ.get("TEST_CLOCKS"), os.environ.get("TEST_CLOCK")
    if not folder or not name:
        return
    if any("code_host" in each or "gateway.house" in each for each in sys.orig_argv):
        name += "-host"
    clock = _Clock(Path(folder) / name)
    time.time_ns, time.time = clock.time_ns, clock.time


_shift()
