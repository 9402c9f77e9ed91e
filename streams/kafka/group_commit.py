"""Group commit: the records of many callers, appended together.

Records that arrive while an append is under way are appended by the next one: at 64 connections
that is one round trip for some dozens of records. Each partition has one group under way at a time:
its records are in the log in the order in which they were added. One that has no leader holds up no
other, and when an append fails, it fails for that partition alone, which goes on through another
producer.

A broker that stalls must cost neither memory nor copies. So what is held is bounded in bytes, and
beyond that callers get `Overloaded` at once. And a caller that no longer waits withdraws its record
while that is still possible: a retry is never queued beside its first try. What the producer has
been given can not be withdrawn; an idempotent producer sends it when the broker is back.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from headwater.schemas.errors import BrokerUnavailable, Overloaded
from headwater.streams.kafka.appender import BATCH_BYTES, Sent
from headwater.streams.kafka.records import Outgoing
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

#: Bytes of all records that are queued or under way: as much as a gateway holds of bodies, so that
#: a broker that stalls for a moment is waited for.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
#: What a record costs beside its key and value: objects, headers.
_RECORD_BYTES: Final = 512
#: Records of one append. More would only make the first of them wait.
_GROUP_RECORDS: Final = 500
#: Bytes of one append: one Kafka batch. A record that is larger goes alone.
_GROUP_BYTES: Final = BATCH_BYTES
#: What a record waits for others to be appended with: less than an append takes, and half as many
#: appends under load.
_LINGER_S: Final = 0.001
#: How long a producer may take to end.
_STOP_S: Final = 5.0


class Entry(Protocol):
    """A record on its way into the log, with what its caller knows of it; compared by identity."""

    @property
    def record(self) -> Outgoing:
        """The record."""


class Producer(Protocol):
    """What appends; see `Appender`."""

    async def partitions(self, topic: str) -> int:
        """The number of partitions of a topic."""

    async def send(self, records: Sequence[Outgoing]) -> list[Sent]:
        """Hands over records, in order."""

    async def acknowledged(self, sent: Sequence[Sent]) -> list[int]:
        """Waits until they are durable."""


P = TypeVar("P", bound=Producer)


class PartitionProducers(Protocol[P]):
    """What has a producer for each partition; see `Producers`."""

    def of(self, partition: int) -> P:
        """The producer of a partition, until it has failed it."""

    def failed(self, partition: int, producer: P) -> None:
        """Takes note that a producer is of no more use for a partition."""

    async def stop(self, within_s: float) -> None:
        """Disconnects."""


E = TypeVar("E", bound=Entry)


class _Group(NamedTuple, Generic[E]):
    entries: list[E]
    size: int


class _Queue(Generic[E]):
    """What waits to be appended to a partition, and who appends there."""

    def __init__(self) -> None:
        #: Entries and their sizes, in order.
        self.waiting: dict[E, int] = {}
        #: Appends a group; after a failure, it waits for another producer.
        self.appending: asyncio.Task[None] | None = None

    def take(self) -> _Group[E]:
        """The next group."""
        entries: list[E] = []
        size = 0
        for entry, entry_size in self.waiting.items():
            if len(entries) == _GROUP_RECORDS or (entries and size + entry_size > _GROUP_BYTES):
                break
            entries.append(entry)
            size += entry_size
        for entry in entries:
            del self.waiting[entry]
        return _Group(entries, size)


class GroupCommit(Generic[E]):
    """Appends to one topic.

    Shape:  partitions is their number, 0 until Kafka answers for the first time; ready, whether
            Kafka answers: it does not from a failed append until one succeeds, or a producer
            connects. `settled` is called once for each entry that was added and not withdrawn,
            with those that are durable or, with an error, may or may not be in the log; it must
            not raise.
    """

    def __init__(
        self,
        producers: PartitionProducers[Any],
        topic: str,
        *,
        settled: Callable[[Sequence[E], BrokerUnavailable | None], None],
        held_bytes_max: int = HELD_BYTES_MAX,
        linger_s: float = _LINGER_S,
    ) -> None:
        self._producers = producers
        self._topic = topic
        self._settled = settled
        self._held_bytes_max = held_bytes_max
        self._linger_s = linger_s
        self._queues: dict[int, _Queue[E]] = {}
        #: Something waits for a partition where nobody appends.
        self._wake = asyncio.Event()
        self._held_bytes = 0
        self._running: asyncio.Task[None] | None = None
        self.partitions = 0
        self.ready = False

    async def start(self) -> None:
        """Starts in the background; Kafka may be away, now or later."""
        self._running = asyncio.create_task(self._run(), name=f"append to {self._topic}")

    async def stop(self) -> None:
        """Ends, in `_STOP_S` and a little; entries that are not durable by then fail."""
        self.ready = False
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._producers.stop(_STOP_S)
        # Those that were acknowledged just now are not settled yet.
        await asyncio.sleep(0)
        for queue in self._queues.values():
            if queue.appending is not None:
                queue.appending.cancel()
                await asyncio.wait([queue.appending])
            queued, queue.waiting = list(queue.waiting), {}
            self._settled(queued, _stopped())
        self.ready = False

    def add(self, entries: Sequence[E]) -> None:
        """Queues entries, in order; all of them or none.

        Errors: Overloaded.
        """
        sizes = [_size(entry.record) for entry in entries]
        size = sum(sizes)
        if self._held_bytes + size > self._held_bytes_max:
            raise Overloaded(
                f"expected at most {self._held_bytes_max} bytes on their way to {self._topic}, "
                f"found {self._held_bytes} and {size} more; usual cause: Kafka is slow or away"
            )
        self._held_bytes += size
        for entry, entry_size in zip(entries, sizes, strict=True):
            queue = self._queues[entry.record.partition]
            queue.waiting[entry] = entry_size
            if queue.appending is None:
                self._wake.set()

    def withdraw(self, entry: E) -> bool:
        """Takes an entry back; tells whether that was in time, so that it is never appended."""
        size = self._queues[entry.record.partition].waiting.pop(entry, None)
        if size is None:
            return False
        self._held_bytes -= size
        return True

    async def _run(self) -> NoReturn:
        connecting = Retrying(log, f"waiting for Kafka to append to {self._topic}")
        self.partitions = await connecting.until_done(lambda: self._connect(0))
        self._queues = {partition: _Queue() for partition in range(self.partitions)}
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._linger_s)
            self._wake.clear()
            # All at once: what goes to one broker is one request.
            for partition, queue in self._queues.items():
                if queue.waiting and queue.appending is None:
                    appending = self._append(partition, queue, queue.take())
                    queue.appending = asyncio.create_task(appending)

    async def _connect(self, partition: int) -> int:
        """Connects the producer of a partition; returns how many there are."""
        count: int = await self._producers.of(partition).partitions(self._topic)
        self.ready = True
        return count

    async def _append(self, partition: int, queue: _Queue[E], group: _Group[E]) -> None:
        """Appends a group; after a failure, gets the partition another producer."""
        producer: Producer = self._producers.of(partition)
        try:
            if not await self._appended(producer, group):
                self._producers.failed(partition, producer)
                what = f"waiting for Kafka to append to {self._topic}/{partition}"
                await Retrying(log, what).until_done(lambda: self._connect(partition))
        finally:
            queue.appending = None
            if queue.waiting:
                self._wake.set()

    async def _appended(self, producer: Producer, group: _Group[E]) -> bool:
        """Appends a group and says so to those who added it; False if it may not be in the log."""
        error: BrokerUnavailable | None = _stopped()
        try:
            sent = await producer.send([entry.record for entry in group.entries])
            await producer.acknowledged(sent)
            error = None
        except BrokerUnavailable as unavailable:
            error = unavailable
        except Exception:
            log.critical("expected to go on appending to %s", self._topic, exc_info=True)
        finally:
            self._settle(group, error)
        return error is None

    def _settle(self, group: _Group[E], error: BrokerUnavailable | None) -> None:
        self._held_bytes -= group.size
        self.ready = error is None
        if error is not None:
            log.warning("%s", error)
        self._settled(group.entries, error)


def _stopped() -> BrokerUnavailable:
    return BrokerUnavailable("expected an acknowledgement, found that its client stopped")


def _size(record: Outgoing) -> int:
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
