"""Retries with pauses while Kafka, or another dependency, is unavailable.

There is no limit of attempts, because what waits here is needed for as long as the process lives. A
warning states the reason once, and then once a minute for as long as the outage lasts; another line
reports its end. A failed connection is one fact, however many parts of a process wait for it: the
first of them logs it.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from aiokafka.errors import KafkaConnectionError

from headwater.schemas.errors import BrokerUnavailable, NotYetReadable
from headwater.streams.clock import monotonic as seconds

#: A broker that restarts is unavailable for some seconds: its return is noticed soon after.
_FIRST_S: Final = 0.5
_LONGEST_S: Final = 2.0
_WARN_EVERY_S: Final = 60.0
#: Failed connections that are remembered: a few, unless texts of errors have numbers.
_CONNECTIONS_MAX: Final = 1_000
#: When a failed connection was last logged, by any part of this process, by clock and peer.
_logged: dict[tuple[Callable[[], float], str], float] = {}

T = TypeVar("T")


class Retrying:
    """Pauses between attempts, and the log lines of an outage.

    Args:
        log: Where to log.
        what: Beginning of the warning: "replies have to wait".
        first_s: Seconds of the first pause; later pauses double.
        longest_s: Longest pause in seconds.
        sleep: Replaces `asyncio.sleep` in tests.
        monotonic: Replaces the monotonic clock in tests.
    """

    def __init__(
        self,
        log: logging.Logger,
        what: str,
        *,
        first_s: float = _FIRST_S,
        longest_s: float = _LONGEST_S,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        monotonic: Callable[[], float] = seconds,
    ) -> None:
        self._log = log
        self._what = what
        self._first_s = first_s
        self._longest_s = longest_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._pause_s = first_s
        self._failures = 0
        self._since: float | None = None
        self._warned: float | None = None
        #: The failed connection that it has logged.
        self._connection: tuple[Callable[[], float], str] | None = None

    async def until_done(
        self,
        action: Callable[[], Awaitable[T]],
        errors: tuple[type[Exception], ...] = (BrokerUnavailable, NotYetReadable),
    ) -> T:
        """Call an action until it does not fail with one of these errors; return its result.

        Any other exception of the action is raised.
        """
        while True:
            try:
                result = await action()
            except errors as error:
                await self.failed(error)
            else:
                self.succeeded()
                return result

    async def failed(self, error: Exception | str, *, quiet: int = 0) -> None:
        """Record a failed attempt; return when it is time for the next one.

        Args:
            error: The reason.
            quiet: Number of failures in a row that are not logged, because they are usual while
                other processes start.
        """
        now = self._monotonic()
        self._failures += 1
        if self._since is None:
            self._since = now
        warned = self._warned is not None and now - self._warned < _WARN_EVERY_S
        if self._failures > quiet and not warned:
            self._warn(now, error)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._longest_s)
        await self._sleep(pause_s)

    def _warn(self, now: float, error: Exception | str) -> None:
        level = logging.DEBUG if self._is_logged(now, error) else logging.WARNING
        if level == logging.WARNING:
            self._warned = now
        reason = error if isinstance(error, str) else _text(error)
        self._log.log(level, "%s: %s; trying again", self._what, reason)

    def _is_logged(self, now: float, error: Exception | str) -> bool:
        """Return whether another part of the process has logged this failed connection."""
        failed = None if isinstance(error, str) else _failed_connection(error)
        if failed is None:
            return False
        connection = self._monotonic, failed
        if now - _logged.get(connection, -math.inf) < _WARN_EVERY_S:
            return True
        if len(_logged) >= _CONNECTIONS_MAX:
            _logged.clear()
        _logged[connection] = now
        self._connection = connection
        return False

    def succeeded(self) -> None:
        """Record a successful attempt, which ends an outage if there was one."""
        if self._since is not None:
            if self._warned is not None:
                lasted_s = self._monotonic() - self._since
                self._log.info("%s: over after %.1f s", self._what, lasted_s)
                if self._connection is not None:
                    _logged.pop(self._connection, None)
            self._since = self._warned = None
            self._failures, self._pause_s = 0, self._first_s


def _failed_connection(error: BaseException) -> str | None:
    """Return what a failed connection, which caused an error, was to; None without one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KafkaConnectionError):
            return "Kafka"  # A process has one cluster, and its errors have many texts.
        if isinstance(cause, OSError):
            return _text(cause)
        cause = cause.__cause__
    return None


def _text(error: BaseException) -> str:
    # An error of aiokafka's may have no text of its own.
    return str(error) or repr(error)
