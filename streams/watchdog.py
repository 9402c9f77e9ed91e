"""The watchdog: ends a worker that no longer gets on, and says why.

A consumer can stop for good without an error: a join that failed, a fetch that never returns, an
append without an answer. So whoever gets on says so, partition by partition, and a thread looks
whether all do. It needs neither the event loop nor, at last, Python: should even the thread stand
still, `faulthandler` ends the process from C. And should that wait as well, because nobody reads
the log that it writes to, the kernel does.
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
    """Something that should get on does not."""

    disposition = Disposition.HALT
    code = "stalled"


class Watchdog:
    """Knows who got on when.

    Units:  seconds of a clock that only goes forward.
    """

    def __init__(self, *, patience_s: float, monotonic: Callable[[], float]) -> None:
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._since: dict[Hashable, tuple[float, str]] = {}

    def gets_on(self, who: Hashable, how: str) -> None:
        """Says that somebody gets on, or has nothing to do; from now on he is watched."""
        self._since[who] = (self._monotonic(), how)

    def leave(self, who: Hashable) -> None:
        """Ends the watch over somebody."""
        self._since.pop(who, None)

    def check(self) -> None:
        """Passes while everybody gets on.

        Errors: Stalled.
        """
        now = self._monotonic()
        for who, (since, how) in list(self._since.items()):
            if now - since > self._patience_s:
                raise Stalled(
                    f"expected {who} to get on within {self._patience_s:.0f} s, found nothing "
                    f"done for {now - since:.0f} s; the last that was: {how}"
                )


def arm(after_s: float) -> None:
    """Ends the process after a time with the stacks of its threads, unless it is armed again."""
    faulthandler.dump_traceback_later(after_s, exit=True)
    # Nobody handles the alarm, so it ends the process, whatever any thread waits for.
    signal.setitimer(signal.ITIMER_REAL, after_s + _STACKS_S)


def dump() -> None:
    """Writes the stacks of all threads to standard error."""
    faulthandler.dump_traceback(file=sys.stderr)
