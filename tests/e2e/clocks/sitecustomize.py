"""Gives a process of a test a clock that jumps: Python imports this before anything else.

With TEST_CLOCKS, a folder, and TEST_CLOCK, the name of a part, the clock of the day is ahead by as
many seconds as the file of that name has, a number of eight bytes, or behind where they are
negative. Code hosts have a clock of their own, `<name>-host`. Clocks that only go forward stay as
they are, as when the operating system sets the time.

The file is mapped into memory: to read it is not to open it, which workflows may not do.
"""

import mmap
import os
import struct
import sys
import time
from pathlib import Path


class _Clock:
    def __init__(self, file: Path) -> None:
        with file.open("rb") as mapped:
            self._ahead = mmap.mmap(mapped.fileno(), 0, access=mmap.ACCESS_READ)
        self._time_ns = time.time_ns

    def time_ns(self) -> int:
        (ahead_s,) = struct.unpack_from("d", self._ahead)
        return self._time_ns() + int(ahead_s * 1_000_000_000)

    def time(self) -> float:
        return self.time_ns() / 1_000_000_000


def _shift() -> None:
    folder, name = os.environ.get("TEST_CLOCKS"), os.environ.get("TEST_CLOCK")
    if not folder or not name:
        return
    if any("code_host" in item or "gateway.builtin" in item for item in sys.orig_argv):
        name += "-host"
    clock = _Clock(Path(folder) / name)
    time.time_ns, time.time = clock.time_ns, clock.time


_shift()
