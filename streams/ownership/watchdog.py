"""Watchdogs: report a worker with stopped progress or a stopped event loop, and end it."""

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
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

    A consumer can stop for good without an error: a join that failed, a fetch that never returns,
    an append without an acknowledgement. So partitions report progress, and a thread checks all of
    them. It does not depend on the event loop. If that thread hangs, `faulthandler` ends the
    process from C, without Python. If `faulthandler` hangs, because the pipe of the log is full,
    the kernel does.

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


# -- event loop

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
#: Checks after which a blocked loop is reported, and again after as many.
REPORT_AFTER: Final = 60
#: Checks after which the process exits. The next owner of its partitions may block on the same
#: decision, but it recovers from a hang that is specific to this process.
END_AFTER: Final = 600
#: Additional seconds before the kernel ends it, and `faulthandler` writes, if no thread can run.
_SLACK_S: Final = 15.0


class StandstillWatch:
    """Watches one event loop.

    Heartbeats do not depend on the loop, so a worker that decides for very long keeps its
    partitions, although none of them makes progress. Checks are counted rather than time: a process
    that was suspended was not blocked. When C code holds the interpreter, no Python thread can
    check: `faulthandler` then writes the stacks, and finally the kernel ends the process.

    Args:
        current_work: Returns what the loop is doing. Called in the watching thread.
        end: Ends the process with an exit code.
        look_s: Seconds between two checks.
        report_after: Checks after which a blocked loop is reported.
        end_after: Checks after which the process exits.
    """

    def __init__(
        self,
        current_work: Callable[[], str],
        *,
        end: Callable[[int], object] = os._exit,
        look_s: float = LOOK_S,
        report_after: int = REPORT_AFTER,
        end_after: int = END_AFTER,
    ) -> None:
        self._current_work = current_work
        self._end = end
        self._look_s, self._report_after, self._end_after = look_s, report_after, end_after
        self._beats = self._seen = self._still = 0
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the running loop within a context."""
        beating = asyncio.create_task(self._beat(), name="standstill watch")
        thread = threading.Thread(target=self._watch, name="standstill watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._beats += 1
            await asyncio.sleep(self._look_s / 2)

    def _watch(self) -> None:
        try:
            while not self._over.wait(self._look_s):
                self._arm()
                self.look()
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _arm(self) -> None:
        """Schedule a stack dump and the end of the process, in case no Python thread can run."""
        report_s = self._look_s * self._report_after + _SLACK_S
        faulthandler.dump_traceback_later(report_s, repeat=True, file=sys.stderr)
        # The alarm has no handler, so it ends the process.
        signal.setitimer(signal.ITIMER_REAL, self._look_s * self._end_after + _SLACK_S)

    def look(self) -> None:
        """Check whether the loop has made progress since the last check."""
        beats = self._beats
        if beats != self._seen:
            self._seen, self._still = beats, 0
            return
        self._still += 1
        if self._still < self._end_after and self._still % self._report_after:
            return
        still_s = self._still * self._look_s
        log.critical(
            "the event loop of this worker is blocked for %.0f s, so none of its partitions make "
            "progress; it is busy with %s. Stacks of its threads follow",
            *(still_s, self._current_work()),
        )
        dump()
        if self._still >= self._end_after:
            log.critical("restarting from committed state")
            self._end(os.EX_SOFTWARE)
