"""The wall clock, read only here."""

import time


def now_ms() -> int:
    """Now, in Unix milliseconds."""
    return time.time_ns() // 1_000_000
