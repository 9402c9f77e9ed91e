"""Threads for callbacks that are not async, and processes that authors' code forks."""

import asyncio
import contextlib
import contextvars
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headwater.processors.runs.limits import THREADS_MAX
from headwater.streams.replay.host_port import ATTEMPT, CurrentAttempt

_state = {"forked": False}


def watch_forks(connection: socket.socket) -> None:
    """Close the pipe in every process that is forked from this one from now on.

    A forked process has a copy of the host: its pipe to the worker, and the event loop or the
    thread that called the author's code. It must not continue as a second host. It therefore closes
    the pipe at once, and exits when the callback that forked it returns (`end_if_forked`).
    """

    def close_pipe() -> None:
        _state["forked"] = True
        connection.close()

    os.register_at_fork(after_in_child=close_pipe)


def end_if_forked() -> None:
    """End the process if it was forked from a code host."""
    if _state["forked"]:
        os._exit(0)


# -- threads

log = logging.getLogger(__name__)


class Threads:
    """The threads of a process.

    A thread cannot be stopped from outside. A callback that is abandoned after its timeout keeps
    its thread until it returns. When such callbacks hold all threads, the process has to be
    replaced.

    Args:
        exhausted: Called when abandoned callbacks hold all threads.
        limit: Number of threads.
        count: Called with the number of threads held, whenever it changes.
    """

    def __init__(
        self,
        exhausted: Callable[[], None],
        limit: int = THREADS_MAX,
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix="step")
        self._limit = limit
        self._exhausted = exhausted
        self._abandoned: set[Future[Any]] = set()
        self._count = count

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        """Call a function in a thread, in the caller's context, and return its result."""
        run = contextvars.copy_context().run
        work = self._pool.submit(run, _outcome, function, arguments)
        try:
            value, error = await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not work.cancel():
                self._abandon(work)
            raise
        if error is not None:
            raise error
        return value

    def _abandon(self, work: Future[Any]) -> None:
        self._abandoned.add(work)
        loop = asyncio.get_running_loop()
        work.add_done_callback(lambda done: _report(loop, self._returned, done))
        self._count(len(self._abandoned))
        attempt = ATTEMPT.get()
        log.warning(
            "%s of %s threads are held by callbacks that were abandoned and have not returned; the "
            "latest is %s. Let it poll tx.cancelled(), or set a time limit on what it waits for",
            *(len(self._abandoned), self._limit),
            _named(attempt) if attempt else "not of a step",
        )
        if len(self._abandoned) >= self._limit:
            self._exhausted()

    def _returned(self, work: Future[Any]) -> None:
        self._abandoned.discard(work)
        self._count(len(self._abandoned))


def _report(
    loop: asyncio.AbstractEventLoop, returned: Callable[[Future[Any]], None], work: Future[Any]
) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed; the count no longer matters.
        loop.call_soon_threadsafe(returned, work)


def _named(attempt: CurrentAttempt) -> str:
    return f'attempt {attempt.number} of "{attempt.key}" of {attempt.instance or "an instance"}'


def _outcome(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, BaseException | None]:
    """Call a function and return its result or exception: a future cannot hold any exception."""
    try:
        return function(*arguments), None
    except BaseException as error:  # noqa: BLE001, whatever a step raises is the step's failure
        return None, error
    finally:
        end_if_forked()
