"""Frequency of Python's cyclic garbage collection."""

import gc
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
