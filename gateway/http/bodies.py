"""Reading request bodies within limits, before anything is known about who sends them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from litestar.types import Receive

from headwater.gateway.http.budget import Budget, Hold, Refusal

#: How much more is read of a body that is refused, and for how many seconds.
_DRAIN_BYTES: Final = 32 * 1024 * 1024
_DRAIN_S: Final = 2.0

#: What a server reports as a sender that went away may also be a body that it could not read, and
#: then there is somebody to tell.
_BROKEN_OFF: Final = Refusal("bad_request", "expected a whole body, found one that broke off")


class BodyReader:
    """Reads bodies of at most so many bytes, within a budget."""

    def __init__(self, *, max_bytes: int, budget: Budget) -> None:
        self.max_bytes = max_bytes
        self._budget = budget

    def within(self, max_bytes: int) -> "BodyReader":
        """Return a reader of smaller bodies, within the same budget."""
        return BodyReader(max_bytes=min(max_bytes, self.max_bytes), budget=self._budget)

    def hold(self, peer: str) -> Hold:
        """What a request of an address will hold; the caller releases it, after the answer."""
        return self._budget.hold(peer)

    def refusal_of(self, length: int | None) -> Refusal | None:
        """Refuses an announced length that is too large already."""
        if length is not None and length > self.max_bytes:
            return self._too_large(length)
        return None

    async def read(self, receive: Receive, length: int | None, hold: Hold) -> bytes | Refusal:
        """Reads a body.

        Shape:  `length` is what the sender announced, which may be a lie; `hold` grows by what was
                read.
        """
        pieces: list[bytes] = []
        refusal = await self.feed(receive, length, hold, pieces.append)
        return b"".join(pieces) if refusal is None else refusal

    async def feed(
        self, receive: Receive, length: int | None, hold: Hold, take: Callable[[bytes], None]
    ) -> Refusal | None:
        """Reads a body piece by piece; None when it was read whole.

        Shape:  as `read`; `take` is given each piece, and ends the reading by what it raises.
        """
        too_large = self.refusal_of(length)
        if too_large is not None:
            return too_large
        hold.begin()
        read = 0
        try:
            while hold.ended is None and not hold.whole:
                message: Any = await receive()
                if message["type"] != "http.request":
                    return _BROKEN_OFF
                piece: bytes = message.get("body", b"")
                read += len(piece)
                # The server announces more even after the last byte; a body of its length is whole.
                hold.whole = read == length or not message.get("more_body", False)
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
        """Reads on for a while and keeps nothing: who is still sending would not hear the answer.

        Needless after a body's end, and if the budget ended the reading: then there is no time, or
        no room.
        """
        if hold.whole or hold.ended is not None:
            return
        hold.begin()
        left = _DRAIN_BYTES
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    while left > 0 and hold.ended is None:
                        message: Any = await receive()
                        left -= len(message.get("body", b"")) or 1
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
