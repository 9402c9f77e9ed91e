"""Code beneath an entry that is over, run again for what it visits.

A replay has the results of joins, races and loops without it. But only there is it found that an
entry beneath them no longer fits, and the code around them may look at what they left in variables.
While a run is rolled back, rollback handlers are found there too.

Theory of operation: nothing is sent to the owner, and no step is called. Recorded results come in
the order of the log, that of the whole entry last. What has none stays without, and what still
waits when the entry's own result is due is ended. So a divergence may come of it, but no value and
no error: what is recorded of the entry holds.
"""

from collections.abc import Callable
from typing import Any

from headwater.processors.replay.state import Entry
from headwater.schemas.statuses import OPEN
from headwater.streams.replay.branches import Branches
from headwater.streams.replay.scope import Scope


def only_replays(scope: Scope, entry: Entry | None) -> bool:
    """Whether the code beneath an entry only replays what is recorded."""
    return scope.only_replays or (entry is not None and entry.status not in OPEN)


async def replay_beneath(
    scope: Scope,
    key: str,
    begin: Callable[[], Branches[Any]],
    *,
    settles: Callable[[Branches[Any]], bool] = lambda _: False,
    settled: Callable[[Branches[Any]], None] = lambda _: None,
) -> Entry:
    """Runs code again, once, until its entry's result is due, and gives that.

    Shape:  what `begin` gives has scopes that are past. `settled` is called when enough has
            settled for the entry to be over (`settles`), if that comes first.
    Errors: HistoryDivergedError, and what `settled` raises.
    """
    journal = scope.run.journal
    due = scope.result(key)
    if key in journal.finished or key not in journal.entries:
        return await due
    running = begin()
    due.add_done_callback(running.notify)
    # What ends this from outside has cancelled the code, too, which may clean up, as it did then.
    await running.until(lambda: due.done() or settles(running))
    if not due.done():
        settled(running)
    await running.until(due.done)
    running.close()
    journal.finished.add(key)
    return due.result()
