"""Scheduling of our processes by the operating system."""

import contextlib
import os
import sys


def run_as_batch() -> None:
    """Make this process wait for a core rather than preempt the process that woke it.

    Worker, host and broker wake each other with every few records, senders and the threads of the
    gateway's server with every request. If cores are few, the process that is woken would preempt
    the other one, which has more work for it when it is done. Children and later threads inherit
    the policy. Does nothing if the system does not support or allow it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
