"""Projectors in the process of a test, on a broker of a module, and on a database of each test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psycopg
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from headwater.projections.deliveries.plan import DELIVERIES, TOPICS
from headwater.projections.projector.projection import Partition
from headwater.projections.projector.projector import Projector
from headwater.projections.projector.store import Store
from headwater.streams.kafka import truncation
from headwater.streams.kafka.cluster import Cluster
from tests.integration.written import Written
from tests.throwaway_kafka import ThrowawayKafka

PARTITIONS = 2
NOW_MS = 1_767_300_000_000
PATIENCE_S = 120.0

Ends = dict[Partition, int]


@contextlib.contextmanager
def with_topics(directory: Path) -> Iterator[ThrowawayKafka]:
    """A broker that has the topics of the deliveries."""
    broker = ThrowawayKafka(directory, port=0, report=print)
    try:
        asyncio.run(make_topics(broker.start()))
        yield broker
    finally:
        broker.kill()


async def make_topics(bootstrap: str, *more: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in more or TOPICS])
    finally:
        await admin.close()


class System:
    """The topics, a fresh database, and as many projectors as a test likes."""

    def __init__(self, bootstrap: str, dsn: str) -> None:
        self.bootstrap = bootstrap
        self.dsn = dsn
        self.moved = asyncio.Event()

    async def write(self, *records: Written) -> Ends:
        """Appends records; returns where their partitions end."""
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=5)
        await producer.start()
        try:
            sent = [
                await producer.send(
                    r.topic, r.value, r.key, partition=r.partition, headers=list(r.headers)
                )
                for r in records
            ]
            placed = await asyncio.gather(*sent)
        finally:
            await producer.stop()
        return {(position.topic, position.partition): position.offset + 1 for position in placed}

    def make_projector(self, **more: float) -> Projector:
        return Projector(
            projection=DELIVERIES,
            cluster=Cluster(self.bootstrap),
            store=Store(self.dsn, projection=DELIVERIES, clock=lambda: NOW_MS, **more),
            clock=lambda: NOW_MS,
            detector=truncation,
            on_batch=lambda _: self.moved.set(),
        )

    @contextlib.asynccontextmanager
    async def projector(self, **more: float) -> AsyncIterator[Projector]:
        stop = asyncio.Event()
        projector = self.make_projector(**more)
        running = asyncio.create_task(projector.run(stop))
        try:
            yield projector
        finally:
            stop.set()
            await running

    async def until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        """Waits until something is reached, looking after each batch and now and then."""
        async with asyncio.timeout(PATIENCE_S):
            while not await reached():
                self.moved.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await self.moved.wait()

    async def until_applied(self, ends: Ends) -> None:
        async def reached() -> bool:
            rows = await self.rows("select topic, partition, next_offset from projection_offsets")
            stored = {(topic, number): offset for topic, number, offset in rows}
            return all(stored.get(position, 0) >= end for position, end in ends.items())

        await self.until(reached)

    async def rows(self, query: str, **parameters: object) -> list[tuple]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            return await (await connection.execute(query.encode(), parameters)).fetchall()


def in_a_system(
    broker: ThrowawayKafka, dsn: str, scenario: Callable[[System], Awaitable[None]]
) -> None:
    async def run() -> None:
        await scenario(System(broker.start(), dsn))

    asyncio.run(run())


async def forget(bootstrap: str, place: Partition, before: int) -> None:
    """Takes the records before an offset out of a partition: other tests read it, too."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(*place): RecordsToDelete(before)})
    finally:
        await admin.close()
