"""Answers that are sent piece by piece, for as long as their reader takes them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Send
from typing_extensions import override

#: Seconds for a reader to take what it is sent, before it is left behind. It can come back.
_SEND_WITHIN_S: Final = 30.0


class Streamed(ASGIStreamingResponse):
    """A stream whose reader is left behind if it takes nothing for too long."""

    @override
    async def _stream(self, send: Send) -> None:
        async def within(event: Any) -> None:  # noqa: ANN401 (what ASGI says)
            async with asyncio.timeout(_SEND_WITHIN_S):
                await send(event)

        try:
            await super()._stream(within)
        except TimeoutError:
            return
        finally:
            # Not left to the garbage collector, when the reader has gone during a message.
            if isinstance(self.iterator, AsyncGenerator):
                await self.iterator.aclose()
