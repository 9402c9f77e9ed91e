"""Appending to Kafka, many records at a time.

One await per call, not per record: records are packed into one batch a partition and sent with
`acks=all` by an idempotent producer. `send()` would cost a future and a task switch a record.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, cast

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas.errors import BrokerUnavailable
from schemas.topics import MAX_RECORD_BYTES
from streams.records import Outgoing

#: Large enough that a batch of a thousand small records is one or two Kafka batches; four of these
#: fit the broker's default request limit of 100 MB many times over.
_BATCH_BYTES: Final = 512 * 1024


class Appender:
    """An idempotent producer that appends lists of records; connects when first used."""

    def __init__(self, *, bootstrap: str, client_id: str) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._producer: AIOKafkaProducer | None = None
        self._connecting = asyncio.Lock()

    async def start(self) -> None:
        """Connects now rather than at the first use.

        Errors: BrokerUnavailable when no broker answers.
        """
        async with self._connecting:
            if self._producer is None:
                self._producer = await self._connect()

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id=self._client_id,
            acks="all",
            enable_idempotence=True,
            max_batch_size=_BATCH_BYTES,
            max_request_size=MAX_RECORD_BYTES,
            request_timeout_ms=30_000,
        )
        try:
            await producer.start()
        except (KafkaError, OSError) as error:
            await producer.stop()
            raise BrokerUnavailable(
                f"expected Kafka at {self._bootstrap}, found no broker that answers: {error}"
            ) from error
        return producer

    async def stop(self) -> None:
        """Sends what is pending and disconnects."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()

    async def partitions(self, topic: str) -> int:
        """The number of partitions of a topic.

        Errors: BrokerUnavailable, also when there is no such topic.
        """
        try:
            found = await (await self._connected()).partitions_for(topic)
        except (KafkaError, OSError) as error:
            raise BrokerUnavailable(
                f"expected the topic {topic} at {self._bootstrap}, found: {error!r}; "
                "`headwater topics create` makes the topics"
            ) from error
        return len(found)

    async def append(self, records: Sequence[Outgoing]) -> None:
        """Appends records and returns when the broker has acknowledged every one of them.

        The order is kept within a partition.
        Errors: BrokerUnavailable; some of the records may then be in the log.
        """
        if not records:
            return
        producer = await self._connected()
        by_partition: dict[tuple[str, int], list[Outgoing]] = defaultdict(list)
        for record in records:
            by_partition[record[0], record[1]].append(record)
        pending: list[asyncio.Future[object]] = []
        try:
            for (topic, partition), group in by_partition.items():
                await self._send_group(producer, topic, partition, group, pending)
            await asyncio.gather(*pending)
        except (KafkaError, OSError) as error:
            raise BrokerUnavailable(
                f"expected {len(records)} records acknowledged by {self._bootstrap}, "
                f"found: {error!r}"
            ) from error

    @staticmethod
    async def _send_group(
        producer: AIOKafkaProducer,
        topic: str,
        partition: int,
        group: list[Outgoing],
        pending: list[asyncio.Future[object]],
    ) -> None:
        batch = producer.create_batch()
        for _, _, key, value, headers in group:
            headers = headers or []  # noqa: PLW2901, aiokafka takes lists only
            if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                pending.append(await producer.send_batch(batch, topic, partition=partition))
                batch = producer.create_batch()
                batch.append(timestamp=None, key=key, value=value, headers=headers)
        pending.append(await producer.send_batch(batch, topic, partition=partition))

    async def _connected(self) -> AIOKafkaProducer:
        if self._producer is None:
            await self.start()
        return cast("AIOKafkaProducer", self._producer)
