"""Queues of records to append: group commit of many callers, and one queue per partition.

A partition that accepts nothing, because it has no leader, delays only its own entries. Entries are
in the memory of this process, and are lost if it ends.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from headwater.schemas.errors import BrokerUnavailable, NotYetReadable, Overloaded
from headwater.streams.kafka.appender import BATCH_BYTES, Appender, Producers
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Outgoing
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

#: Bytes of all records that are queued or in flight: as much as a gateway holds of request bodies,
#: so that requests survive a broker that stalls for a moment.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
#: What a record costs in addition to its key and value: objects, headers.
_RECORD_BYTES: Final = 512
#: Records of one append. More would only make the first of them wait.
_GROUP_RECORDS: Final = 500
#: Bytes of one append: one Kafka batch. A record that is larger goes alone.
_GROUP_BYTES: Final = BATCH_BYTES
#: How long a record waits for others to be appended with: less than an append takes, and half as
#: many appends under load.
_LINGER_S: Final = 0.001
#: Nor does a record wait if the latest append ended longer ago: clients that it has answered would
#: have sent again.
_QUIET_S: Final = 0.003
#: How long a producer may take to stop.
_STOP_S: Final = 5.0


class Entry(Protocol):
    """A record to append, with what its caller associates with it; compared by identity."""

    @property
    def record(self) -> Outgoing:
        """Return the record."""


E = TypeVar("E", bound=Entry)


class _Group(NamedTuple, Generic[E]):
    entries: list[E]
    size: int


class _Queue(Generic[E]):
    """Entries that wait to be appended to a partition, and the task that appends."""

    def __init__(self) -> None:
        #: Entries and their sizes, in order.
        self.waiting: dict[E, int] = {}
        #: Task that appends a group; after a failure, it waits for another producer.
        self.appending: asyncio.Task[None] | None = None

    def take(self) -> _Group[E]:
        """Remove and return the next group."""
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

    Records that arrive during an append are part of the next one: at 64 connections that is one
    round trip for some dozens of records. A partition has one append in flight at a time, so that
    its records are in the log in the order in which they were added. A failed append fails for that
    partition alone, which continues with another producer.

    A stalled broker must cost neither memory nor copies. So the bytes held are bounded; beyond that
    limit callers get `Overloaded` at once. A caller that no longer waits withdraws its record while
    that is still possible, so that a retry is not queued along with the first attempt. What the
    producer already has cannot be withdrawn: an idempotent producer sends it when the broker is
    back.

    Args:
        producers: The producers.
        topic: The topic.
        settled: Called once for every entry that was added and not withdrawn, with entries that are
            durable or, with an error, may or may not be in the log. It must not raise.
        held_bytes_max: Limit of queued and in-flight bytes.
        linger_s: Seconds to wait for more records before an append, unless nothing was appended
            just now.

    Attributes:
        partitions: Number of partitions; 0 until Kafka answers for the first time.
        ready: Whether Kafka answers; False from a failed append until one succeeds or a producer
            connects.
    """

    def __init__(
        self,
        producers: Producers,
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
        #: Set when entries wait for a partition without a task that appends.
        self._wake = asyncio.Event()
        self._held_bytes = 0
        self._appended_at_s = 0.0
        self._running: asyncio.Task[None] | None = None
        self.partitions = 0
        self.ready = False

    async def start(self) -> None:
        """Start in the background; Kafka may be unavailable now or later."""
        self._running = asyncio.create_task(self._run(), name=f"append to {self._topic}")

    async def stop(self) -> None:
        """Stop within a little more than `_STOP_S`; entries that are not durable by then fail."""
        self.ready = False
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._producers.stop(_STOP_S)
        # Lets the callbacks of entries that were acknowledged just now run.
        await asyncio.sleep(0)
        for queue in self._queues.values():
            if queue.appending is not None:
                queue.appending.cancel()
                await asyncio.wait([queue.appending])
            queued, queue.waiting = list(queue.waiting), {}
            self._settled(queued, _stopped())
        self.ready = False

    def add(self, entries: Sequence[E]) -> None:
        """Queue entries, in order; all of them or none.

        Raises:
            Overloaded: Too many bytes are queued or in flight.
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
        """Remove an entry from the queue; return False if it is too late."""
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
            await asyncio.sleep(self._linger_s if self._is_busy() else 0)
            self._wake.clear()
            # All at once: batches for one broker go out in one request.
            for partition, queue in self._queues.items():
                if queue.waiting and queue.appending is None:
                    appending = self._append(partition, queue, queue.take())
                    queue.appending = asyncio.create_task(appending)

    def _is_busy(self) -> bool:
        quiet_s = asyncio.get_running_loop().time() - self._appended_at_s
        return quiet_s < _QUIET_S or any(queue.appending for queue in self._queues.values())

    async def _connect(self, partition: int) -> int:
        """Connect the producer of a partition; return the number of partitions."""
        count: int = await self._producers.producer_for(partition).partitions(self._topic)
        self.ready = True
        return count

    async def _append(self, partition: int, queue: _Queue[E], group: _Group[E]) -> None:
        """Append a group; after a failure, switch the partition to another producer."""
        producer = self._producers.producer_for(partition)
        try:
            if not await self._appended(producer, group):
                self._producers.replace_failed(partition, producer)
                what = f"waiting for Kafka to append to {self._topic}/{partition}"
                await Retrying(log, what).until_done(lambda: self._connect(partition))
        finally:
            queue.appending = None
            if queue.waiting:
                self._wake.set()

    async def _appended(self, producer: Appender, group: _Group[E]) -> bool:
        """Append a group and settle its entries; return False if it may not be in the log."""
        error: BrokerUnavailable | None = _stopped()
        try:
            sent = await producer.send([entry.record for entry in group.entries])
            await producer.acknowledged(sent)
            error = None
        except BrokerUnavailable as unavailable:
            error = unavailable
        except Exception:
            log.critical("unexpected error while appending to %s", self._topic, exc_info=True)
        finally:
            self._settle(group, error)
        return error is None

    def _settle(self, group: _Group[E], error: BrokerUnavailable | None) -> None:
        self._held_bytes -= group.size
        self._appended_at_s = asyncio.get_running_loop().time()
        self.ready = error is None
        if error is not None:
            log.warning("%s", error)
        self._settled(group.entries, error)


def _stopped() -> BrokerUnavailable:
    return BrokerUnavailable("expected an acknowledgement, found that its client stopped")


def _size(record: Outgoing) -> int:
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")


# -- one queue per partition

#: How often entries are checked for readiness.
_LOOK_S: Final = 0.05

EntryT = TypeVar("EntryT")


class PartitionQueues(Generic[EntryT]):
    """Queues of entries, by target partition.

    Args:
        cluster: The cluster.
        client_id: Name of the client.
        topic: The topic.
        what: Beginning of the warning: "replies have to wait".
        records: Makes the records of some entries, in order, right before they are appended.
            NotYetReadable causes a retry; after any other error the entry that causes it is
            dropped.
        appended: Called with every entry when its records are durable.
        ready: An entry is not appended before this returns True for it.
    """

    def __init__(  # noqa: PLR0913, callbacks of its users
        self,
        *,
        cluster: Cluster,
        client_id: str,
        topic: str,
        what: str,
        records: Callable[[Sequence[EntryT]], Sequence[Outgoing]],
        appended: Callable[[EntryT], None],
        ready: Callable[[EntryT], bool] = lambda _: True,
    ) -> None:
        self._producers = Producers(cluster, client_id)
        self._topic = topic
        self._what = what
        self._records = records
        self._appended = appended
        self._ready = ready
        self._waiting: defaultdict[int, list[EntryT]] = defaultdict(list)
        self._appending: dict[int, asyncio.Task[None]] = {}
        #: Entries in flight, by partition.
        self._in_flight: dict[int, list[EntryT]] = {}
        self._errors: asyncio.Queue[BaseException] = asyncio.Queue()
        #: Number of partitions; 0 until connected.
        self.count = 0

    async def connect(self) -> None:
        """Connect, and learn the number of partitions.

        Raises:
            BrokerUnavailable: No broker answered.
        """
        self.count = await self._producers.current.partitions(self._topic)

    async def run(self) -> NoReturn:
        """Raise the first unexpected error: its entries are never appended."""
        raise await self._errors.get()

    def add(self, partition: int, entry: EntryT) -> None:
        """Queue an entry after those of its partition."""
        self._waiting[partition].append(entry)
        if partition not in self._appending:
            appending = asyncio.create_task(
                self._append_waiting(partition), name=f"append to {self._topic}/{partition}"
            )
            self._appending[partition] = appending
            appending.add_done_callback(self._ended)

    def drop(self, unwanted: Callable[[EntryT], bool]) -> None:
        """Drop entries; those that were sent may be in the log all the same."""
        for waiting in (*self._waiting.values(), *self._in_flight.values()):
            waiting[:] = [entry for entry in waiting if not unwanted(entry)]

    def _ended(self, appending: asyncio.Task[None]) -> None:
        error = None if appending.cancelled() else appending.exception()
        if error is not None:
            self._errors.put_nowait(error)

    async def _append_waiting(self, partition: int) -> None:
        retrying = Retrying(log, f"{self._what} for {self._topic}/{partition}", longest_s=5.0)
        try:
            while entries := self._waiting.pop(partition, None):
                self._in_flight[partition] = entries
                await retrying.until_done(lambda: self._append(partition, entries))
                for entry in entries:
                    self._appended(entry)
        finally:
            self._in_flight.pop(partition, None)
            del self._appending[partition]

    async def _append(self, partition: int, entries: Sequence[EntryT]) -> None:
        # Entries that will never be ready are dropped by `drop`.
        while not all(map(self._ready, entries)):  # noqa: ASYNC110, time passes, or a thread acts
            await asyncio.sleep(_LOOK_S)
        producer = self._producers.producer_for(partition)
        try:
            await producer.append(self._records_of(entries))
        except BrokerUnavailable:
            self._producers.replace_failed(partition, producer)
            raise

    def _records_of(self, entries: Sequence[EntryT]) -> Sequence[Outgoing]:
        """Return the records of entries; drop an entry that cannot be encoded."""
        try:
            return self._records(entries)
        except (BrokerUnavailable, NotYetReadable):
            raise
        except Exception:
            if len(entries) == 1:
                log.exception("%s: one entry is dropped, as no record can hold it", self._what)
                return []
        return [record for entry in entries for record in self._records_of([entry])]

    async def stop(self, within_s: float) -> None:
        """Stop; what is not durable by then may or may not be in the log."""
        tasks = list(self._appending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._producers.stop(within_s)
