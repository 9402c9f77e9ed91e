"""Producers for partitions that fail one by one: one for all, until it has failed some of them.

An idempotent producer that has lost a batch of a partition, or cannot get rid of it, is of no more
use for that partition; for the others it is as good as before. So a partition that was failed gets
another producer, and the others keep theirs: they may have a leader where that one has none.
"""

import asyncio
from typing import Final

from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster

#: How long a producer may take to end: longer than an append of its last batches, and bounded
#: because while Kafka is away it would wait for ever.
_STOP_S: Final = 10.0


class Producers:
    """The producers of one client."""

    def __init__(
        self, cluster: Cluster, client_id: str, broker_clock: BrokerClock | None = None
    ) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._broker_clock = broker_clock
        #: What partitions get from now on.
        self.current = self._new_producer()
        self._of: dict[int, Appender] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def _new_producer(self) -> Appender:
        return Appender(
            cluster=self._cluster, client_id=self._client_id, broker_clock=self._broker_clock
        )

    def of(self, partition: int) -> Appender:
        """The producer of a partition: the same until it has failed it, or is left."""
        return self._of.setdefault(partition, self.current)

    def failed(self, partition: int, producer: Appender) -> None:
        """Takes note that a producer is of no more use for a partition."""
        if producer is self.current:
            self.current = self._new_producer()
        if self._of.get(partition) is producer:
            del self._of[partition]
        self._end_unused(producer)

    def leave(self, partition: int) -> None:
        """Takes note that nothing more goes to a partition through the producer that it has."""
        producer = self._of.pop(partition, None)
        if producer is not None:
            self._end_unused(producer)

    def _end_unused(self, producer: Appender) -> None:
        if producer is not self.current and producer not in self._of.values():
            ending = asyncio.create_task(producer.stop(_STOP_S))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def stop(self, within_s: float = _STOP_S) -> None:
        """Ends all of them."""
        producers = {self.current, *self._of.values()}
        self._of.clear()
        ending = (*self._ending, *(asyncio.create_task(each.stop(within_s)) for each in producers))
        _, late = await asyncio.wait(ending, timeout=within_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
