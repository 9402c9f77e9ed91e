"""How often Python looks for objects that refer to each other in circles."""

import gc
from typing import Final

#: Objects that were made and not dropped since the last look; Python's own is 700.
_THRESHOLD: Final = 50_000


def collect_seldom() -> None:
    """Lets this process look for cycles seldom, and never among what it has now.

    Requests, batches and turns make and drop many objects, hardly any of them in cycles. Left to
    itself Python would search the new ones every few requests, and all there are so often that a
    gateway stands still for some 20 ms at a time.
    """
    gc.freeze()
    gc.set_threshold(_THRESHOLD)
