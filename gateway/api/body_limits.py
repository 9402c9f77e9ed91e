"""Limits of bodies: requests share a budget, and responses end if a client stops reading."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Send
from typing_extensions import override

#: Seconds for a body. Together with the time for the headers (`server`), a request is read within
#: 30 s of its connection. 10 MiB in this time is 525 kB/s; senders are servers, not phones.
READ_S: Final = 20.0
#: Requests that are being read at once. Most are read within a millisecond, so only slow senders
#: add up to this number. A sixteenth of the connections, so that refusing is always possible.
READS_MAX: Final = 512
#: Bytes of bodies in memory, from the first piece to the response: six of the largest bodies, or
#: tens of thousands of usual ones. Without a limit, unauthenticated clients could fill the memory.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
#: Seconds between checks for reads that time out: cheaper than a timer per read.
_CHECK_EVERY_S: Final = 0.5


class Refusal(NamedTuple):
    """Reason for refusing a request: a code of `problems.CODES`, and a detail."""

    code: str
    detail: str
    reason: str | None = None


class _Share:
    """Total of the requests of one address."""

    __slots__ = ("holds", "reads", "size")

    def __init__(self) -> None:
        self.holds = 0
        self.reads = 0
        self.size = 0


class Budget:
    """Limits, and their current use.

    Before anything is verified, a client can occupy connections (headers without a body) and memory
    (bodies that grow). Three limits bound that: the number of requests that are being read, the
    bytes of their bodies, and the time for one body. When one of the first two is reached, the
    gateway refuses the oldest unfinished request of the address that uses most. So clients with few
    requests are not affected by those with many, and with a shared proxy fast senders win over slow
    ones.
    """

    def __init__(
        self,
        *,
        reads_max: int = READS_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
        read_s: float = READ_S,
    ) -> None:
        self.held_bytes = 0
        self._reads_max = reads_max
        self._held_bytes_max = held_bytes_max
        self._read_s = read_s
        self._check_every_s = min(_CHECK_EVERY_S, read_s)
        self._shares: dict[str, _Share] = {}
        #: Requests that are being read, oldest first, with the time at which the read began.
        self._reading: dict[Hold, float] = {}
        self._checking = False

    def hold(self, peer: str) -> "Hold":
        """Register a request of an address; the caller releases the hold after the response."""
        share = self._shares.get(peer)
        if share is None:
            share = self._shares[peer] = _Share()
        share.holds += 1
        return Hold(self, peer, share)

    @property
    def reads(self) -> int:
        """Number of requests that are being read."""
        return len(self._reading)

    def began(self, hold: "Hold", loop: asyncio.AbstractEventLoop) -> None:
        """Register a request that is being read; end another one if there are too many."""
        self._reading[hold] = loop.time()
        hold.share.reads += 1
        if len(self._reading) > self._reads_max:
            peer, share = max(self._shares.items(), key=lambda item: item[1].reads)
            self._end_oldest(peer, f"{share.reads} of {len(self._reading)} requests being read")
        if not self._checking:
            self._checking = True
            loop.call_later(self._check_every_s, self._end_timed_out)

    def finished(self, hold: "Hold") -> None:
        """Unregister a request that is no longer being read."""
        if self._reading.pop(hold, None) is not None:
            hold.share.reads -= 1

    def grew(self, hold: "Hold", count: int) -> None:
        """Add bytes that a request holds; end other requests if there are too many bytes."""
        hold.size += count
        hold.share.size += count
        self.held_bytes += count
        while self.held_bytes > self._held_bytes_max:
            peers = {other.peer: other.share.size for other in self._reading if other.size}
            if not peers:
                return  # All of it is verified and waits for Kafka, where other limits apply.
            peer = max(peers, key=peers.__getitem__)
            self._end_oldest(peer, f"{peers[peer]} of {self.held_bytes} bytes held", of_bytes=True)

    def released(self, hold: "Hold") -> None:
        """Release the bytes of a request that is no longer being read."""
        self._release_bytes(hold)
        hold.share.holds -= 1
        if not hold.share.holds:
            del self._shares[hold.peer]

    def _release_bytes(self, hold: "Hold") -> None:
        self.held_bytes -= hold.size
        hold.share.size -= hold.size
        hold.size = 0

    def _end_oldest(self, peer: str, holds: str, *, of_bytes: bool = False) -> None:
        oldest = next(
            hold for hold in self._reading if hold.peer == peer and (hold.size or not of_bytes)
        )
        if len(self._shares) > 1:
            refusal = Refusal(
                "too_many_requests", f"{peer} holds {holds}, more than any other address"
            )
        else:
            refusal = Refusal("overloaded", f"Requests arrive too slowly: {holds}.")
        self._end(oldest, refusal)

    def _end(self, hold: "Hold", refusal: Refusal) -> None:
        self.finished(hold)
        self._release_bytes(hold)
        hold.end(refusal)

    def _end_timed_out(self) -> None:
        """End reads that take too long; schedule the next check while there are others."""
        loop = asyncio.get_running_loop()
        too_old = loop.time() - self._read_s
        detail = f"The body did not arrive within {self._read_s:.0f} s."
        for hold in [hold for hold, began in self._reading.items() if began <= too_old]:
            self._end(hold, Refusal("body_timeout", detail))
        self._checking = bool(self._reading)
        if self._checking:
            loop.call_later(self._check_every_s, self._end_timed_out)


class Hold:
    """Share of a budget that one request holds."""

    __slots__ = ("_budget", "_reader", "complete", "ended", "peer", "share", "size")

    def __init__(self, budget: Budget, peer: str, share: _Share) -> None:
        self._budget = budget
        self._reader: asyncio.Task[object] | None = None
        self.peer = peer
        self.share = share
        self.size = 0
        #: Why the budget ended the read; None if it did not.
        self.ended: Refusal | None = None
        #: Whether the body was read completely.
        self.complete = False

    def begin(self) -> None:
        """Register the current task as the reader; the budget ends the read by cancelling it."""
        # Looked up once: a lookup costs a system call.
        loop = asyncio.get_running_loop()
        self._reader = asyncio.current_task(loop)
        self._budget.began(self, loop)

    def grow(self, count: int) -> Refusal | None:
        """Add bytes; return a refusal if the budget ended this request."""
        self._budget.grew(self, count)
        return self.ended

    def finish(self) -> None:
        """Note that the read has ended; the bytes are still held."""
        self._budget.finished(self)

    def end(self, refusal: Refusal) -> None:
        """End the read, from another task or within `begin` or `grow`."""
        self.ended = refusal
        assert self._reader is not None, "only what is being read is ended"  # noqa: S101
        if self._reader is not asyncio.current_task():
            self._reader.cancel()

    def refusal(self) -> Refusal | None:
        """Return why the budget cancelled the read; None if it did not."""
        if self.ended is not None and self._reader is not None:
            self._reader.uncancel()
        return self.ended

    def release(self) -> None:
        """Release everything, after the response."""
        self._budget.released(self)


# -- reading

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
            take: Called with every piece; its exceptions end the read.

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


# -- streaming

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
