"""A partition of the history that was claimed, and the appends to it that are not acknowledged.

Without I/O. An append is encoded and packed into batches at once. When all of its batches are
acknowledged, in order, it is done. When the lease ends, all appends that are not done are lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from headwater.schemas.codec import encode
from headwater.schemas.errors import Disposition, HeadwaterError, InvariantViolation
from headwater.schemas.history import HistoryAppended, record_key
from headwater.schemas.topics import MAX_VALUE_BYTES, WORKFLOW_HISTORY
from headwater.streams.kafka.appender import BATCH_BYTES, Appender
from headwater.streams.kafka.batch_sender import BatchQueue
from headwater.streams.kafka.produce_requests import pack_batches
from headwater.streams.ownership.leases import Gap, PartitionLease

#: Offset of the first record of an append, or why the records do not count.
Outcome: TypeAlias = int | Exception


class OwnershipLost(HeadwaterError):
    """A partition must be claimed before anything can be appended to it.

    The last append has no effect, or its effect is unknown.

    Attributes:
        pause_s: How long to wait before claiming again, in seconds, because the same error would
            occur at once.
    """

    disposition = Disposition.RETRY
    code = "ownership_lost"

    def __init__(self, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s

    @classmethod
    def of(cls, partition: int, reason: str, pause_s: float = 0.0) -> "OwnershipLost":
        """Return the error of a partition."""
        return cls(f"expected to own partition {partition}, found: {reason}", pause_s)


class Append(NamedTuple):
    """Records to append to a partition, with their instances' keys.

    Attributes:
        done: Called once, with the outcome.
    """

    partition: int
    records: Sequence[tuple[bytes, HistoryAppended]]
    done: Callable[[Outcome], None]


#: An append with its outcome.
Done: TypeAlias = tuple[Append, Outcome]


class _Unacknowledged:
    """An append that is not done."""

    def __init__(self, append: Append, batches: int) -> None:
        self.append = append
        #: Number of its batches that are not acknowledged, and the offset of the first batch.
        self.batches = batches
        self.first: int | None = None
        #: Done with the append, if a caller waits for it.
        self.waiter: asyncio.Future[None] | None = None


class HistoryLease(PartitionLease):
    """The lease of a partition of the history.

    Attributes:
        producer: Producer through which it was claimed.
        queue: Its batches.
        pause_s: How long not to claim it again, in seconds.
        is_checked: Whether the records before its latest batch are known.
    """

    def __init__(self, partition: int, epoch: int, producer: Appender) -> None:
        super().__init__(partition, epoch, {WORKFLOW_HISTORY: epoch})
        self.producer = producer
        self.queue = BatchQueue(WORKFLOW_HISTORY, partition, producer.idempotent_producer())
        self.pause_s = 0.0
        self.is_checked = True
        self._appends: deque[_Unacknowledged] = deque()
        #: Number of records that were accepted.
        self._accepted = 0

    def lost(self) -> OwnershipLost:
        """Return the error of appends after its end."""
        return OwnershipLost.of(self.partition, self.over, self.pause_s)

    def accept(self, append: Append) -> None:
        """Queue records after all earlier ones.

        Raises:
            OwnershipLost: The lease has ended, or the records are of another one.
            NotYetReadable: A record cannot be written until all readers are upgraded.
            InvariantViolation: A record is too large for Kafka. Nothing is queued.
        """
        if self.over:
            raise self.lost()
        epoch = self.epoch
        if any(record.epoch != epoch for _, record in append.records):
            reason = f"the records are of another epoch than its claim at offset {epoch}"
            raise OwnershipLost.of(self.partition, reason)
        batches = pack_batches([self._encoded(*keyed) for keyed in append.records], BATCH_BYTES)
        self._appends.append(_Unacknowledged(append, len(batches)))
        self.queue.waiting.extend(batches)

    def _encoded(self, key: bytes, record: HistoryAppended) -> tuple[bytes, bytes]:
        value = encode(record)
        self._accepted += 1
        if len(value) > MAX_VALUE_BYTES:
            raise InvariantViolation(
                f"expected a record of at most {MAX_VALUE_BYTES} bytes, found {len(value)} for "
                f"{key.decode()}; usual cause: a result without a size limit"
            )
        return record_key(key, self.epoch, self._accepted), value

    def acknowledge(self, offset: int, records: int) -> Gap | None:
        """Record that the batch in flight is in the log; return a gap that has to be read.

        Raises:
            LogCut: It precedes what was acknowledged earlier.
        """
        append = self._appends[0]
        gap = self.appended(WORKFLOW_HISTORY, self.partition, offset, records)
        append.batches -= 1
        if append.first is None:
            append.first = offset
        elif gap is not None:
            # The caller relies on consecutive offsets. When it claims again, it reads the log.
            self.end(f"another process wrote between our records, before offset {offset}")
        return gap

    def take_done(self) -> list[Done]:
        """Return the appends that are done: all of them, if the lease has ended."""
        done: list[Done] = []
        while self._appends and (self.over or not self._appends[0].batches):
            append = self._appends.popleft()
            first = append.first
            done.append((append.append, self.lost() if self.over or first is None else first))
            if append.waiter is not None:
                append.waiter.set_result(None)
        if self.over:
            self.queue.is_over = True
            self.queue.waiting.clear()
        return done

    def latest(self) -> "asyncio.Future[None] | None":
        """Return a future that is done with the latest append; None if none is in flight."""
        if not self._appends:
            return None
        append = self._appends[-1]
        if append.waiter is None:
            append.waiter = asyncio.get_running_loop().create_future()
        return append.waiter
