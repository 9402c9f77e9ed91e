"""Server-sent events: their format, and the streams that a gateway has open."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final

from headwater.gateway.api.body_limits import Streamed
from headwater.gateway.api.problems import Problem

MEDIA_TYPE: Final = "text/event-stream"
#: Seconds without a message after which a comment is sent, so that one comes every 15 s: many
#: proxies close a connection that is idle for 30 to 60 s.
HEARTBEAT_S: Final = 14.0
#: Streams at a time, and those of one user.
STREAMS_MAX: Final = 200
STREAMS_OF_USER_MAX: Final = 10

#: Milliseconds for the client to wait before it reconnects.
_BEGIN: Final = b"retry: 1000\n\n"
_LATER: Final = b"retry: 5000\n\n"
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
        self._of_user: Counter[str] = Counter()

    def close(self) -> None:
        """End all streams; clients reconnect, to another gateway or later."""
        self.closing.set()

    def require_capacity(self, user_id: str | None = None) -> None:
        """Refuse another stream when as many as allowed are open.

        Args:
            user_id: The user who opens it; None for a key of the system.

        Raises:
            Problem: Too many streams are open.
        """
        if problem := self._problem(user_id):
            raise Problem("overloaded", problem)

    def _problem(self, user_id: str | None) -> str:
        if self.count >= STREAMS_MAX:
            return f"expected at most {STREAMS_MAX} streams at a time, found as many"
        if user_id is not None and self._of_user[user_id] >= STREAMS_OF_USER_MAX:
            return f"expected at most {STREAMS_OF_USER_MAX} streams of a user, found as many"
        return ""

    def response(
        self,
        chunks: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        user_id: str | None = None,
    ) -> Streamed:
        """Return the response of a stream.

        Args:
            chunks: Encoded messages; empty ones are not sent.
            headers: More headers.
            user_id: The user who opens it; None for a key of the system.
        """
        unbuffered = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return Streamed(
            iterator=self._follow(chunks, user_id),
            media_type=MEDIA_TYPE,
            headers={**unbuffered, **(headers or {})},
        )

    async def _follow(
        self, chunks: AsyncGenerator[bytes, None], user_id: str | None
    ) -> AsyncGenerator[bytes, None]:
        if self._problem(user_id):
            # Others began since it was admitted; the client comes back.
            await chunks.aclose()
            yield _LATER
            return
        self.count += 1
        if user_id is not None:
            self._of_user[user_id] += 1
        try:
            yield _BEGIN
            async with aclosing(self._with_heartbeats(chunks)) as messages:
                async for message in messages:
                    yield message
        finally:
            self.count -= 1
            if user_id is not None:
                self._of_user -= Counter([user_id])

    async def _with_heartbeats(
        self, chunks: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """Yield chunks, and a comment whenever none came for a while, also while one is awaited."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Task[bytes | None] | None = None
        deadline = loop.time() + self.heartbeat_s
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(_next(chunks))
                await asyncio.wait((waiting,), timeout=max(0.0, deadline - loop.time()))
                chunk: bytes | None = _HEARTBEAT
                if waiting.done():
                    chunk, waiting = waiting.result(), None
                if chunk is None:
                    return
                if chunk:
                    yield chunk
                    deadline = loop.time() + self.heartbeat_s
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await chunks.aclose()

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


async def _next(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(chunks, None)
