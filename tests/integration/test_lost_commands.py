"""Commands that take the offsets of others, which the broker lost after they were carried out."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from headwater.processors.runs.claims import Claims
from headwater.schemas.codec import decode
from headwater.schemas.history import (
    HistoryAppended,
    LeaderEpochNoted,
    ReplySent,
    RunStarted,
    StartRun,
)
from headwater.schemas.topics import WORKFLOW_COMMANDS, WORKFLOW_HISTORY
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets, read_partition
from headwater.streams.kafka.topics import create_topics
from tests.cut_logs import cut
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import until
from tests.workflow_parts import a_client, a_worker, running, started

#: One partition, so that all commands are in it.
COMMANDS = TopicPartition(WORKFLOW_COMMANDS, 0)
HOUR = StartRun("3600000")
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def broker(scratch: Path) -> Iterator[ThrowawayKafka]:
    broker = ThrowawayKafka(scratch / "kafka that loses commands", port=0, report=print)
    try:
        asyncio.run(create_topics(Cluster(broker.start()), partitions=1, replication=1))
        yield broker
    finally:
        broker.kill()


class System:
    """A broker that loses commands, and who sends them.

    Offsets of commands are counted from where a test begins.
    """

    def __init__(self, broker: ThrowawayKafka, name: str) -> None:
        self._broker, self._name = broker, name
        self._named = 0
        self.first = 0
        self._history_from = 0

    @classmethod
    async def begun_at(cls, broker: ThrowawayKafka, name: str) -> "System":
        """Begin behind what other tests have left; instances are named after the test."""
        system = cls(broker, name)
        offsets = Offsets(Cluster(broker.start()), "tests")
        try:
            ends = await offsets.ends([COMMANDS.topic, WORKFLOW_HISTORY], COMMANDS.partition)
        finally:
            await offsets.stop()
        system.first, system._history_from = ends[COMMANDS.topic], ends[WORKFLOW_HISTORY]
        return system

    async def send(self, count: int) -> list[ReplySent]:
        """Create instances, one after the other: each command is in a batch of its own."""
        return [await self._create() for _ in range(count)]

    async def _create(self) -> ReplySent:
        self._named += 1
        return await self._client.send("sleeper", f"{self._name}-{self._named}", HOUR)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[None]:
        """Have a client: the broker refuses what follows what it has lost of the one before."""
        client = a_client(self._broker.start(), timeout_s=PATIENCE_S, restarted_within_s=600)
        async with started(client):
            await until(lambda: client.ready)
            self._client = client
            yield

    async def end(self) -> int:
        offsets = Offsets(Cluster(self._broker.start()), "tests")
        try:
            ends = await offsets.ends([COMMANDS.topic], COMMANDS.partition)
            return ends[COMMANDS.topic] - self.first
        finally:
            await offsets.stop()

    async def lose_from(self, first: int) -> None:
        """Have the broker lose commands, as a power failure does."""
        await asyncio.to_thread(self._broker.kill)
        cut(self._broker, *COMMANDS, self.first + first)
        await asyncio.to_thread(self._broker.start)

    async def make_anew(self) -> None:
        """Make the topic of the commands anew."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._broker.start())
        await admin.start()
        await admin.delete_topics([COMMANDS.topic])
        await admin.close()
        made: list[str] = []
        while not made:
            made = await create_topics(Cluster(self._broker.start()), partitions=1, replication=1)
        self.first = 0

    async def send_without_a_worker(self, end: int) -> "list[asyncio.Task[ReplySent]]":
        """Append commands until the partition has this end; nobody carries them out yet."""
        requested = [asyncio.create_task(self._create()) for _ in range(end - await self.end())]
        while await self.end() < end:  # noqa: ASYNC110, Kafka tells nobody
            await asyncio.sleep(0.05)
        return requested

    async def _history(self) -> list[HistoryAppended]:
        """The records that count, since the test has begun."""
        claims, result = Claims(), []
        cluster = Cluster(self._broker.start())
        async for records in read_partition(cluster, [WORKFLOW_HISTORY], 0):
            for record in records:
                appended = decode(record.value, HistoryAppended)
                if claims.admit(record.offset, appended) and record.offset >= self._history_from:
                    result.append(appended)
        return result

    async def begun(self) -> list[str]:
        """The instances whose runs have begun."""
        return [
            record.instance_id
            for record in await self._history()
            if isinstance(record.events[0], RunStarted)
        ]

    async def losses(self) -> list[int]:
        """From where on commands were lost, as the history has it."""
        return [
            event.lost_from - self.first
            for record in await self._history()
            for event in record.events
            if isinstance(event, LeaderEpochNoted) and event.lost_from >= 0
        ]


