"""The lease of a partition: its claim, and where its owner's next records are expected.

Kafka accepts records of any producer, so an acknowledgement proves nothing. But it returns the
offset of the records. If they follow the owner's previous ones, no other process has written. If
they do not, the owner has to read the records in the gap: another process may have claimed the
partition (`processors.runs.claims`), or have written records that are void. If they precede them,
the log was cut.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from headwater.schemas.errors import Disposition, HeadwaterError

_CUT: Final = "usual cause: the broker lost its end, or the topic was created again"


class PartitionLost(HeadwaterError):
    """Another process owns a partition that this process considered its own."""

    disposition = Disposition.HALT
    code = "partition_lost"


class LogCut(PartitionLost):
    """The log lost acknowledged records: state derived from them is invalid."""

    code = "log_cut"


class Gap(NamedTuple):
    """Offsets of a topic that other processes wrote: `start` inclusive, `end` exclusive."""

    topic: str
    start: int
    end: int


class PartitionLease:
    """Ownership of a partition, from its claims on, under one epoch.

    Args:
        partition: The partition.
        epoch: The epoch.
        claims: Offsets of the claims by topic.

    Attributes:
        over: Why nothing more of it may be written or kept; empty while the lease lasts.
    """

    def __init__(self, partition: int, epoch: int, claims: Mapping[str, int]) -> None:
        self.partition = partition
        self.epoch = epoch
        self.over = ""
        self._next = {topic: offset + 1 for topic, offset in claims.items()}

    def end(self, reason: str) -> None:
        """End the lease. The first reason is kept."""
        self.over = self.over or reason

    def appended(self, topic: str, partition: int, first: int, count: int) -> Gap | None:
        """Record an acknowledged batch; return the gap that other processes wrote before it.

        Raises:
            LogCut: The batch precedes what was acknowledged earlier.
        """
        if partition != self.partition or topic not in self._next:
            return None
        gap = self.reached(topic, first)
        self._next[topic] = first + count
        return gap

    def reached(self, topic: str, offset: int) -> Gap | None:
        """Record that a topic has records up to an offset; return those of other processes.

        Raises:
            LogCut: The offset precedes what was acknowledged.
        """
        expected = self._next[topic]
        if offset < expected:
            raise LogCut(
                f"expected {topic}/{self.partition} to continue at {expected} or later, found "
                f"it at {offset}; {_CUT}"
            )
        self._next[topic] = offset
        return Gap(topic, expected, offset) if offset > expected else None
