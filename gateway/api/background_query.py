"""A query that takes long, in the background: callers get its latest result at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from headwater.schemas.errors import StoreUnavailable

log = logging.getLogger(__name__)

#: A query takes at most this share of the time, so that a slow Postgres is not busy with it.
_SHARE: Final = 1 / 20
#: Seconds after a failure.
_AGAIN_S: Final = 30.0
#: Seconds that a caller waits for a result that is not there yet.
_WITHIN_S: Final = 4.0

T = TypeVar("T")


class BackgroundQuery(Generic[T]):
    """A query of Postgres, repeated in the background while its result is requested.

    Args:
        query: The query.
        first: The result until there is one.
        what: What is counted, for the log: "connections".
        current_s: Seconds for which a result is current.
    """

    def __init__(
        self, query: Callable[[], Awaitable[T]], first: T, *, what: str, current_s: float
    ) -> None:
        self._query = query
        self._latest = first
        self._what = what
        self._current_s = current_s
        self._running: asyncio.Task[None] | None = None
        self._due_s = 0.0
        self._failed = False

    async def latest(self, within_s: float = _WITHIN_S) -> T:
        """Return the latest result; wait a moment for a new one if it is due."""
        loop = asyncio.get_running_loop()
        if self._running is None or (self._running.done() and loop.time() >= self._due_s):
            self._running = loop.create_task(self._renew(), name=f"count {self._what}")
        if not self._running.done():
            await asyncio.wait([self._running], timeout=within_s)
        return self._latest

    async def stop(self) -> None:
        """Stop the query."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        began_s, pause_s = loop.time(), _AGAIN_S
        try:
            self._latest = await self._query()
            pause_s = max(self._current_s, (loop.time() - began_s) / _SHARE)
            self._failed = False
        except StoreUnavailable as error:
            if not self._failed:
                log.warning("%s are not counted, the last numbers stay: %s", self._what, error)
            self._failed = True
        finally:
            self._due_s = loop.time() + pause_s
