"""The consumer of a projection: its options, and the assignment of partitions."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from typing_extensions import override

#: Compressed bytes as in the log; uncompressed, twenty times as many.
_PARTITION_FETCH_BYTES: Final = 1024 * 1024
_FETCH_BYTES: Final = 16 * 1024 * 1024
#: How long the broker may hold a fetch, as for other consumers (`idle_fetches`).
_FETCH_WAIT_MS: Final = 5_000


class Cluster(Protocol):
    """The Kafka cluster to read from; its text is its address."""

    def options(self) -> Mapping[str, Any]:
        """Return the options of an aiokafka client for the cluster."""


class AssignmentListener(ConsumerRebalanceListener):
    """Holds assigned partitions until it is known from where they are read."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        on_assigned: Callable[[Iterable[TopicPartition]], None],
    ) -> None:
        self._consumer = consumer
        self._on_assigned = on_assigned

    @override
    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Do nothing: a batch in progress may still be applied, Postgres keeps the order."""

    @override
    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        for tp in assigned:
            # Postgres has the offset: fetch nothing before it is known, and do not ask Kafka.
            self._consumer.pause(tp)
            self._consumer.seek(tp, 0)
        self._on_assigned(assigned)


async def started(consumer: AIOKafkaConsumer, stopping: "asyncio.Task[bool]") -> bool:
    """Start a consumer, which waits for topics that are missing, unless it is to be stopped."""
    starting = asyncio.create_task(consumer.start())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        starting.cancel()
    await asyncio.wait([starting])
    if starting.cancelled():
        return False
    starting.result()
    return True


def projection_consumer(cluster: Cluster, group: str) -> AIOKafkaConsumer:
    """Return the consumer of a projection's group, not started."""
    return AIOKafkaConsumer(
        **cluster.options(),
        group_id=group,
        client_id=group,
        enable_auto_commit=False,
        # Otherwise a truncated topic would silently be read from its beginning, and new records
        # in it skipped as already applied.
        auto_offset_reset="none",
        max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
        fetch_max_bytes=_FETCH_BYTES,
        fetch_max_wait_ms=_FETCH_WAIT_MS,
    )
