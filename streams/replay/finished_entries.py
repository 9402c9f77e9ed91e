"""Replay of the code within joins, races and loops that have ended.

Although their results are recorded, their code is run again for three reasons: to find out whether
its entries still fit the history, to restore variables that surrounding code may read, and, during
a rollback, to collect rollback handlers.

Nothing is sent to the owner, and no step is called. Recorded results are delivered in the order of
the log, that of the whole entry last. Entries without a recorded result stay pending, and code that
still waits when the entry's own result is due is closed. The replay may thus find a divergence, but
never changes the recorded result.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from headwater.processors.code.state import Entry
from headwater.schemas.statuses import OPEN
from headwater.streams.replay.branches import Branches
from headwater.streams.replay.loop import WorkflowLoop
from headwater.streams.replay.scope import Scope


def only_replays(scope: Scope, entry: Entry | None) -> bool:
    """Whether the code within an entry only replays recorded results."""
    return scope.only_replays or (entry is not None and entry.status not in OPEN)


def is_replayed(scope: Scope, key: str) -> bool:
    """Whether the code within an ended entry still has to be replayed, which happens once."""
    journal = scope.run.journal
    return key in journal.entries and key not in journal.finished


async def replay_within(
    scope: Scope,
    key: str,
    begin: Callable[[], Branches[Any]],
    *,
    settles: Callable[[Branches[Any]], bool] = lambda _: False,
    settled: Callable[[Branches[Any]], None] = lambda _: None,
) -> Entry:
    """Replay the code within an entry, once, until the entry's result is due, and return that.

    Args:
        scope: Scope of the entry.
        key: Key of the entry.
        begin: Starts the branches, in scopes that are past.
        settles: Whether enough branches have settled to end the entry.
        settled: Called when `settles` is true before the result is due. May raise.

    Raises:
        HistoryDivergedError: The code does not fit the history.
    """
    due = scope.result(key)
    if not is_replayed(scope, key):
        return await due
    running = begin()
    due.add_done_callback(running.notify)
    # If this wait is cancelled, so is the code, which may clean up as it did originally.
    await running.until(lambda: due.done() or settles(running))
    if not due.done():
        settled(running)
    await running.until(due.done)
    running.close()
    scope.run.journal.finished.add(key)
    return due.result()


class UntilDue:
    """Awaits code until it ends or a result is due, and then closes it.

    The code runs in the surrounding task, so that it takes as many iterations of the loop as it did
    originally. In a separate task it could be overtaken by other code.
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
        """Await the code in `task`."""
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
                except BaseException as error:  # noqa: BLE001, passed on to the code, which may catch it
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
