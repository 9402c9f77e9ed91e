"""Threads for callbacks that are not async, so that one that blocks stops no other.

A thread cannot be ended from outside. A callback that is given up, after its timeout, keeps its
thread until it returns; when such callbacks hold all threads, the process is of no more use.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headwater.processors.runs.limits import THREADS_MAX
from headwater.streams.authoring.attempt import ATTEMPT, CurrentAttempt
from headwater.streams.code_host.forks import end_if_forked

log = logging.getLogger(__name__)


class Threads:
    """The threads of a process.

    Shape:  `exhausted` is called when callbacks that were given up hold all of them, `count` with
            how many they hold, whenever that changes.
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
        self._given_up: set[Future[Any]] = set()
        self._count = count

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
        self._given_up.add(work)
        loop = asyncio.get_running_loop()
        work.add_done_callback(lambda done: _back(loop, self._returned, done))
        self._count(len(self._given_up))
        attempt = ATTEMPT.get()
        log.warning(
            "%s of %s threads are held by callbacks that were given up and have not returned; the "
            "latest is %s. Have it ask tx.cancelled(), or give what it waits for a time limit",
            *(len(self._given_up), self._limit),
            _named(attempt) if attempt else "of no step",
        )
        if len(self._given_up) >= self._limit:
            self._exhausted()

    def _returned(self, work: Future[Any]) -> None:
        self._given_up.discard(work)
        self._count(len(self._given_up))


def _back(
    loop: asyncio.AbstractEventLoop, returned: Callable[[Future[Any]], None], work: Future[Any]
) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is over, and with it the count.
        loop.call_soon_threadsafe(returned, work)


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
    finally:
        end_if_forked()
