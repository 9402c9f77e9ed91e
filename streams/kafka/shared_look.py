"""A look at something that changes, shared by all who asked before it began."""

import asyncio
from collections.abc import Awaitable, Callable


class SharedLook:
    """Looks for whoever asks: never with what was found before they asked.

    Shape:  `look` fails for the one who asked for it; the others look again.
    """

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        self._look = look
        self._one_at_a_time = asyncio.Lock()
        #: How many looks have begun, and which of them was the latest that did not fail.
        self._begun = 0
        self._done = 0

    async def __call__(self) -> None:
        """Returns when a look is done that began after the call."""
        before = self._begun
        async with self._one_at_a_time:
            if self._done > before:
                return
            self._begun += 1
            number = self._begun
            await self._look()
            self._done = number
