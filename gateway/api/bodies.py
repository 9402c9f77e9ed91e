"""Read request bodies of unauthenticated clients within limits."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from litestar.types import Receive

from headwater.gateway.api.budget import Budget, Hold, Refusal

#: Bytes and seconds for which a refused body is still read.
_DRAIN_BYTES: Final = 32 * 1024 * 1024
_DRAIN_S: Final = 2.0

#: The server also reports a body that it could not parse as a disconnect; then the client is still
#: there and gets this answer.
_INCOMPLETE: Final = Refusal("bad_request", "expected a complete body, found an incomplete one")


class BodyReader:
    """Reads bodies of at most `max_bytes` bytes, within a budget."""

    def __init__(self, *, max_bytes: int, budget: Budget) -> None:
        self.max_bytes = max_bytes
        self._budget = budget

    def within(self, max_bytes: int) -> "BodyReader":
        """Return a reader of smaller bodies, within the same budget."""
        return BodyReader(max_bytes=min(max_bytes, self.max_bytes), budget=self._budget)

    def hold(self, peer: str) -> Hold:
        """Register a request of an address; the caller releases the hold after the response."""
        return self._budget.hold(peer)

    def refusal_of(self, length: int | None) -> Refusal | None:
        """Return a refusal if the announced length is too large."""
        if length is not None and length > self.max_bytes:
            return self._too_large(length)
        return None

    async def read(self, receive: Receive, length: int | None, hold: Hold) -> bytes | Refusal:
        """Read a body.

        Args:
            receive: ASGI receive.
            length: Announced length in bytes; not trusted.
            hold: Grows by the bytes that are read.
        """
        pieces: list[bytes] = []
        refusal = await self.feed(receive, length, hold, pieces.append)
        return b"".join(pieces) if refusal is None else refusal

    async def feed(
        self, receive: Receive, length: int | None, hold: Hold, take: Callable[[bytes], None]
    ) -> Refusal | None:
        """Read a body in pieces.

        Args:
            receive: ASGI receive.
            length: Announced length in bytes; not trusted.
            hold: Grows by the bytes that are read.
            take: Called with each piece; its exceptions end the read.

        Returns:
            None if the body was read completely, else why it was not.
        """
        too_large = self.refusal_of(length)
        if too_large is not None:
            return too_large
        hold.begin()
        read = 0
        try:
            while hold.ended is None and not hold.complete:
                message: Any = await receive()
                if message["type"] != "http.request":
                    return _INCOMPLETE
                piece: bytes = message.get("body", b"")
                read += len(piece)
                # The server sets more_body even with the last byte, so the length decides.
                hold.complete = read == length or not message.get("more_body", False)
                if hold.grow(len(piece)) is None:
                    if hold.size > self.max_bytes:
                        return self._too_large(hold.size)
                    take(piece)
        except asyncio.CancelledError:
            if hold.refusal() is None:
                raise
        finally:
            hold.finish()
        return hold.ended

    async def drain(self, receive: Receive, hold: Hold) -> None:
        """Read and discard the rest of a refused body for a short time.

        A client that is still sending would not receive the response. Does nothing if the body was
        read completely, or if the budget ended the read.
        """
        if hold.complete or hold.ended is not None:
            return
        hold.begin()
        remaining = _DRAIN_BYTES
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    while remaining > 0 and hold.ended is None:
                        message: Any = await receive()
                        remaining -= len(message.get("body", b"")) or 1
                        if not message.get("more_body", False):
                            return
        except asyncio.CancelledError:
            if hold.refusal() is None:
                raise
        finally:
            hold.finish()

    def _too_large(self, size: int) -> Refusal:
        return Refusal(
            "body_too_large", f"expected at most {self.max_bytes} bytes, found {size} or more"
        )
