"""Built-in workflows: backfill, replay, prune, wipe and rebuild."""

import sys

# Its code host uses httpx2 without its command line, as the processes of `gateway.cli` do.
sys.modules.setdefault("httpx2._main", None)  # type: ignore[arg-type]
