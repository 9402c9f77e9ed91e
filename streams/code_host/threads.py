"""Threads for callbacks that are not async, so that one that blocks stops no other.

A thread cannot be ended from outside. A callback that is given up, after its timeout, keeps its
thread until it returns; when such callbacks hold all threads, the process is of no more use.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from headwater.streams.authoring.attempt import ATTEMPT, CurrentAttempt

log = logging.getLogger(__name__)

#: Callbacks at a time. They mostly wait for a network; more threads would only take turns at the
#: interpreter. Small enough for a database's usual limit of 100 connections.
THREADS_MAX: Final = 32


class Threads:
    """The threads of a process; `exhausted` is called when given-up callbacks hold all of them."""

    def __init__(self, exhausted: Callable[[], None], limit: int = THREADS_MAX) -> None:
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix="step")
        self._limit = limit
        self._exhausted = exhausted
        self._given_up: set[Future[Any]] = set()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        """Calls a function in a thread, with the caller's context; gives its result."""
        run = contextvars.copy_context().run
        work = self._pool.submit(run, _outcome, function, arguments)
        try:
            value, error = await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not work.cancel():
                self._give_up(work)
            raise
        if error is not None:
            raise error
        return value

    def _give_up(self, work: Future[Any]) -> None:
        self._given_up = {each for each in (*self._given_up, work) if not each.done()}
        attempt = ATTEMPT.get()
        log.warning(
            "%s of %s threads are held by callbacks that were given up and have not returned; the "
            "latest is %s. Have it ask tx.cancelled(), or give what it waits for a time limit",
            *(len(self._given_up), self._limit),
            _named(attempt) if attempt else "of no step",
        )
        if len(self._given_up) >= self._limit:
            self._exhausted()


def _named(attempt: CurrentAttempt) -> str:
    return f'attempt {attempt.number} of "{attempt.key}" of {attempt.instance or "an instance"}'


def _outcome(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, BaseException | None]:
    """What came of a call, as a value: not every exception can be set on a future."""
    try:
        return function(*arguments), None
    except BaseException as error:  # noqa: BLE001, whatever a step raises is the step's failure
        return None, error
