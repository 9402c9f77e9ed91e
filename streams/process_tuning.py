"""Settings of a Python process: frequency of garbage collection, CPU scheduling, and cores."""

import contextlib
import gc
import os
import sys
from typing import Final

#: Allocated and not freed objects that start a collection; Python's default is 700.
_THRESHOLD: Final = 50_000


def collect_seldom() -> None:
    """Collect cycles rarely, and never among existing objects.

    Requests, batches and turns create and drop many objects, hardly any of them in cycles. With
    Python's defaults, new objects are searched every few requests, and all objects so often that a
    gateway pauses for some 20 ms at a time.
    """
    gc.freeze()
    gc.set_threshold(_THRESHOLD)


# -- scheduling by the operating system


def run_as_batch() -> None:
    """Make this process wait for a core rather than preempt the process that woke it.

    Worker, host and broker wake the others with every few records, senders and the threads of the
    gateway's server with every request. If cores are few, the process that is woken would preempt
    the other one, which has more work for it when it is done. Children and later threads inherit
    the policy. Does nothing if the system does not support or allow it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def usable_cores() -> int:
    """Return how many hyperthreads this process may use; limits of a container are not known."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1
