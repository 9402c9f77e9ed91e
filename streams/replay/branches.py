"""Branches of a join or a race: code of one run that executes concurrently."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from headwater.processors.code.errors import HistoryDivergedError
from headwater.schemas.history import Failure
from headwater.streams.authoring.failures import failure_of
from headwater.streams.replay.scope import Scope

S = TypeVar("S", bound=Scope)

#: An async function that takes the scope of its branch.
Branch: TypeAlias = Callable[[S], Awaitable[Any]]


class Branches(Generic[S]):
    """Branches, each in its own task and scope.

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
