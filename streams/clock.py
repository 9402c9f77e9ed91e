"""The clocks, read only here."""

import time
from typing import Final

#: Counts the time in which the machine was suspended; so does CLOCK_MONOTONIC of macOS, and that of
#: Linux does not.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Now, in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def cpu_of_thread() -> float:
    """Return the seconds that this thread was on a processor."""
    return time.thread_time()


def monotonic() -> float:
    """Seconds that never go back, and that pass while the process or its machine is suspended."""
    return time.clock_gettime(_STEADY)


def monotonic_ns() -> int:
    """The same in nanoseconds; processes of one machine read the same clock."""
    return time.clock_gettime_ns(_STEADY)
