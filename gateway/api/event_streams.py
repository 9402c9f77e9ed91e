"""Server-sent events: their format, and the streams that a gateway has open."""

import asyncio
import re
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final

from headwater.gateway.api.body_limits import Streamed
from headwater.gateway.api.problems import Problem

MEDIA_TYPE: Final = "text/event-stream"
#: Seconds without a message after which a comment is sent, so that one comes every 15 s: many
#: proxies close a connection that is idle for 30 to 60 s.
HEARTBEAT_S: Final = 14.0
#: Streams at a time.
STREAMS_MAX: Final = 200

#: Milliseconds for the client to wait before it reconnects.
_BEGIN: Final = b"retry: 1000\n\n"
_HEARTBEAT: Final = b": still here\n\n"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


def encode_message(event: str, data: bytes, event_id: str | int | None) -> bytes:
    """Encode a message; without an id the client keeps the previous one.

    Args:
        event: Its name.
        data: Its data; a workflow author's JSON may be on several lines.
        event_id: Its id.
    """
    lines = [b"event: " + event.encode()]
    if event_id is not None:
        lines.append(f"id: {event_id}".encode())
    lines += [b"data: " + line for line in _LINE_END.split(data)]
    return b"\n".join(lines) + b"\n\n"


class EventStreams:
    """The open streams of a gateway.

    Attributes:
        count: Their number.
        closing: Set when all streams have to end.
        heartbeat_s: Seconds without a message after which a comment is sent.
    """

    def __init__(self, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.count = 0
        self.closing = asyncio.Event()
        self.heartbeat_s = heartbeat_s

    def close(self) -> None:
        """End all streams; clients reconnect, to another gateway or later."""
        self.closing.set()

    def require_capacity(self) -> None:
        """Refuse another stream when as many as allowed are open.

        Raises:
            Problem: Too many streams are open.
        """
        if self.count >= STREAMS_MAX:
            raise Problem(
                "overloaded", f"expected at most {STREAMS_MAX} streams at a time, found as many"
            )

    def response(
        self, chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
    ) -> Streamed:
        """Return the response of a stream.

        Args:
            chunks: Encoded messages; empty whenever there were none for a moment.
            headers: More headers.
        """
        kept = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return Streamed(
            iterator=self._follow(chunks),
            media_type=MEDIA_TYPE,
            headers={**kept, **(headers or {})},
        )

    async def _follow(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        self.count += 1
        try:
            yield _BEGIN
            idle_since = loop.time()
            async with aclosing(chunks):
                async for chunk in chunks:
                    if not chunk and loop.time() - idle_since < self.heartbeat_s:
                        continue
                    yield chunk or _HEARTBEAT
                    idle_since = loop.time()
        finally:
            self.count -= 1

    async def sleep(self, seconds: float) -> None:
        """Sleep, but return early when all streams end."""
        try:
            async with asyncio.timeout(seconds):
                await self.closing.wait()
        except TimeoutError:
            pass

    async def until_closing(self, waiting: Coroutine[Any, Any, object]) -> None:
        """Run a wait until it ends or all streams end; raise its error."""
        task = asyncio.ensure_future(waiting)
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait((task, closing), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            task.cancel()
            closing.cancel()
            await asyncio.gather(task, closing, return_exceptions=True)
