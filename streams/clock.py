"""The clocks, read only here."""

import time


def now_ms() -> int:
    """Now, in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def cpu_of_thread() -> float:
    """Return the seconds that this thread was on a processor."""
    return time.thread_time()


def monotonic() -> float:
    """Seconds that never go back, and that pass while the process is suspended."""
    return time.monotonic()
