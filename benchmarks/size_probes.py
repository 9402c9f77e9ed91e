"""Deliveries that show whether a worker has acquired its partitions, with all of their state.

For every partition: one for an existing row, with fewer columns than that has; and a duplicate, by
its event id, of the first claimed delivery. The row keeps its other columns, the duplicate has no
outcome.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.children import BenchmarkFailed
from benchmarks.payloads import USERS
from benchmarks.raw import received
from benchmarks.size_load import claimed_ids
from benchmarks.system import PARTITIONS
from headwater.schemas.codec import decode_row, encode
from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import OUTCOMES, WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Outgoing, partition_of

_KEPT: Final = "resting_heart_rate"
_PATIENCE_S: Final = 3 * 60 * 60.0


class Probes:
    """Deliveries of a benchmark, and the number of outcomes to expect."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._outcomes = 0
        self._round = 0

    async def send(self) -> None:
        """Send both deliveries to every partition."""
        self._round += 1
        appender = Appender(cluster=Cluster(self._bootstrap), client_id="bench-size-probes")
        try:
            await appender.append([one for number in range(PARTITIONS) for one in self._of(number)])
        finally:
            await appender.stop()
        self._outcomes += PARTITIONS

    def sent(self, deliveries: int) -> None:
        """Count deliveries that another process has sent."""
        self._outcomes += deliveries

    async def answered(self, check: Callable[[], None]) -> None:
        """Wait until all deliveries have their outcome.

        Raises:
            BenchmarkFailed: Outcomes are missing or superfluous.
        """
        outcomes, deadline = set[bytes](), time.monotonic() + _PATIENCE_S
        consumer = await _consumer(self._bootstrap, OUTCOMES)
        try:
            await consumer.seek_to_beginning()
            while len(outcomes) < self._outcomes:
                check()
                if time.monotonic() > deadline:
                    raise BenchmarkFailed(
                        f"expected {self._outcomes} outcomes, found {len(outcomes)}"
                    )
                fetched = await consumer.getmany(timeout_ms=100)
                # By event id: work that a killed worker had not committed is repeated.
                outcomes.update(
                    record.key or b""
                    for records in fetched.values()
                    for record in records
                    if record.value
                )
        finally:
            await consumer.stop()
        if len(outcomes) > self._outcomes:
            raise BenchmarkFailed(
                f"expected {self._outcomes} outcomes, found {len(outcomes)}: duplicates were kept"
            )

    async def merged(self) -> None:
        """Check that the last rows, those of the probes, kept their other columns.

        Raises:
            BenchmarkFailed: A row lost a column.
        """
        index = [column.name for column in DAILY_SUMMARY.columns].index(_KEPT)
        consumer = await _consumer(self._bootstrap, DAILY_SUMMARY.topic)
        try:
            for tp, end in (await consumer.end_offsets(consumer.assignment())).items():
                consumer.seek(tp, end - 1)
                record = await consumer.getone(tp)
                row = decode_row(DAILY_SUMMARY, record.value)
                if row.values[index] is None or len(set(row.stamps) - {None}) < 2:
                    raise BenchmarkFailed(f"expected {row.key} to keep its {_KEPT}, found {row}")
        finally:
            await consumer.stop()

    def _of(self, partition: int) -> Iterator[Outgoing]:
        numbers = (n for n in range(USERS) if _partition(n) == partition)
        number = next(n for n in numbers if n >= 100 * self._round)
        fresh = _without_heart(received(number, time.time_ns() // 1_000_000), self._round)
        copied = msgspec.structs.replace(fresh, event_id=next(claimed_ids(partition)))
        for delivery in (fresh, copied):
            yield Outgoing(WEBHOOKS, partition, delivery.event_id.encode(), encode(delivery))


def _partition(number: int) -> int:
    return partition_of(b"user_%06d" % number, PARTITIONS)


def _without_heart(delivery: WebhookReceived, number: int) -> WebhookReceived:
    body = msgspec.json.decode(delivery.body)
    for record in body["data"]:
        del record["heart_rate_data"]
    # No delivery of the load has such an id.
    event_id = f"{number:08x}{delivery.event_id[8:]}"
    return msgspec.structs.replace(delivery, event_id=event_id, body=msgspec.json.encode(body))


async def _consumer(bootstrap: str, topic: str) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
    return consumer
