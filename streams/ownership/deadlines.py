"""Until when a worker certainly owns its partitions, in memory shared with its code hosts.

The coordinator of a consumer group reassigns the partitions of a member when it has received
nothing from the member for a session timeout. So a partition is certainly owned for one session
after the last request was sent with which the coordinator confirmed the membership: a heartbeat, or
the join itself. An acknowledged append confirms nothing: the coordinator does not know of it, and
may reassign the partition a moment later. A process that was suspended sees that the deadline has
passed, and releases no effects before the membership is confirmed again. Its code hosts read the
same deadlines before they begin a step, because they may be suspended independently of it.

The pipeline's worker does not learn of its heartbeats, which Faust sends. Its own pulse confirms
the membership instead, so only the suspension of the process ends it (`renew`).
"""

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Final

from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.clock import monotonic_ns

#: How long a partition is owned after a confirmation: session timeout of the workers' groups.
SESSION_S: Final = 10.0
#: Maximum number of partitions; a Kafka cluster has fewer in all. 512 KiB, of which only the
#: pages in use take memory.
_SLOTS: Final = 65_536
_WORD: Final = 8
#: Word 0 has the number of partitions, word 1 + n the deadline of partition n.
_COUNT: Final = 0
_FIRST: Final = 1
_SIZE: Final = _WORD * (_FIRST + _SLOTS)
_NS: Final = 1_000_000_000


class SessionExpired(HeadwaterError):
    """The process was suspended for so long that its partitions may have another owner."""

    disposition = Disposition.HALT
    code = "lease_lost"


def anonymous_file(name: str, size: int) -> int:
    """Return a descriptor of a new file without a path, to be mapped by several processes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class SessionDeadlines:
    """The deadlines of the partitions of one worker.

    The event loop of the worker acquires, confirms and releases partitions. The thread of the
    group member confirms them with every heartbeat, and ends a generation when partitions are
    revoked: from then on no partition acquired before is owned, whatever the event loop is
    doing. Any thread or process may call `holds`.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        session_s: float = SESSION_S,
        clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.descriptor = descriptor
        self._session_ns = int(session_s * _NS)
        self._clock_ns = clock_ns
        self._map = mmap.mmap(descriptor, _SIZE)
        self._words = memoryview(self._map).cast("q")
        self._lock = threading.Lock()
        self._closing: weakref.finalize[[int], SessionDeadlines] | None = None
        self._owned: set[int] = set()
        self._member_until_ns = 0
        #: Number of assignments; a worker acquires partitions in the generation of one.
        self.generation = 0

    @classmethod
    def create(
        cls, *, session_s: float = SESSION_S, clock_ns: Callable[[], int] = monotonic_ns
    ) -> "SessionDeadlines":
        """Create deadlines; no partition is owned."""
        descriptor = anonymous_file("headwater-deadlines", _SIZE)
        deadlines = cls(descriptor, session_s=session_s, clock_ns=clock_ns)
        deadlines.set_partitions(1)
        deadlines._closing = weakref.finalize(deadlines, os.close, descriptor)
        return deadlines

    def close(self) -> None:
        """Unmap the memory; hosts keep their own mapping."""
        self._words.release()
        self._map.close()
        if self._closing is not None:
            self._closing()

    # -- queries

    def holds(self, partition: int) -> bool:
        """Return whether a partition is certainly owned now."""
        return self._clock_ns() < self._words[_FIRST + partition % _SLOTS]

    def may_begin(self, activation: int) -> bool:
        """Return whether the partition of an activation is certainly owned now."""
        return self.holds(activation % self._words[_COUNT])

    def is_member(self) -> bool:
        """Return whether the group has confirmed the membership within a session."""
        return self._clock_ns() < self._member_until_ns

    def check(self) -> None:
        """Check that the membership was confirmed within a session.

        Raises:
            SessionExpired: It was not.
        """
        self._check(self._clock_ns())

    def _check(self, now_ns: int) -> None:
        late_ns = now_ns - self._member_until_ns
        if late_ns >= 0:
            raise SessionExpired(
                f"expected a confirmation within {self._session_ns / _NS:.0f} s, found none for "
                f"{(late_ns + self._session_ns) / _NS:.1f} s; usual cause: the process or its "
                "machine was suspended"
            )

    # -- confirmations

    def set_partitions(self, count: int) -> None:
        """Set the total number of partitions, owned or not."""
        self._words[_COUNT] = count

    def acquire(self, partition: int, generation: int) -> bool:
        """Own a claimed partition for as long as the membership is confirmed.

        Args:
            partition: Its number.
            generation: The generation in which it was assigned.

        Returns:
            False if the generation has ended; the partition is not owned then.
        """
        with self._lock:
            if generation != self.generation:
                return False
            self._owned.add(partition)
            self._words[_FIRST + partition % _SLOTS] = self._member_until_ns
            return True

    def confirm(self, sent_s: float) -> None:
        """Record that the group confirmed this process as a member.

        Args:
            sent_s: When the confirmed request was sent, in seconds of `clock.monotonic`.
        """
        self._confirm(int(sent_s * _NS))

    def renew(self) -> None:
        """Confirm the membership by a pulse of this process.

        Raises:
            SessionExpired: The last pulse was too long ago.
        """
        now_ns = self._clock_ns()
        self._check(now_ns)
        # Not the clock again: a suspension since the check must not count as a pulse.
        self._confirm(now_ns)

    def _confirm(self, sent_ns: int) -> None:
        with self._lock:
            self._member_until_ns = max(self._member_until_ns, sent_ns + self._session_ns)
            for partition in self._owned:
                self._words[_FIRST + partition % _SLOTS] = self._member_until_ns

    def release(self, partition: int) -> None:
        """End the ownership of a partition."""
        with self._lock:
            self._owned.discard(partition)
            self._words[_FIRST + partition % _SLOTS] = 0

    def end_generation(self) -> None:
        """End the ownership of all partitions; those of the next assignment are acquired again."""
        with self._lock:
            self.generation += 1
            self._member_until_ns = 0
            for partition in self._owned:
                self._words[_FIRST + partition % _SLOTS] = 0
            self._owned.clear()
