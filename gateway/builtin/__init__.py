"""Built-in workflows: backfill, replay, prune, wipe and rebuild."""

import sys

# Its code host is a process that uses httpx without its command line, as those of `gateway.cli` do.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