async def answers(asked: "Sequence[asyncio.Task[ReplySent]]") -> list[str]:
    return [reply.code for reply in await asyncio.gather(*asked)]


# Twelve commands are carried out, of which six are lost; the parameters are where they end then.


@pytest.mark.parametrize(
    "end", [pytest.param(9, marks=pytest.mark.soak), 15], ids=["shorter", "longer"]
)
def test_a_worker_carries_out_commands_at_offsets_of_lost_ones(
    broker: ThrowawayKafka, caplog: pytest.LogCaptureFixture, end: int
):
    async def scenario() -> None:
        system = await System.begun_at(broker, "between")
        async with system.client(), running(a_worker(broker.start())):
            await system.send(12)
        await system.lose_from(6)
        async with system.client():
            requested = await system.send_without_a_worker(end)
            async with running(a_worker(broker.start())):
                assert await answers(requested) == [""] * len(requested)
                assert [reply.code for reply in await system.send(3)] == [""] * 3
            assert await system.losses() == [6]
            lost = f"workflow-commands/0 from offset {system.first + 6} to {system.first + 11}"
            assert lost in caplog.text
            # Nothing is lost, or carried out twice, when it is taken over once more.
            async with running(a_worker(broker.start())):
                assert [reply.code for reply in await system.send(3)] == [""] * 3
            assert await system.losses() == [6]
            begun = await system.begun()
            assert len(begun) == len(set(begun)) == 12 + len(requested) + 6

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "end", [pytest.param(12, marks=pytest.mark.soak), 15], ids=["as long", "longer"]
)
def test_a_worker_whose_commands_are_lost_while_it_owns_them_carries_out_later_ones(
    broker: ThrowawayKafka, end: int
):
    async def scenario() -> None:
        system = await System.begun_at(broker, "meanwhile")
        worker = a_worker(broker.start())
        async with running(worker):
            async with system.client():
                await system.send(12)
            # So that all of them have come when it fetches again.
            reader, before = worker._ownership._reader, worker._driver.partitions[0]
            reader._consumer.pause(COMMANDS)
            await system.lose_from(6)
            async with system.client():
                requested = await system.send_without_a_worker(end)
                if worker._driver.partitions.get(0) is before:
                    reader._consumer.resume(COMMANDS)
                assert await answers(requested) == [""] * len(requested)
                assert [reply.code for reply in await system.send(3)] == [""] * 3
        assert await system.losses() == [6]

    asyncio.run(scenario())


def test_a_worker_says_which_commands_it_cannot_tell_from_those_of_an_earlier_log(
    broker: ThrowawayKafka, caplog: pytest.LogCaptureFixture
):
    """The topic is made anew."""

    async def scenario() -> None:
        system = await System.begun_at(broker, "anew")
        async with running(a_worker(broker.start())), system.client():
            await system.send(4)
        await system.make_anew()
        async with system.client():
            (passed_over,) = await system.send_without_a_worker(1)
            async with running(a_worker(broker.start())):
                await until(lambda: "is another log than the one whose" in caplog.text)
                assert [reply.code for reply in await system.send(5)] == [""] * 5
                assert not passed_over.done()
                passed_over.cancel()
            # The same after another takeover.
            async with running(a_worker(broker.start())):
                assert [reply.code for reply in await system.send(2)] == [""] * 2
        assert await system.losses() == [1]
        assert "appended to it before offset 1 since then are not executed" in caplog.text

    asyncio.run(scenario())
