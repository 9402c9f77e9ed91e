"""Histories of workflows on their whole way: a real Kafka, projectors that die, a real Postgres."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import psycopg
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headwater.projections.deliveries.queries import Reader
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.projector import Projector
from headwater.projections.projector.store import Store
from headwater.projections.workflows.plan import workflows_kept
from headwater.projections.workflows.queries import RunKey, Workflows
from headwater.schemas.history import (
    EntryCompleted,
    EntryOpened,
    EventReceived,
    LogWritten,
    LoopAdvanced,
    RunCompleted,
    RunStarted,
    RunSuspended,
    RunTerminated,
    StepCompleted,
)
from headwater.schemas.statuses import EntryKind
from headwater.streams.kafka import truncation
from headwater.streams.kafka.cluster import Cluster
from tests.integration.test_workflow_projection import NOW_MS, rows_of
from tests.unit.projections.histories import START_MS, Log
from tests.unit.projections.workflow_fold import RETENTION

PATIENCE_S = 120.0
#: A topic of its own: the broker is that of all tests.
PROJECTION = dataclasses.replace(
    workflows_kept(RETENTION), topics=("projected-history",), group="projected"
)
PARTITIONS = 2


def step(key: str, ordinal: int) -> StepCompleted:
    return StepCompleted(key, key, ordinal, START_MS, 1, 6, 600_000, '{"of":  1}')


def first_half() -> Log:
    log = Log([[] for _ in range(PARTITIONS)])
    for number in range(PARTITIONS):
        log.claim(number)
    for n in range(200):
        position = {"partition": n % PARTITIONS}
        log.write(f"i{n}", RunStarted(f'{{"n": {n}}}', "s"), **position)
        wait = EntryOpened("paid", "paid", EntryKind.WAIT, 1, None, ("paid",))
        log.write(f"i{n}", step("quote", 0), wait, RunSuspended(), **position)
    return log


def second_half(log: Log) -> None:
    """Another owner, to whom the first one is a zombie; a loop; another run; the ends."""
    old = dict(log.epochs)
    for number in range(PARTITIONS):
        log.claim(number, owner="you")
    for n in range(200):
        number = n % PARTITIONS
        log.write(f"i{n}", RunTerminated("void"), partition=number, epoch=old[number])
        paid = EventReceived("e1", "paid", "1", START_MS)
        log.write(f"i{n}", paid, EntryCompleted("paid", "1", ("e1",)), partition=number)
        log.write(f"i{n}", step("void", 2), partition=number, epoch=old[number])
        log.write(f"i{n}", LogWritten("info", "money", "charged"), partition=number)
    for n in range(50):
        log.write("i0", step(f"pages/~{n}/fetch", 2 + n))
        log.write("i0", LoopAdvanced("pages", n, "null", max(0, n - 9)))
    log.write("i1", RunStarted("{}", "s"), run_number=1, partition=1)
    log.write("i1", RunCompleted('"again"'), run_number=1, partition=1)


class System:
    """A topic of a real broker, and a database."""

    def __init__(self, bootstrap: str, dsn: str, projection: Projection = PROJECTION) -> None:
        self.projection = projection
        self.bootstrap = bootstrap
        self.dsn = dsn
        self.moved = asyncio.Event()
        self.ends = [0] * PARTITIONS

    async def make_topic(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(self.projection.topics[0], PARTITIONS, 1)])
        finally:
            await admin.close()

    async def append(self, log: Log) -> None:
        """Appends what the log has more than the topic; offsets are those of the log."""
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=5)
        await producer.start()
        try:
            for number in range(PARTITIONS):
                records = log.records(number, self.ends[number])
                sent = [
                    await producer.send(self.projection.topics[0], r.value, r.key, partition=number)
                    for r in records
                ]
                placed = await asyncio.gather(*sent)
                assert [position.offset for position in placed] == [r.offset for r in records]
                self.ends[number] += len(records)
        finally:
            await producer.stop()

    def start(self) -> tuple["asyncio.Task[None]", asyncio.Event]:
        stop = asyncio.Event()
        projector = Projector(
            cluster=Cluster(self.bootstrap),
            store=Store(self.dsn, projection=self.projection, clock=lambda: NOW_MS),
            clock=lambda: NOW_MS,
            detector=truncation,
            on_batch=lambda _: self.moved.set(),
            projection=self.projection,
        )
        return asyncio.create_task(projector.run(stop)), stop

    async def until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await reached():
                self.moved.clear()
                try:
                    async with asyncio.timeout(0.2):
                        await self.moved.wait()
                except TimeoutError:
                    continue

    async def applied(self) -> list[int]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            query = "select next_offset from projection_offsets order by partition"
            return [item for (item,) in await (await connection.execute(query)).fetchall()]

    async def all_is_applied(self) -> bool:
        return await self.applied() == self.ends


def test_the_rows_are_those_of_the_fold_whatever_happens_to_projectors(kafka: str, migrated: str):
    log = first_half()

    async def scenario() -> None:
        system = System(kafka, migrated)
        await system.make_topic()
        await system.append(log)
        running, _ = system.start()
        async with asyncio.timeout(PATIENCE_S):
            await system.moved.wait()
        running.cancel()  # it may have a batch in hand
        await asyncio.gather(running, return_exceptions=True)
        second_half(log)
        await system.append(log)
        running, stop = system.start()
        other, other_stop = system.start()
        await system.until(system.all_is_applied)
        for item in (stop, other_stop):
            item.set()
        await asyncio.gather(running, other)

    asyncio.run(scenario())
    result = rows_of(migrated)
    assert result == log.fold().rows()
    assert {row["status"] for row in result["workflow_instance"]} == {"active", "complete"}
    asyncio.run(can_be_read(migrated))


async def can_be_read(dsn: str) -> None:
    async with Reader(dsn) as reader:
        workflows = Workflows(reader)
        steps = await workflows.steps(RunKey("order", "i0", 0), limit=100)
        assert [row.step_key for row in steps.rows] == [
            "quote",
            "paid",
            *(f"pages/~{n}/fetch" for n in range(40, 50)),
        ]
        result = await workflows.instance("order", "i1")
        assert result is not None
        assert (result.instance.details.status, result.instance.meta.run_number) == ("complete", 1)
        assert bytes(result.instance.details.output) == b'"again"'
