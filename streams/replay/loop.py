"""An event loop that only runs the code of one workflow run.

Other event loops interleave code with sockets and timers, in an order that a replay cannot repeat,
and do not report when nothing is left to do. This loop has a queue of callbacks and runs until it
is empty: the order depends only on the code and on the results delivered to it. Operations that
need a clock, a thread or a socket raise an error that names the alternative.
"""

import asyncio
import contextlib
import contextvars
import functools
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from threading import get_ident
from typing import Any, Final, NoReturn

from typing_extensions import override

from headwater.processors.code.errors import NonDeterministicError

#: Workflow code does little between entries; this many callbacks mean that it spins.
TURNS_MAX: Final = 1_000_000
#: How often a coroutine is closed that awaits something again.
CLOSINGS_MAX: Final = 100
#: Iteration of a task that has outlived it. No entry's key begins like this.
_PAST: Final = "/"


class WorkflowLoop(asyncio.AbstractEventLoop):
    """The event loop of one run."""

    __slots__ = ("_failed", "_ready", "_tasks", "_thread", "warn")

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        #: Logs a warning about a line of the author's code, once.
        self.warn = warn
        #: The thread that executes it; 0 if none does.
        self._thread = 0
        self._ready: deque[asyncio.Handle] = deque()
        #: Tasks that have not ended, with the loop iteration in which they were created.
        self._tasks: dict[asyncio.Task[Any], str] = {}
        #: Tasks that have failed, in order, with the same.
        self._failed: list[tuple[asyncio.Task[Any], str]] = []

    def run_ready(self) -> None:
        """Run until no callback is ready.

        Raises:
            NonDeterministicError: The code never comes to rest.
        """
        ready = self._ready
        if not ready:
            return
        outside, current = self._enter_loop()
        try:
            turns = 0
            while ready:
                handle = ready.popleft()
                if not handle.cancelled():
                    try:  # noqa: SIM105, a context manager costs more than the call
                        handle._run()  # noqa: SLF001
                    except (SystemExit, KeyboardInterrupt):
                        # Code that awaits the task that raised it receives it too.
                        pass
                turns += 1
                if turns > TURNS_MAX:
                    ready.clear()
                    raise NonDeterministicError(
                        "the workflow spins: a million turns without waiting for an entry"
                    )
        finally:
            self._leave_loop(outside, current)

    def _enter_loop(self) -> tuple[asyncio.AbstractEventLoop | None, asyncio.Task[Any] | None]:
        """Make this the running loop. Return the previous loop and the task it was executing.

        That task is left meanwhile: since Python 3.14 a thread has one current task for all loops,
        so a task of this loop could not be entered within it.
        """
        outside = asyncio._get_running_loop()  # noqa: SLF001, what every event loop does
        current = None if outside is None else asyncio.current_task(outside)
        if outside is not None and current is not None:
            asyncio._leave_task(outside, current)  # noqa: SLF001
        asyncio._set_running_loop(self)  # noqa: SLF001
        if isinstance(outside, WorkflowLoop):
            outside._thread = 0  # noqa: SLF001 (of this class)
        self._thread = get_ident()
        return outside, current

    def _leave_loop(
        self, outside: asyncio.AbstractEventLoop | None, current: asyncio.Task[Any] | None
    ) -> None:
        """Make an outer loop the running one again, in the task that it was executing."""
        self._thread = 0
        asyncio._set_running_loop(outside)  # noqa: SLF001
        if isinstance(outside, WorkflowLoop):
            outside._thread = get_ident()  # noqa: SLF001 (of this class)
        if outside is not None and current is not None:
            asyncio._enter_task(outside, current)  # noqa: SLF001

    def is_executing(self) -> bool:
        """Whether the caller is executed by this loop.

        Before Python 3.12, `asyncio.get_running_loop` makes a system call.
        """
        return self._thread == get_ident()

    def close_tasks(self) -> None:
        """Close all tasks. Nothing runs on this loop afterwards."""
        # A `finally` block may create tasks.
        while self._tasks:
            for task in tuple(self._tasks):
                self.close_task(task)
        self._ready.clear()
        self._failed.clear()

    def close_task(self, task: asyncio.Task[Any]) -> None:
        """Close a task without letting its code continue."""
        self._tasks.pop(task, None)
        # Its end does not count as a failure.
        task.remove_done_callback(self._done)
        self.close_code(task.get_coro())
        # Breaks the reference cycle between the task and the future that it awaits, which would
        # otherwise stay until a full garbage collection, once in some hundred thousand runs.
        task.cancel()

    def close_code(self, coroutine: Any) -> None:  # noqa: ANN401, whatever a task may be made of
        """Close a coroutine within this loop, so that workflow rules apply to its `finally` blocks.

        These may do anything, and Python runs them wherever a coroutine is closed. On the host's
        loop they could create tasks there, block it, and take its task for their own.
        """
        # A coroutine that awaits something while it is closed still exists and is closed again;
        # otherwise garbage collection would continue it.
        pending = [coroutine]
        outside, current = self._enter_loop()
        try:
            for _ in range(CLOSINGS_MAX):
                if not pending:
                    break
                chain = list(_awaiting(pending.pop()))
                with contextlib.suppress(BaseException):
                    chain[0].close()
                pending += [
                    awaited for awaited in chain if getattr(awaited, "cr_frame", None) is not None
                ]
        finally:
            self._leave_loop(outside, current)

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
        # An evicted run leaves its tasks pending.
        task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001
        current = asyncio.current_task(self)
        self._tasks[task] = "" if current is None else self._tasks.get(current, "")
        task.add_done_callback(self._done)
        return task

    def enter_iteration(self, task: asyncio.Task[Any], scope: str) -> str:
        """Record that a task executes the body of a step.loop from now on.

        Args:
            task: The task. Tasks that it creates belong to the same iteration.
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
        # Calling `exception()` would mark it as retrieved.
        if task._exception is not None:  # noqa: SLF001
            self._failed.append((task, scope))

    def leave_iterations(self, key: str) -> list[asyncio.Task[Any]]:
        """Record that a replay begins after all iterations of a loop so far.

        Args:
            key: Key of the loop.

        Returns:
            The failed tasks of these iterations with exceptions that no code has retrieved. Tasks
            that still run become `past`: see `take_failed`.
        """
        prefix = f"{key}/"
        for task, scope in self._tasks.items():
            if scope.startswith(prefix):
                self._tasks[task] = _PAST
        return self._take_matching(lambda scope: scope.startswith(prefix))

    def take_failed(self, *, past: bool) -> list[asyncio.Task[Any]]:
        """Remove and return failed tasks with exceptions that no code has retrieved.

        Args:
            past: Only tasks of iterations that no replay reaches again; otherwise all tasks.
        """
        return self._take_matching(lambda scope: not past or scope == _PAST)

    def _take_matching(self, matches: Callable[[str], bool]) -> list[asyncio.Task[Any]]:
        if not self._failed:
            return []
        taken = [task for task, scope in self._failed if matches(scope)]
        self._failed = [failed for failed in self._failed if not matches(failed[1])]
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
        """Do nothing: unretrieved failures are logged at the end of the run."""


def _awaiting(coroutine: Any) -> Iterator[Any]:  # noqa: ANN401, as above
    """Yield a coroutine, the one that it awaits, and so on."""
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
    "call_soon_threadsafe": ("callbacks from a thread", "use step.do, and the thread inside it"),
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


# Sockets, processes, signals, name look-ups: all other methods of event loops.
for _method in vars(asyncio.AbstractEventLoop):
    if not _method.startswith("_") and _method not in vars(WorkflowLoop):
        setattr(WorkflowLoop, _method, _refusing(_method))


class _OrderedTasks:
    """Replaces the set of tasks in a TaskGroup and keeps the order in which they were created."""

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


def _with_ordered_tasks(
    enter: Callable[..., Awaitable[asyncio.TaskGroup]],
) -> Callable[..., Coroutine[Any, Any, asyncio.TaskGroup]]:
    """Wrap `TaskGroup.__aenter__` so that the group cancels its tasks in order of creation.

    By default it has a set, ordered by memory addresses: a replay would differ.
    """

    @functools.wraps(enter)
    async def entered(group: Any) -> asyncio.TaskGroup:  # noqa: ANN401
        result = await enter(group)
        if isinstance(group._loop, WorkflowLoop):  # noqa: SLF001
            group._tasks = _OrderedTasks()  # noqa: SLF001
        return result

    return entered


def _uncancelling(
    leave: Callable[..., Awaitable[None]],
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Wrap `TaskGroup.__aexit__` so that its task counts as cancelled only if others cancelled it.

    A group of which a task fails while it is exited cancels its own task and swallows that. Before
    Python 3.13 it does not undo the cancellation, so a surrounding loop would end as cancelled.
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
asyncio.TaskGroup.__aenter__ = _with_ordered_tasks(_enter)  # type: ignore[method-assign,assignment]
if sys.version_info < (3, 13):
    _leave = asyncio.TaskGroup.__aexit__
    asyncio.TaskGroup.__aexit__ = _uncancelling(_leave)  # type: ignore[method-assign]
