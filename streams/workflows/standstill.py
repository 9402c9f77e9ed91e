"""Watches the event loop of a worker from a thread of its own, and reports when it stands still.

Heartbeats do not depend on the loop, so a worker that decides for very long keeps its partitions,
and nothing of them moves meanwhile. Looks are counted and not time: a process that was suspended
did not stand still. When C code holds the interpreter, no thread of Python looks: `faulthandler`
then writes the stacks, and at last the kernel ends the process.
"""

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

from headwater.streams.watchdog import dump

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
#: Looks after which a loop that stands still is reported, and again after as many.
REPORT_AFTER: Final = 60
#: Looks after which the process ends. Whoever takes its partitions over may meet the same decision;
#: but what hangs by a fault of this process does not hang there.
END_AFTER: Final = 600
#: How much later the kernel ends it, and `faulthandler` writes, when no thread of Python can.
_SLACK_S: Final = 15.0


class StandstillWatch:
    """The watch over one event loop.

    Args:
        at_work: Says what the loop is doing; called in the thread of the watch.
        end: Ends the process, with an exit code.
        look_s: Seconds between two looks.
        report_after: Looks after which a loop that stands still is reported.
        end_after: Looks after which the process ends.
    """

    def __init__(
        self,
        at_work: Callable[[], str],
        *,
        end: Callable[[int], object] = os._exit,
        look_s: float = LOOK_S,
        report_after: int = REPORT_AFTER,
        end_after: int = END_AFTER,
    ) -> None:
        self._at_work = at_work
        self._end = end
        self._look_s, self._report_after, self._end_after = look_s, report_after, end_after
        self._beats = self._seen = self._still = 0
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the running loop during the body."""
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
        """Have the stacks written, and the process ended, should no thread of Python go on."""
        report_s = self._look_s * self._report_after + _SLACK_S
        faulthandler.dump_traceback_later(report_s, repeat=True, file=sys.stderr)
        # Nobody handles the alarm, so it ends the process.
        signal.setitimer(signal.ITIMER_REAL, self._look_s * self._end_after + _SLACK_S)

    def look(self) -> None:
        """See whether the loop has gone on since the last look."""
        beats = self._beats
        if beats != self._seen:
            self._seen, self._still = beats, 0
            return
        self._still += 1
        if self._still < self._end_after and self._still % self._report_after:
            return
        still_s = self._still * self._look_s
        log.critical(
            "the event loop of this worker has stood still for %.0f s, and with it all its "
            "partitions; it is busy with %s. The stacks of its threads follow",
            *(still_s, self._at_work()),
        )
        dump()
        if self._still >= self._end_after:
            log.critical("the worker ends, to start again from what is durable")
            self._end(os.EX_SOFTWARE)
