"""Branches of joins, races and loops: concurrent execution, and replay of ended entries.

The code within an entry that has ended is run again, although its result is recorded, for three
reasons: to find out whether its entries still fit the history, to restore variables that
surrounding code may read, and, during a rollback, to collect rollback handlers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from headwater.processors.code.errors import HistoryDivergedError
from headwater.processors.code.state import Entry
from headwater.schemas.history import Failure
from headwater.schemas.statuses import OPEN
from headwater.streams.authoring.failures import failure_of
from headwater.streams.replay.loop import WorkflowLoop
from headwater.streams.replay.scope import Scope

S = TypeVar("S", bound=Scope)

#: An async function that takes the scope of its branch.
Branch: TypeAlias = Callable[[S], Awaitable[Any]]


class Branches(Generic[S]):
    """Branches, with a task and a scope per branch.

    Attributes:
        settled: Value and error by branch, in the order in which they settled.
    """

    def __init__(self, scopes: Mapping[str, S], branches: Mapping[str, Branch[S]]) -> None:
        self._run = next(iter(scopes.values())).run
        self._changed = self._run.loop.create_future()
        self._diverged: HistoryDivergedError | None = None
        self.scopes = scopes
        self.settled: dict[str, tuple[Any, Exception | None]] = {}
        self._tasks = {
            name: self._run.loop.create_task(self._settle(name, branch))
            for name, branch in branches.items()
        }

    async def _settle(self, name: str, branch: Branch[S]) -> None:
        scope = self.scopes[name]
        value: Any = None
        error: Exception | None = None
        try:
            value = await branch(scope)
        except Exception as raised:  # noqa: BLE001, whatever a branch raises is its outcome
            error = raised
        except BaseException as raised:  # noqa: BLE001, also SystemExit and the like
            if self._run.closed or scope.is_lost():
                # Nothing awaits it. If raised, the task would keep it, and with it all frames.
                return
            error = RuntimeError(
                "the branch cancelled itself"
                if isinstance(raised, asyncio.CancelledError)
                else f"{type(raised).__name__}: {raised}"
            )
        error = scope.end(error)
        if isinstance(error, HistoryDivergedError):
            self._diverged = self._diverged or error
        self.settled[name] = (value, error)
        self.notify()

    def notify(self, _: object = None) -> None:
        """Let `until` check its condition again."""
        if not self._changed.done():
            self._changed.set_result(None)

    async def until(self, enough: Callable[[], bool]) -> None:
        """Wait until a condition on the settled branches holds.

        If the wait is cancelled, so are all branches, which may clean up. If it is closed, they are
        closed without running again.

        Raises:
            HistoryDivergedError: A branch raised it. It is raised at once, because the whole run
                has diverged. During a rollback, the run has failed already, and the branches only
                run to collect handlers.
        """
        try:
            while not self._is_enough(enough):
                await self._changed
                self._changed = self._run.loop.create_future()
        except GeneratorExit:
            self.close()
            raise
        except BaseException:
            self.cancel_others()
            raise

    def _is_enough(self, enough: Callable[[], bool]) -> bool:
        if self._diverged is not None and not self._run.rolling_back:
            raise self._diverged
        return enough()

    def all_settled(self) -> bool:
        """Whether all branches have settled."""
        return len(self.settled) == len(self._tasks)

    def winner(self) -> str | None:
        """Return the branch that completed first."""
        return next((name for name, (_, error) in self.settled.items() if error is None), None)

    def others(self) -> list[str]:
        """Return the branches that have not settled."""
        return [name for name in self._tasks if name not in self.settled]

    def cancel_others(self) -> list[str]:
        """Cancel and return the branches that have not settled."""
        others = self.others()
        for name in others:
            self.cancel(name)
        return others

    def cancel(self, name: str) -> None:
        """Cancel a branch. It may clean up, but it can call no entry."""
        self.scopes[name].lost = True
        self._tasks[name].cancel()

    def close(self) -> None:
        """Close the branches that have not settled, without running their code again.

        A branch that was cancelled before, and still waits, is left waiting, as it was originally:
        if closed, its code would run to the end of its `finally` blocks.
        """
        for name in self.others():
            if not self.scopes[name].lost:
                self.scopes[name].lost = True
                self._run.loop.close_task(self._tasks[name])

    def failures(self) -> dict[str, Failure]:
        """Return the failures by branch, in the order of the arguments."""
        return {
            name: failure_of(error)
            for name, error in ((name, self.settled[name][1]) for name in self._tasks)
            if error is not None
        }


# -- replay of ended entries


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

    Nothing is sent to the owner, and no step is called. Recorded results are delivered in the order
    of the log, that of the whole entry last. Entries without a recorded result stay pending, and
    code that still waits when the entry's own result is due is closed. The replay may thus find a
    divergence, but never changes the recorded result.

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
