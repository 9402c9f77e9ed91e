"""Group commit: the records of many callers, appended together.

Records that arrive while an append is under way are appended by the next one: at 64 connections
that is one round trip for some dozens of records. Each partition has groups of its own, which are
handed to the producer one after the other: its records are in the log in the order in which they
were added. One that has no leader holds up no other, and when an append fails, it fails for that
partition alone, which goes on through another producer.

A broker that stalls must cost neither memory nor copies. So what is held is bounded in bytes, and
beyond that callers get `Overloaded` at once. And a caller that no longer waits withdraws its record
while that is still possible: a retry is never queued beside its first try. What the producer has
been given can not be withdrawn; an idempotent producer sends it when the broker is back.
"""

import asyncio
import logging
from collections.abc import Sequence
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
#: Bytes of one append: one Kafka batch a partition, so that the producer takes two groups without
#: making the second wait. A record that is larger goes alone.
_GROUP_BYTES: Final = BATCH_BYTES
#: What a record waits for others to be appended with: less than an append takes, and half as many
#: appends under load.
_LINGER_S: Final = 0.001
#: Of a partition: while one group is with the broker the next is made ready; a third would only
#: wait.
_GROUPS_IN_FLIGHT: Final = 2
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
E_contra = TypeVar("E_contra", bound=Entry, contravariant=True)


class Settled(Protocol[E_contra]):
    """Called with entries that are durable, or, with an error, may or may not be in the log."""

    def __call__(self, entries: Sequence[E_contra], error: BrokerUnavailable | None) -> None:
        """Must not raise."""


class _Group(NamedTuple, Generic[E]):
    entries: list[E]
    size: int


class _Queue(Generic[E]):
    """What waits to be appended to a partition, and what is under way there."""

    def __init__(self) -> None:
        #: Entries and their sizes, in order.
        self.waiting: dict[E, int] = {}
        self.wake = asyncio.Event()
        #: An append has failed, and its producer is of no more use.
        self.failed = asyncio.Event()
        self.under_way: dict[asyncio.Task[None], _Group[E]] = {}

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
        if not self.waiting:
            self.wake.clear()
        return _Group(entries, size)


class GroupCommit(Generic[E]):
    """Appends to one topic.

    Shape:  partitions is their number, 0 until Kafka answers for the first time; ready, whether
            Kafka answers: it does not from a failed append until one succeeds, or a producer
            connects. `settled` is called once for each entry that was added and not withdrawn.
    """

    def __init__(
        self,
        producers: PartitionProducers[Any],
        topic: str,
        *,
        settled: Settled[E],
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._producers = producers
        self._topic = topic
        self._settled = settled
        self._held_bytes_max = held_bytes_max
        self._queues: dict[int, _Queue[E]] = {}
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
        stopped = BrokerUnavailable("expected an acknowledgement, found that its client stopped")
        for queue in self._queues.values():
            await self._fail_under_way(queue, stopped)
            queued, queue.waiting = list(queue.waiting), {}
            self._settled(queued, stopped)
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
            queue.wake.set()

    def withdraw(self, entry: E) -> bool:
        """Takes an entry back; tells whether that was in time, so that it is never appended."""
        size = self._queues[entry.record.partition].waiting.pop(entry, None)
        if size is None:
            return False
        self._held_bytes -= size
        return True

    async def _run(self) -> None:
        connecting = Retrying(log, f"waiting for Kafka to append to {self._topic}")
        self.partitions = await connecting.until_done(lambda: self._connect(0))
        for partition in range(self.partitions):
            self._queues.setdefault(partition, _Queue())
        appending = [
            asyncio.create_task(self._append(partition, queue))
            for partition, queue in self._queues.items()
        ]
        try:
            await asyncio.wait(appending)
        finally:
            for task in appending:
                task.cancel()
            await asyncio.wait(appending)

    async def _connect(self, partition: int) -> int:
        """Connects the producer of a partition; returns how many there are."""
        count: int = await self._producers.of(partition).partitions(self._topic)
        self.ready = True
        return count

    async def _append(self, partition: int, queue: _Queue[E]) -> NoReturn:
        """Appends what is queued for a partition; after a failure, through another producer."""
        what = f"waiting for Kafka to append to {self._topic}/{partition}"
        while True:
            producer = self._producers.of(partition)
            await self._append_until_failed(queue, producer)
            self._producers.failed(partition, producer)
            # Only then, so that what goes out next lies behind it, if it is in the log.
            if queue.under_way:
                await asyncio.wait(queue.under_way, timeout=_STOP_S)
            await self._fail_under_way(
                queue, BrokerUnavailable("expected an acknowledgement, found the one before failed")
            )
            await Retrying(log, what).until_done(lambda: self._connect(partition))
            queue.failed.clear()

    async def _append_until_failed(self, queue: _Queue[E], producer: Producer) -> None:
        appending = asyncio.create_task(self._append_groups(queue, producer))
        failed = asyncio.create_task(queue.failed.wait())
        try:
            await asyncio.wait((appending, failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            appending.cancel()
            failed.cancel()
            await asyncio.wait((appending, failed))
        if not appending.cancelled() and (error := appending.exception()):
            log.critical("expected to go on appending to %s", self._topic, exc_info=error)

    async def _append_groups(self, queue: _Queue[E], producer: Producer) -> None:
        while True:
            await queue.wake.wait()
            await asyncio.sleep(_LINGER_S)
            while len(queue.under_way) >= _GROUPS_IN_FLIGHT:
                await asyncio.wait(queue.under_way, return_when="FIRST_COMPLETED")
            if queue.failed.is_set():
                return
            group = queue.take()
            if group.entries:
                await self._send(queue, producer, group)

    async def _send(self, queue: _Queue[E], producer: Producer, group: _Group[E]) -> None:
        # Here and not in a task: so groups go out in their order.
        try:
            sent = await producer.send([entry.record for entry in group.entries])
        except BrokerUnavailable as error:
            self._settle(queue, group, error)
        except BaseException:
            ended = BrokerUnavailable("expected to append, found that its client stops or fails")
            self._settle(queue, group, ended)
            raise
        else:
            acknowledging = asyncio.create_task(self._acknowledge(queue, producer, group, sent))
            queue.under_way[acknowledging] = group
            acknowledging.add_done_callback(queue.under_way.pop)

    async def _acknowledge(
        self, queue: _Queue[E], producer: Producer, group: _Group[E], sent: Sequence[Sent]
    ) -> None:
        try:
            await producer.acknowledged(sent)
        except BrokerUnavailable as error:
            self._settle(queue, group, error)
        else:
            self._settle(queue, group, None)

    def _settle(self, queue: _Queue[E], group: _Group[E], error: BrokerUnavailable | None) -> None:
        self._held_bytes -= group.size
        self.ready = error is None
        if error is not None:
            log.warning("%s", error)
            queue.failed.set()
        self._settled(group.entries, error)

    async def _fail_under_way(self, queue: _Queue[E], why: BrokerUnavailable) -> None:
        """Fails what is not acknowledged by now."""
        # Those that were acknowledged just now are not settled yet.
        await asyncio.sleep(0)
        for acknowledging, group in list(queue.under_way.items()):
            acknowledging.cancel()
            await asyncio.wait([acknowledging])
            if acknowledging.cancelled():
                self._settle(queue, group, why)


def _size(record: Outgoing) -> int:
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
