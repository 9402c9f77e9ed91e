"""A refresh of shared state that concurrent callers share."""

import asyncio
from collections.abc import Awaitable, Callable


class SharedRefresh:
    """Refreshes shared state; a caller only gets a refresh that began after its call.

    Args:
        refresh: Refreshes the state. An error is raised to the caller that ran it; the others
            run it again.
    """

    def __init__(self, refresh: Callable[[], Awaitable[None]]) -> None:
        self._refresh = refresh
        self._one_at_a_time = asyncio.Lock()
        #: Number of refreshes that began, and the number of the latest successful one.
        self._begun = 0
        self._done = 0

    async def __call__(self) -> None:
        """Return when a refresh is done that began after the call."""
        before = self._begun
        async with self._one_at_a_time:
            if self._done > before:
                return
            self._begun += 1
            number = self._begun
            await self._refresh()
            self._done = number
