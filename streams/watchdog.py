"""The watchdog: ends a worker that makes no progress, and reports why.

A consumer can stop for good without an error: a join that failed, a fetch that never returns, an
append without an acknowledgement. So partitions report progress, and a thread checks all of them.
It does not depend on the event loop. If that thread hangs, `faulthandler` ends the process from C,
without Python. If `faulthandler` hangs, because the pipe of the log is full, the kernel does.
"""

import faulthandler
import signal
import sys
from collections.abc import Callable, Hashable
from typing import Final

from headwater.schemas.errors import Disposition, HeadwaterError

#: How long writing the stacks of all threads may take.
_STACKS_S: Final = 10.0


class Stalled(HeadwaterError):
    """A partition, or another watched part of the process, makes no progress."""

    disposition = Disposition.HALT
    code = "stalled"


class Watchdog:
    """Time of the last progress, by name.

    Args:
        patience_s: Seconds without progress before `check` fails.
        monotonic: A clock in seconds that never goes back.
    """

    def __init__(self, *, patience_s: float, monotonic: Callable[[], float]) -> None:
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._since: dict[Hashable, tuple[float, str]] = {}

    def record_progress(self, name: Hashable, what: str) -> None:
        """Record progress, or that there is nothing to do, and start watching `name`."""
        self._since[name] = (self._monotonic(), what)

    def leave(self, name: Hashable) -> None:
        """Stop watching `name`."""
        self._since.pop(name, None)

    def check(self) -> None:
        """Check the time of all watched names.

        Raises:
            Stalled: One of them made no progress in time.
        """
        now = self._monotonic()
        for name, (since, what) in list(self._since.items()):
            if now - since > self._patience_s:
                raise Stalled(
                    f"expected progress of {name} within {self._patience_s:.0f} s, found none for "
                    f"{now - since:.0f} s; the last progress: {what}"
                )


def arm(after_s: float) -> None:
    """End the process after a time, with the stacks of its threads, unless called again before."""
    faulthandler.dump_traceback_later(after_s, exit=True)
    # No handler is set for the alarm, so it ends the process even if all threads hang.
    signal.setitimer(signal.ITIMER_REAL, after_s + _STACKS_S)


def dump() -> None:
    """Write the stacks of all threads to standard error."""
    faulthandler.dump_traceback(file=sys.stderr)
