"""An event loop for the code of one workflow run, which does nothing but that.

Real event loops mix the code's own turns with sockets and timers, in an order that no replay can
repeat, and never tell when nothing is left to do. This one has a queue of callbacks and runs until
it is empty: the order depends on the code and on what is delivered to it alone. What needs a clock,
a thread or a socket raises an error that names what to use instead.
"""

import asyncio
import contextlib
import contextvars
import functools
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, NoReturn

from typing_extensions import override

from headwater.processors.replay.errors import NonDeterministicError

#: A turn of workflow code is short; this many callbacks mean that it spins without an entry.
TURNS_MAX: Final = 1_000_000
#: How often a coroutine is told to end that goes on to await something.
CLOSINGS_MAX: Final = 100
#: The iteration of a task that has outlived it: no key of an entry begins so.
_PAST: Final = "/"


def _run_again(loop: asyncio.AbstractEventLoop | None, current: asyncio.Task[Any] | None) -> None:
    """Lets the loop go on, in the task that it was in."""
    asyncio._set_running_loop(loop)  # noqa: SLF001
    if loop is not None and current is not None:
        asyncio._enter_task(loop, current)  # noqa: SLF001


class WorkflowLoop(asyncio.AbstractEventLoop):
    """The loop of one run."""

    __slots__ = ("_failed", "_ready", "_tasks", "warn")

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        #: Tells the author something about a place of their code, once.
        self.warn = warn
        self._ready: deque[asyncio.Handle] = deque()
        #: Tasks that have not ended, each with the iteration of a loop in which it was created.
        self._tasks: dict[asyncio.Task[Any], str] = {}
        #: Tasks that have failed, in this order, with the same.
        self._failed: list[tuple[asyncio.Task[Any], str]] = []

    def run_ready(self) -> None:
        """Runs until nothing is ready.

        Errors: NonDeterministicError when it never comes to rest.
        """
        ready = self._ready
        if not ready:
            return
        outside, current = self._begin_to_run()
        try:
            turns = 0
            while ready:
                handle = ready.popleft()
                if not handle.cancelled():
                    try:  # noqa: SIM105, a context manager costs more than the turn
                        handle._run()  # noqa: SLF001
                    except (SystemExit, KeyboardInterrupt):
                        # Whoever awaits the task that raised it gets it too.
                        pass
                turns += 1
                if turns > TURNS_MAX:
                    ready.clear()
                    raise NonDeterministicError(
                        "the workflow spins: a million turns without waiting for an entry"
                    )
        finally:
            _run_again(outside, current)

    def _begin_to_run(self) -> tuple[asyncio.AbstractEventLoop | None, asyncio.Task[Any] | None]:
        """Makes this the running loop; gives the one that was, and the task that it was in.

        That task is left for the time being: since Python 3.14 a thread has one current task,
        whatever its loops, and none of ours could be entered within it.
        """
        outside = asyncio._get_running_loop()  # noqa: SLF001, what every event loop does
        current = None if outside is None else asyncio.current_task(outside)
        if outside is not None and current is not None:
            asyncio._leave_task(outside, current)  # noqa: SLF001
        asyncio._set_running_loop(self)  # noqa: SLF001
        return outside, current

    def close_tasks(self) -> None:
        """Ends all tasks: nothing runs here any more."""
        # A `finally` may begin tasks, too.
        while self._tasks:
            for task in tuple(self._tasks):
                self.close_task(task)
        self._ready.clear()
        self._failed.clear()

    def close_task(self, task: asyncio.Task[Any]) -> None:
        """Ends a task without giving its code another turn."""
        self._tasks.pop(task, None)
        # How it ends is no failure.
        task.remove_done_callback(self._done)
        self.close_code(task.get_coro())
        # The task and the future that it waits for hold each other: without this they would stay
        # until a collection of the oldest generation, once in some hundred thousand runs.
        task.cancel()

    def close_code(self, coroutine: Any) -> None:  # noqa: ANN401, whatever a task may be made of
        """Ends a coroutine here, where its `finally` blocks are held to what a workflow may do.

        They may do anything, and Python runs them wherever a coroutine is closed: on the loop of
        the host they would begin tasks there, block it, and take its task for their own.
        """
        # One that awaits something while it ends goes on to be there, and is ended again: if it
        # were left, garbage collection would go on with it.
        left = [coroutine]
        outside, current = self._begin_to_run()
        try:
            for _ in range(CLOSINGS_MAX):
                if not left:
                    break
                chain = list(_awaiting(left.pop()))
                with contextlib.suppress(BaseException):
                    chain[0].close()
                left += [each for each in chain if getattr(each, "cr_frame", None) is not None]
        finally:
            _run_again(outside, current)

    @override
    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    @override
    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        # A run that is evicted leaves its tasks pending, which is what eviction means.
        task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001
        current = asyncio.current_task(self)
        self._tasks[task] = "" if current is None else self._tasks.get(current, "")
        task.add_done_callback(self._done)
        return task

    def enter_iteration(self, task: asyncio.Task[Any], scope: str) -> str:
        """Note that a task runs the body of a step.loop from here on.

        Args:
            task: The task; tasks that it creates belong to the same iteration.
            scope: Key of the iteration, or "" outside of loops.

        Returns:
            The iteration that the task was in before.
        """
        before = self._tasks.get(task, "")
        if task in self._tasks:
            self._tasks[task] = scope
        return before

    def _done(self, task: asyncio.Task[Any]) -> None:
        scope = self._tasks.pop(task, "")
        # To call `exception()` would mark it as retrieved.
        if task._exception is not None:  # noqa: SLF001
            self._failed.append((task, scope))

    def leave_iterations(self, key: str) -> list[asyncio.Task[Any]]:
        """Note that a replay begins behind all iterations of a loop so far.

        Args:
            key: Key of the loop.

        Returns:
            The tasks of these iterations that have failed and whose exceptions no code has
            retrieved. Those that still run are `past`: see `take_failed`.
        """
        beneath = f"{key}/"
        for task, scope in self._tasks.items():
            if scope.startswith(beneath):
                self._tasks[task] = _PAST
        return self._take(lambda scope: scope.startswith(beneath))

    def take_failed(self, *, past: bool) -> list[asyncio.Task[Any]]:
        """Remove and return failed tasks whose exceptions no code has retrieved.

        Args:
            past: Only tasks of iterations that no replay comes to again; otherwise all tasks.
        """
        return self._take(lambda scope: not past or scope == _PAST)

    def _take(self, matches: Callable[[str], bool]) -> list[asyncio.Task[Any]]:
        if not self._failed:
            return []
        taken = [task for task, scope in self._failed if matches(scope)]
        self._failed = [each for each in self._failed if not matches(each[1])]
        return [task for task in taken if task._log_traceback]  # noqa: SLF001

    @override
    def get_debug(self) -> bool:
        return False

    @override
    def is_running(self) -> bool:
        return True

    @override
    def is_closed(self) -> bool:
        return False

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Does nothing: the end of the run logs the tasks that failed and that nobody awaited."""


def _awaiting(coroutine: Any) -> Iterator[Any]:  # noqa: ANN401, as above
    """A coroutine, the one that it awaits, and so on."""
    while hasattr(coroutine, "close"):
        yield coroutine
        coroutine = getattr(coroutine, "cr_await", None)


_TIMER: Final = (
    "asyncio.sleep, timeouts and timers",
    "use step.sleep, the timeout of the entry, or for whichever is first a step.race with a branch "
    "that sleeps",
)
_REFUSED: Final = {
    "call_later": _TIMER,
    "call_at": _TIMER,
    "time": (
        "the clock of the event loop, as asyncio.timeout does",
        "use step.now; for a timeout use that of the entry, or a step.race with a branch that "
        "sleeps",
    ),
    "call_soon_threadsafe": ("what comes from a thread", "use step.do, and the thread inside it"),
    "run_in_executor": ("a thread", "use step.do, and the thread inside it"),
}


def _refusing(method: str) -> Callable[..., NoReturn]:
    what, instead = _REFUSED.get(
        method, (f"{method} of the event loop", "do what needs it inside step.do")
    )

    def refuse(*_: object, **__: object) -> NoReturn:
        raise NonDeterministicError(
            f"a workflow's own code may not use {what}, because a replay would differ; {instead}"
        )

    return refuse


# Sockets, processes, signals, name look-ups: all else that event loops have.
for _method in vars(asyncio.AbstractEventLoop):
    if not _method.startswith("_") and _method not in vars(WorkflowLoop):
        setattr(WorkflowLoop, _method, _refusing(_method))


class _InOrder:
    """What a set of tasks does for a group, in the order in which they were begun."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None

    def discard(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


def _in_order(
    enter: Callable[..., Awaitable[asyncio.TaskGroup]],
) -> Callable[..., Coroutine[Any, Any, asyncio.TaskGroup]]:
    """Enters a group so that it cancels its tasks in the order in which they were begun.

    It has them in a set, whose order is that of addresses in memory: a replay would differ.
    """

    @functools.wraps(enter)
    async def entered(group: Any) -> asyncio.TaskGroup:  # noqa: ANN401
        found = await enter(group)
        if isinstance(group._loop, WorkflowLoop):  # noqa: SLF001
            group._tasks = _InOrder()  # noqa: SLF001
        return found

    return entered


def _taking_back(
    leave: Callable[..., Awaitable[None]],
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Leaves a group so that its task counts as cancelled only if others have cancelled it.

    A group of which a task fails while it is left cancels its own task and swallows that. Before
    Python 3.13 it does not take it back: the loop around it would end as cancelled.
    """

    @functools.wraps(leave)
    async def left(group: Any, *error: object) -> None:  # noqa: ANN401
        before = group._parent_cancel_requested  # noqa: SLF001
        try:
            await leave(group, *error)
        finally:
            cancelled = group._parent_cancel_requested and not before  # noqa: SLF001
            if cancelled and isinstance(group._loop, WorkflowLoop):  # noqa: SLF001
                group._parent_task.uncancel()  # noqa: SLF001

    return left


_enter = asyncio.TaskGroup.__aenter__
asyncio.TaskGroup.__aenter__ = _in_order(_enter)  # type: ignore[method-assign,assignment]
if sys.version_info < (3, 13):
    _leave = asyncio.TaskGroup.__aexit__
    asyncio.TaskGroup.__aexit__ = _taking_back(_leave)  # type: ignore[method-assign]
