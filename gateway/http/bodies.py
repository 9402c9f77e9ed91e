"""Reading request bodies within limits, before anything is known about who sends them."""

import asyncio
from typing import Any, Final, NamedTuple

from litestar.types import Receive

#: Seconds for a body that comes in several pieces. 10 MiB in this time is 350 kB/s; senders are
#: servers, not telephones.
BODY_TIMEOUT_S: Final = 30.0

#: Bytes of bodies that may be held at once, from the first piece to the answer: six of the largest,
#: or tens of thousands of usual ones. Without a limit, strangers could fill the memory.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024


class Refusal(NamedTuple):
    """Why a request is not taken: a code of `problems.CODES`, and what to say about it."""

    code: str
    detail: str
    reason: str | None = None


#: What a server reports as a sender that went away may also be a body that it could not read, and
#: then there is somebody to tell.
_BROKEN_OFF: Final = Refusal("bad_request", "expected a whole body, found one that broke off")


class BodyReader:
    """Reads bodies and counts the bytes that are held."""

    def __init__(self, *, max_bytes: int, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._held_bytes_max = held_bytes_max

    async def read(self, receive: Receive, length: int | None, hold: "Hold") -> bytes | Refusal:
        """Reads a body.

        Shape:  `length` is what the sender announced, which may be a lie; `hold` grows by what was
                read and is released by the caller, after the answer.
        """
        if length is not None and length > self._max_bytes:
            return self._too_large(length)
        message: Any = await receive()
        if message["type"] != "http.request":
            return _BROKEN_OFF
        body: bytes = message.get("body", b"")
        refusal = hold.grow(len(body))
        if refusal is not None:
            return refusal
        # The server announces more even after the last byte; a body that has its length is whole.
        if len(body) == length or not message.get("more_body", False):
            return body
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await self._read_rest(receive, bytearray(body), hold)
        except TimeoutError:
            return Refusal("body_timeout", f"expected the whole body within {BODY_TIMEOUT_S:.0f} s")

    async def _read_rest(self, receive: Receive, body: bytearray, hold: "Hold") -> bytes | Refusal:
        while True:
            message: Any = await receive()
            if message["type"] != "http.request":
                return _BROKEN_OFF
            piece = message.get("body", b"")
            refusal = hold.grow(len(piece))
            if refusal is not None:
                return refusal
            body += piece
            if not message.get("more_body", False):
                return bytes(body)

    def check(self, size: int) -> Refusal | None:
        """Tells whether a request that has brought so many bytes may bring them."""
        if size > self._max_bytes:
            return self._too_large(size)
        if self.held_bytes > self._held_bytes_max:
            return Refusal("overloaded", "Too many bodies are being received; try again shortly.")
        return None

    def _too_large(self, size: int) -> Refusal:
        return Refusal(
            "body_too_large", f"expected at most {self._max_bytes} bytes, found {size} or more"
        )


class Hold:
    """The bytes that one request holds of a reader's budget."""

    __slots__ = ("_reader", "size")

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader
        self.size = 0

    def grow(self, count: int) -> Refusal | None:
        """Holds more bytes; a refusal if that is too many."""
        self.size += count
        self._reader.held_bytes += count
        return self._reader.check(self.size)

    def release(self) -> None:
        """Gives back everything, after the answer."""
        self._reader.held_bytes -= self.size
        self.size = 0
