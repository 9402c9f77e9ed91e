"""Code beneath an entry that is over, run again for what it visits.

A replay has the results of joins, races and loops without it. But only there is it found that an
entry beneath them no longer fits, and the code around them may look at what they left in variables.
While a run is rolled back, rollback handlers are found there too.

Theory of operation: nothing is sent to the owner, and no step is called. Recorded results come in
the order of the log, that of the whole entry last. What has none stays without, and what still
waits when the entry's own result is due is ended. So a divergence may come of it, but no value and
no error: what is recorded of the entry holds.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from headwater.processors.replay.state import Entry
from headwater.schemas.statuses import OPEN
from headwater.streams.replay.branches import Branches
from headwater.streams.replay.loop import WorkflowLoop
from headwater.streams.replay.scope import Scope


def only_replays(scope: Scope, entry: Entry | None) -> bool:
    """Whether the code beneath an entry only replays what is recorded."""
    return scope.only_replays or (entry is not None and entry.status not in OPEN)


def is_replayed(scope: Scope, key: str) -> bool:
    """Whether the code beneath an entry that is over has to be run again: it is, once."""
    journal = scope.run.journal
    return key in journal.entries and key not in journal.finished


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
    due = scope.result(key)
    if not is_replayed(scope, key):
        return await due
    running = begin()
    due.add_done_callback(running.notify)
    # What ends this from outside has cancelled the code, too, which may clean up, as it did then.
    await running.until(lambda: due.done() or settles(running))
    if not due.done():
        settled(running)
    await running.until(due.done)
    running.close()
    scope.run.journal.finished.add(key)
    return due.result()


class UntilDue:
    """Code that is awaited until it ends or a result is due; then it has no turn left.

    It takes as many turns of the loop as it would take alone: a task of its own would let others
    go first that came behind it when it was not a replay.
    """

    def __init__(
        self,
        loop: WorkflowLoop,
        code: Coroutine[Any, Any, None],
        due: asyncio.Future[Entry],
        task: asyncio.Task[Any],
    ) -> None:
        self._loop = loop
        self._code = code
        self._due = due
        self._task = task
        self._over = False

    def __await__(self) -> Generator[Any, None, None]:
        """Awaits it, in the task that was given."""
        thrown: BaseException | None = None
        self._due.add_done_callback(self._interrupt)
        try:
            while True:
                awaited = self._code.throw(thrown) if thrown else self._code.send(None)
                thrown = None
                try:
                    yield awaited
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001, it is for the code, which may catch it
                    if isinstance(error, asyncio.CancelledError) and self._due.done():
                        self._task.uncancel()
                        return
                    thrown = error
        except StopIteration:
            pass
        finally:
            self._over = True
            self._loop.close_code(self._code)

    def _interrupt(self, _: object) -> None:
        if not self._over:
            self._task.cancel()
