"""Producers for partitions that fail independently: one for all, until it fails for some of them.

An idempotent producer that lost a batch of a partition, or cannot deliver it, cannot be used for
that partition any more; for the others it still works. So the failed partition gets another
producer, and the others keep theirs: they may have a leader when that one has none.
"""

import asyncio
from typing import Final

from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster

#: How long a producer may take to stop: longer than an append of its last batches. While Kafka is
#: unavailable it would wait forever.
_STOP_S: Final = 10.0


class Producers:
    """The producers of a client."""

    def __init__(
        self, cluster: Cluster, client_id: str, broker_clock: BrokerClock | None = None
    ) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._broker_clock = broker_clock
        #: The producer for partitions that have none yet.
        self.current = self._new_producer()
        self._of: dict[int, Appender] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def _new_producer(self) -> Appender:
        return Appender(
            cluster=self._cluster, client_id=self._client_id, broker_clock=self._broker_clock
        )

    def producer_for(self, partition: int) -> Appender:
        """Return the producer of a partition: the same until it is replaced or left."""
        return self._of.setdefault(partition, self.current)

    def replace_failed(self, partition: int, producer: Appender) -> None:
        """Record that a producer cannot be used for a partition any more."""
        if producer is self.current:
            self.current = self._new_producer()
        if self._of.get(partition) is producer:
            del self._of[partition]
        self._end_unused(producer)

    def leave_partition(self, partition: int) -> None:
        """Record that nothing more is appended to a partition through its producer."""
        producer = self._of.pop(partition, None)
        if producer is not None:
            self._end_unused(producer)

    def _end_unused(self, producer: Appender) -> None:
        if producer is not self.current and producer not in self._of.values():
            ending = asyncio.create_task(producer.stop(_STOP_S))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def stop(self, within_s: float = _STOP_S) -> None:
        """Stop all producers."""
        producers = {self.current, *self._of.values()}
        self._of.clear()
        stops = (asyncio.create_task(producer.stop(within_s)) for producer in producers)
        ending = (*self._ending, *stops)
        _, late = await asyncio.wait(ending, timeout=within_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
