"""Queues of entries to append to the partitions of a topic, independent of each other.

A partition that accepts nothing, because it has no leader, delays only its own entries. Entries are
in the memory of this process, and are lost if it ends.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Generic, NoReturn, TypeVar

from headwater.schemas.errors import BrokerUnavailable, NotYetReadable
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.producers import Producers
from headwater.streams.kafka.records import Outgoing
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

#: How often entries are checked for readiness.
_LOOK_S: Final = 0.05

E = TypeVar("E")


class PartitionQueues(Generic[E]):
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
        records: Callable[[Sequence[E]], Sequence[Outgoing]],
        appended: Callable[[E], None],
        ready: Callable[[E], bool] = lambda _: True,
    ) -> None:
        self._producers = Producers(cluster, client_id)
        self._topic = topic
        self._what = what
        self._records = records
        self._appended = appended
        self._ready = ready
        self._waiting: defaultdict[int, list[E]] = defaultdict(list)
        self._appending: dict[int, asyncio.Task[None]] = {}
        #: Entries in flight, by partition.
        self._in_flight: dict[int, list[E]] = {}
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

    def add(self, partition: int, entry: E) -> None:
        """Queue an entry after those of its partition."""
        self._waiting[partition].append(entry)
        if partition not in self._appending:
            appending = asyncio.create_task(
                self._append_waiting(partition), name=f"append to {self._topic}/{partition}"
            )
            self._appending[partition] = appending
            appending.add_done_callback(self._ended)

    def drop(self, unwanted: Callable[[E], bool]) -> None:
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

    async def _append(self, partition: int, entries: Sequence[E]) -> None:
        # Entries that will never be ready are dropped by `drop`.
        while not all(map(self._ready, entries)):  # noqa: ASYNC110, time passes, or a thread acts
            await asyncio.sleep(_LOOK_S)
        producer = self._producers.producer_for(partition)
        try:
            await producer.append(self._records_of(entries))
        except BrokerUnavailable:
            self._producers.replace_failed(partition, producer)
            raise

    def _records_of(self, entries: Sequence[E]) -> Sequence[Outgoing]:
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
