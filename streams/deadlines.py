"""Until when a worker surely owns each of its partitions, in memory that its code hosts share.

The coordinator of a consumer group gives the partitions of a member to others when it has heard
nothing of the member for the length of a session. So a partition is surely owned for one session
after the last request was sent by which the coordinator confirmed the membership: a heartbeat, or
the join itself. That an append was acknowledged confirms nothing: the coordinator, which has not
heard of it, may give the partition away a moment later. A process that was suspended finds that
the deadline has passed, and releases nothing before the membership is confirmed again. Its code
hosts read the same deadlines before they begin a step: they may have been suspended, or have gone
on without it.
"""

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Final

from headwater.streams.clock import monotonic_ns

#: How long a partition is owned after it was confirmed. The session of the workers' group.
SESSION_S: Final = 10.0
#: Partitions whose deadlines fit; a cluster of Kafka has fewer in all. 512 KiB, of which only the
#: pages in use take memory.
_SLOTS: Final = 65_536
_WORD: Final = 8
#: Word 0 has the number of partitions, word 1 + n the deadline of partition n.
_COUNT: Final = 0
_FIRST: Final = 1
_SIZE: Final = _WORD * (_FIRST + _SLOTS)
_NS: Final = 1_000_000_000


def anonymous_file(name: str, size: int) -> int:
    """A descriptor of a new file that has no path, to be mapped by several processes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class SessionDeadlines:
    """The deadlines of the partitions of one worker.

    The event loop of the worker acquires, confirms and releases partitions. The thread that holds
    the membership confirms them with every heartbeat, and ends a generation when partitions
    are revoked: from then on nothing that was acquired before is owned, whatever the event loop is
    doing. Any thread or process may ask `holds`.
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
        #: Counts the assignments of the group, which the worker's partitions are acquired in.
        self.generation = 0

    @classmethod
    def create(
        cls, *, session_s: float = SESSION_S, clock_ns: Callable[[], int] = monotonic_ns
    ) -> "SessionDeadlines":
        """New ones: no partition is owned."""
        descriptor = anonymous_file("headwater-deadlines", _SIZE)
        deadlines = cls(descriptor, session_s=session_s, clock_ns=clock_ns)
        deadlines.set_partitions(1)
        deadlines._closing = weakref.finalize(deadlines, os.close, descriptor)
        return deadlines

    def close(self) -> None:
        """Unmap the memory; hosts keep what they have mapped."""
        self._words.release()
        self._map.close()
        if self._closing is not None:
            self._closing()

    # -- asking

    def holds(self, partition: int) -> bool:
        """Whether a partition is surely owned now."""
        return self._clock_ns() < self._words[_FIRST + partition % _SLOTS]

    def may_begin(self, activation: int) -> bool:
        """Whether the partition that an activation belongs to is surely owned now."""
        return self.holds(activation % self._words[_COUNT])

    def is_member(self) -> bool:
        """Whether the group has confirmed the membership within a session."""
        return self._clock_ns() < self._member_until_ns

    # -- confirming

    def set_partitions(self, count: int) -> None:
        """Set how many partitions there are in all, owned or not."""
        self._words[_COUNT] = count

    def acquire(self, partition: int, generation: int) -> bool:
        """Begin to own a partition that was claimed, for as long as the membership is confirmed.

        Args:
            partition: Its number.
            generation: The generation that it was assigned in.

        Returns:
            Whether the generation lasts; if not, the partition is not owned.
        """
        with self._lock:
            if generation != self.generation:
                return False
            self._owned.add(partition)
            self._words[_FIRST + partition % _SLOTS] = self._member_until_ns
            return True

    def confirm(self, sent_s: float) -> None:
        """Note that the group confirmed this process as a member.

        Args:
            sent_s: When the request was sent that was answered, in seconds of `clock.monotonic`.
        """
        with self._lock:
            until_ns = int(sent_s * _NS) + self._session_ns
            self._member_until_ns = max(self._member_until_ns, until_ns)
            for partition in self._owned:
                self._words[_FIRST + partition % _SLOTS] = self._member_until_ns

    def release(self, partition: int) -> None:
        """End the ownership of a partition."""
        with self._lock:
            self._owned.discard(partition)
            self._words[_FIRST + partition % _SLOTS] = 0

    def end_generation(self) -> None:
        """End the ownership of all partitions; those of the next assignment are acquired anew."""
        with self._lock:
            self.generation += 1
            self._member_until_ns = 0
            for partition in self._owned:
                self._words[_FIRST + partition % _SLOTS] = 0
            self._owned.clear()
