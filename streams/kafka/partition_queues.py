"""What waits to be appended to the partitions of a topic: each partition for itself, until it is.

A partition that takes nothing, because it has no leader, holds up what waits for it, and nothing
else. What waits is in the memory of whoever appends; it ends with the process.
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

#: How often it is looked whether entries are ready.
_LOOK_S: Final = 0.05

E = TypeVar("E")


class PartitionQueues(Generic[E]):
    """Queues of entries, by the partition that they go to.

    Shape:  `records` makes the records of some entries, in their order, when they are about to be
            appended; NotYetReadable has that tried again, and after any other error the entry that
            it comes from is dropped. `appended` is called with each entry
            whose records are durable. `what` begins the warning: "replies have to wait". An entry
            is not appended before `ready` is true of it.
    """

    def __init__(  # noqa: PLR0913, what its users do with their entries
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
        #: What is being appended, by the partition that it goes to.
        self._in_hand: dict[int, list[E]] = {}
        self._faults: asyncio.Queue[BaseException] = asyncio.Queue()
        #: How many partitions there are, once it is connected.
        self.count = 0

    async def connect(self) -> None:
        """Learns how many partitions there are.

        Errors: BrokerUnavailable.
        """
        self.count = await self._producers.current.partitions(self._topic)

    async def run(self) -> NoReturn:
        """Raises the first error that nobody expects: what was to be appended then never is."""
        raise await self._faults.get()

    def add(self, partition: int, entry: E) -> None:
        """Queues an entry, behind those of its partition."""
        self._waiting[partition].append(entry)
        if partition not in self._appending:
            appending = asyncio.create_task(
                self._append_waiting(partition), name=f"append to {self._topic}/{partition}"
            )
            self._appending[partition] = appending
            appending.add_done_callback(self._ended)

    def drop(self, unwanted: Callable[[E], bool]) -> None:
        """Forget entries; those that were sent may be in the log all the same."""
        for waiting in (*self._waiting.values(), *self._in_hand.values()):
            waiting[:] = [entry for entry in waiting if not unwanted(entry)]

    def _ended(self, appending: asyncio.Task[None]) -> None:
        fault = None if appending.cancelled() else appending.exception()
        if fault is not None:
            self._faults.put_nowait(fault)

    async def _append_waiting(self, partition: int) -> None:
        retrying = Retrying(log, f"{self._what} for {self._topic}/{partition}", longest_s=5.0)
        try:
            while entries := self._waiting.pop(partition, None):
                self._in_hand[partition] = entries
                await retrying.until_done(lambda: self._append(partition, entries))
                for entry in entries:
                    self._appended(entry)
        finally:
            self._in_hand.pop(partition, None)
            del self._appending[partition]

    async def _append(self, partition: int, entries: Sequence[E]) -> None:
        # Those that never will be are dropped.
        while not all(map(self._ready, entries)):  # noqa: ASYNC110, time passes, or a thread tells
            await asyncio.sleep(_LOOK_S)
        producer = self._producers.of(partition)
        try:
            await producer.append(self._records_of(entries))
        except BrokerUnavailable:
            self._producers.failed(partition, producer)
            raise

    def _records_of(self, entries: Sequence[E]) -> Sequence[Outgoing]:
        """Return the records of entries; an entry that no record can be made of is dropped."""
        try:
            return self._records(entries)
        except (BrokerUnavailable, NotYetReadable):
            raise
        except Exception:
            if len(entries) == 1:
                log.exception("%s: one is dropped, as no record can hold it", self._what)
                return []
        return [record for each in entries for record in self._records_of([each])]

    async def stop(self, within_s: float) -> None:
        """Ends; what is not durable by then may be in the log, or not."""
        tasks = list(self._appending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._producers.stop(within_s)
