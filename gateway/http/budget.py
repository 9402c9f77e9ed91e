"""What requests may hold while they are read, shared fairly among the addresses they come from.

Before anything is verified, a stranger can make the gateway wait (a head without a body) and
remember (a body that grows). Three limits end that: requests that are being read, bytes that are
held, and the time that one may take. When one of the first two is reached, the address that holds
most gives way: the oldest of its requests that are still being read is ended. So the many give way
to the few, and of one address, which may be a proxy with everybody behind it, the slow give way to
the quick.
"""

import asyncio
from typing import Final, NamedTuple

#: Seconds for a body. With those for the head (`server`), a request is read within 30 s of its
#: connection. 10 MiB in this time is 525 kB/s; senders are servers, not telephones.
READ_S: Final = 20.0
#: Requests that are being read at once. A usual one is read within a millisecond, so this many wait
#: for slow senders. A sixteenth of the connections, so that refusing is always possible.
READS_MAX: Final = 512
#: Bytes of bodies that are held at once, from the first piece to the answer: six of the largest, or
#: tens of thousands of usual ones. Without a limit, strangers could fill the memory.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
#: Seconds between two looks for reads that take too long: less work than a timer for each.
_LOOK_EVERY_S: Final = 0.5


class Refusal(NamedTuple):
    """Why a request is not taken: a code of `problems.CODES`, and what to say about it."""

    code: str
    detail: str
    reason: str | None = None


class _Share:
    """What the requests of one address hold together."""

    __slots__ = ("holds", "reads", "size")

    def __init__(self) -> None:
        self.holds = 0
        self.reads = 0
        self.size = 0


class Budget:
    """The limits, and what is held of them."""

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
        self._look_every_s = min(_LOOK_EVERY_S, read_s)
        self._shares: dict[str, _Share] = {}
        #: Those that are being read, the oldest first, and since when.
        self._reading: dict[Hold, float] = {}
        self._looking = False

    def hold(self, peer: str) -> "Hold":
        """The part of one request of an address; the caller releases it after the answer."""
        share = self._shares.get(peer)
        if share is None:
            share = self._shares[peer] = _Share()
        share.holds += 1
        return Hold(self, peer, share)

    @property
    def reads(self) -> int:
        """Requests that are being read."""
        return len(self._reading)

    def began(self, hold: "Hold", loop: asyncio.AbstractEventLoop) -> None:
        """Takes in a request that is being read, and makes room for it."""
        self._reading[hold] = loop.time()
        hold.share.reads += 1
        if len(self._reading) > self._reads_max:
            peer, share = max(self._shares.items(), key=lambda item: item[1].reads)
            self._end_oldest(peer, f"{share.reads} of {len(self._reading)} requests being read")
        if not self._looking:
            self._looking = True
            loop.call_later(self._look_every_s, self._look)

    def finished(self, hold: "Hold") -> None:
        """Forgets a request that is no longer being read."""
        if self._reading.pop(hold, None) is not None:
            hold.share.reads -= 1

    def grew(self, hold: "Hold", count: int) -> None:
        """Takes in bytes that a request holds, and makes room for them."""
        hold.size += count
        hold.share.size += count
        self.held_bytes += count
        while self.held_bytes > self._held_bytes_max:
            peers = {each.peer: each.share.size for each in self._reading if each.size}
            if not peers:
                return  # All of it is verified and waits for Kafka, which has limits of its own.
            peer = max(peers, key=peers.__getitem__)
            self._end_oldest(peer, f"{peers[peer]} of {self.held_bytes} bytes held", of_bytes=True)

    def released(self, hold: "Hold") -> None:
        """Takes back all that a request holds, which is no longer being read."""
        self._give_back(hold)
        hold.share.holds -= 1
        if not hold.share.holds:
            del self._shares[hold.peer]

    def _give_back(self, hold: "Hold") -> None:
        self.held_bytes -= hold.size
        hold.share.size -= hold.size
        hold.size = 0

    def _end_oldest(self, peer: str, holds: str, *, of_bytes: bool = False) -> None:
        oldest = next(
            each for each in self._reading if each.peer == peer and (each.size or not of_bytes)
        )
        if len(self._shares) > 1:
            refusal = Refusal("too_many_requests", f"{peer} holds {holds}, more than anybody else")
        else:
            refusal = Refusal("overloaded", f"expected quicker senders, found {holds}")
        self._end(oldest, refusal)

    def _end(self, hold: "Hold", refusal: Refusal) -> None:
        self.finished(hold)
        self._give_back(hold)
        hold.end(refusal)

    def _look(self) -> None:
        """Ends reads that take too long; looks again while there are others."""
        loop = asyncio.get_running_loop()
        too_old = loop.time() - self._read_s
        detail = f"expected the whole body within {self._read_s:.0f} s"
        for hold in [each for each, began in self._reading.items() if began <= too_old]:
            self._end(hold, Refusal("body_timeout", detail))
        self._looking = bool(self._reading)
        if self._looking:
            loop.call_later(self._look_every_s, self._look)


class Hold:
    """What one request holds of a budget."""

    __slots__ = ("_budget", "_reader", "ended", "peer", "share", "size", "whole")

    def __init__(self, budget: Budget, peer: str, share: _Share) -> None:
        self._budget = budget
        self._reader: asyncio.Task[object] | None = None
        self.peer = peer
        self.share = share
        self.size = 0
        #: Why the budget ended the reading; None if it did not.
        self.ended: Refusal | None = None
        #: Whether the body was read to its end.
        self.whole = False

    def begin(self) -> None:
        """The task at hand begins to read: it is cancelled if the reading is to end."""
        # Asked once, for each time costs a system call.
        loop = asyncio.get_running_loop()
        self._reader = asyncio.current_task(loop)
        self._budget.began(self, loop)

    def grow(self, count: int) -> Refusal | None:
        """Holds more bytes; a refusal if it is this one that gives way."""
        self._budget.grew(self, count)
        return self.ended

    def finish(self) -> None:
        """The reading is over, and the bytes are still held."""
        self._budget.finished(self)

    def end(self, refusal: Refusal) -> None:
        """Ends the reading, from outside or from `begin` and `grow`."""
        self.ended = refusal
        assert self._reader is not None, "only what is being read is ended"  # noqa: S101
        if self._reader is not asyncio.current_task():
            self._reader.cancel()

    def refusal(self) -> Refusal | None:
        """Why the reading was cancelled; None if the budget did not do that."""
        if self.ended is not None and self._reader is not None:
            self._reader.uncancel()
        return self.ended

    def release(self) -> None:
        """Gives back everything, after the answer."""
        self._budget.released(self)
