"""The clocks; no other module reads them."""

import time
from time import clock_gettime, clock_gettime_ns, thread_time, time_ns
from typing import Final

#: Includes time in which the machine was suspended; CLOCK_MONOTONIC does on macOS, not on Linux.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Return the time in Unix milliseconds."""
    # Bound at import: `time.time_ns` itself warns within workflow code, see `replay.forbidden`.
    return time_ns() // 1_000_000


def cpu_of_thread() -> float:
    """Return the processor time of this thread in seconds."""
    return thread_time()


def monotonic() -> float:
    """Return seconds of a clock that never goes back, and includes suspended time."""
    return clock_gettime(_STEADY)


def monotonic_ns() -> int:
    """Return the same in nanoseconds; processes of one machine read the same clock."""
    return clock_gettime_ns(_STEADY)
