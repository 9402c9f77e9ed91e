"""How the operating system shares the cores among our processes."""

import contextlib
import os
import sys


def run_as_batch() -> None:
    """Lets this process wait for a core rather than take it from the process that woke it.

    Worker, host and broker wake each other with every few records, senders and the threads of the
    gateway's server with every request. Where cores are few, whoever is woken would interrupt the
    other in the middle of its turn, which has more for it when it is through. Children and threads
    to come inherit it. Does nothing where the system has no such thing, or forbids it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
