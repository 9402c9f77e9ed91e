"""Code of one run that runs side by side: the branches of a join or a race."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from headwater.processors.replay.errors import HistoryDivergedError
from headwater.schemas.history import Failure
from headwater.streams.replay.giving_up import come_to_end
from headwater.streams.replay.host_port import failure_of

if TYPE_CHECKING:
    from headwater.streams.replay.step import Step

Branch: TypeAlias = "Callable[[Step], Awaitable[Any]]"


class Branches:
    """Branches, each in a task and a scope of its own.

    Shape:  `settled` has value and error by branch, in the order in which they settled.
    """

    def __init__(self, steps: "Mapping[str, Step]", branches: Mapping[str, Branch]) -> None:
        self._run = next(iter(steps.values())).run
        self._moved = self._run.loop.create_future()
        self._diverged: HistoryDivergedError | None = None
        self.steps = steps
        self.settled: dict[str, tuple[Any, Exception | None]] = {}
        self._tasks = {
            name: self._run.loop.create_task(self._settle(name, branch))
            for name, branch in branches.items()
        }

    async def _settle(self, name: str, branch: Branch) -> None:
        value: Any = None
        error: Exception | None = None
        try:
            value = await branch(self.steps[name])
        except Exception as raised:  # noqa: BLE001, whatever a branch raises is its outcome
            error = raised
        except BaseException as raised:  # noqa: BLE001, and so are its ways out
            if self._run.closed or self.steps[name].is_lost():
                # Nobody asks. Raised, it would be kept by the task, and with it all frames.
                return
            error = RuntimeError(
                "the branch cancelled itself"
                if isinstance(raised, asyncio.CancelledError)
                else f"{type(raised).__name__}: {raised}"
            )
        error = come_to_end(self.steps[name], error)
        if isinstance(error, HistoryDivergedError):
            self._diverged = self._diverged or error
        self.settled[name] = (value, error)
        self.wake()

    def wake(self, _: object = None) -> None:
        """Has `until` look again."""
        if not self._moved.done():
            self._moved.set_result(None)

    async def until(self, enough: Callable[[], bool]) -> None:
        """Waits until what has settled is enough; what ends the waiting ends all branches.

        Errors: HistoryDivergedError as soon as a branch has raised it, because that is no failure
                of a branch alone. A run that is rolled back has failed already: there it only
                matters which handlers are found.
        """
        try:
            while not self._is_enough(enough):
                await self._moved
                self._moved = self._run.loop.create_future()
        except BaseException:
            self.end_others()
            raise

    def _is_enough(self, enough: Callable[[], bool]) -> bool:
        if self._diverged is not None and not self._run.rolling_back:
            raise self._diverged
        return enough()

    def all_settled(self) -> bool:
        """Whether nothing runs any more."""
        return len(self.settled) == len(self._tasks)

    def others(self) -> list[str]:
        """The branches that have not settled."""
        return [name for name in self._tasks if name not in self.settled]

    def end_others(self) -> list[str]:
        """Cancels the branches that have not settled, and names them."""
        others = self.others()
        for name in others:
            self.cancel(name)
        return others

    def cancel(self, name: str) -> None:
        """Cancels a branch: it may clean up, but no entry lets it in."""
        self.steps[name].lost = True
        self._tasks[name].cancel()

    def drop(self) -> None:
        """Ends the branches that have not settled, without giving their code another turn."""
        for name in self.others():
            self.steps[name].lost = True
            end(self._tasks[name])

    def failures(self) -> dict[str, Failure]:
        """What failed, by branch in the order of the arguments."""
        return {
            name: failure_of(error)
            for name, error in ((name, self.settled[name][1]) for name in self._tasks)
            if error is not None
        }


def end(task: asyncio.Task[Any]) -> None:
    """Ends a task without giving its code another turn."""
    loop: Any = task.get_loop()
    loop.let_go(task)
    coroutine: Any = task.get_coro()
    # An author's `finally` may do anything.
    with contextlib.suppress(BaseException):
        coroutine.close()
    # The task and the future that it waits for hold each other: without this they would stay until
    # a collection of the oldest generation, once in some hundred thousand runs.
    task.cancel()
