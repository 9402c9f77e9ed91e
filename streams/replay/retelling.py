"""Code beneath an entry that is over, run again for what it visits.

A replay has the results of joins, races and loops without it. But only there is it found that an
entry beneath them no longer fits, and the code around them may look at what they left in variables.
While a run is rolled back, rollback handlers are found there too.

Theory of operation: nothing is asked of the owner, and no step is called. Recorded results come in
the order of the log, that of the whole entry last. What has none stays without, and what still
waits when the entry's own result is due is ended. So a divergence may come of it, but no value and
no error: what is recorded of the entry stands.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.processors.replay.state import OPEN, Entry
from headwater.streams.replay.branches import Branches

if TYPE_CHECKING:
    from headwater.streams.replay.scope import Scope


def is_over(scope: "Scope", entry: Entry | None) -> bool:
    """Whether nothing that the code beneath an entry asks for is news."""
    return scope.retold or (entry is not None and entry.status not in OPEN)


async def retell(
    scope: "Scope",
    key: str,
    begin: Callable[[], Branches],
    *,
    settles: Callable[[Branches], bool] = lambda _: False,
    settled: Callable[[Branches], None] = lambda _: None,
) -> Entry:
    """Runs code again, once, until its entry's result is due, and gives that.

    Shape:  what `begin` gives has scopes that are past. `settled` is called when enough of it for
            the entry to be over has settled, as `settles` says, if that comes first.
    Errors: HistoryDivergedError, and what `settled` raises.
    """
    run = scope.run
    due = run.result(key)
    if key in run.record.through or key not in run.entries:
        return await due
    running = begin()
    due.add_done_callback(running.wake)
    try:
        await running.until(lambda: due.done() or settles(running))
        if not due.done():
            settled(running)
        await running.until(due.done)
    finally:
        running.drop()
    run.record.through.add(key)
    return due.result()
