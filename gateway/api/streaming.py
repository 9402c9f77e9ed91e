"""Streaming responses with a timeout for clients that stop reading."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Send
from typing_extensions import override

#: Seconds for a client to read a piece before the response ends. The client can reconnect.
_SEND_WITHIN_S: Final = 30.0


class Streamed(ASGIStreamingResponse):
    """A streaming response that ends when its client reads nothing for too long."""

    @override
    async def _stream(self, send: Send) -> None:
        async def send_in_time(event: Any) -> None:  # noqa: ANN401 (a message of ASGI)
            async with asyncio.timeout(_SEND_WITHIN_S):
                await send(event)

        try:
            await super()._stream(send_in_time)
        except TimeoutError:
            return
        finally:
            # Closed here instead of by the garbage collector if the client disconnected.
            if isinstance(self.iterator, AsyncGenerator):
                await self.iterator.aclose()
