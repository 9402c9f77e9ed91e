"""The workflow log on a real broker: the contract, what only a broker can do, and the client."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable
from headwater.schemas.history import (
    CommandRejected,
    CommandSent,
    HistoryAppended,
    PauseRun,
    ReplySent,
    RunStarted,
    StartRun,
)
from headwater.schemas.topics import (
    MAX_RECORD_BYTES,
    WORKFLOW_COMMANDS,
    WORKFLOW_HISTORY,
    WORKFLOW_REPLIES,
)
from headwater.streams.clock import monotonic, now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.kafka.topics import create_topics
from headwater.streams.workflows import history_lease
from headwater.streams.workflows.client import Addressed, OutcomeUnknown, WorkflowClient
from headwater.streams.workflows.history_lease import OwnershipLost
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.ownership import GROUP
from tests import workflow_parts
from tests.fakes.workflow_log import (
    KEY,
    Place,
    Run,
    Scenario,
    WorkflowLogContract,
    a_record,
    append,
    counted,
    some,
)
from tests.integration.consumers import open_consumers
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import until

#: The port of nobody: refused at once.
NOBODY = "127.0.0.1:1"
PARTITIONS = 4
_OPENED = itertools.count(1)


@pytest.fixture(scope="module")
def topics(scratch: Path) -> Iterator[str]:
    """A broker that has the topics of the catalogue.

    It is nobody else's: what is written here is no history that an owner could take over.
    """
    broker = ThrowawayKafka(scratch / "kafka of the workflow log", port=0, report=print)
    try:
        bootstrap = broker.start()
        asyncio.run(create_topics(Cluster(bootstrap), partitions=PARTITIONS, replication=1))
        yield bootstrap
    finally:
        broker.kill()


def a_log(bootstrap: str) -> WorkflowLog:
    return WorkflowLog(
        cluster=Cluster(bootstrap),
        client_id=f"test-{next(_OPENED)}",
        clock=BrokerClock(now_ms, monotonic),
    )


def on_kafka(bootstrap: str) -> Run:
    async def whole(scenario: Scenario) -> None:
        position = Place(lambda: a_log(bootstrap), tuple(range(PARTITIONS)))
        try:
            await scenario(position)
        finally:
            await asyncio.gather(*(log.stop() for log in position.opened))

    return lambda scenario: asyncio.run(whole(scenario))


@pytest.fixture(params=[on_kafka])
def run(request: pytest.FixtureRequest, topics: str) -> Run:
    """Runs a scenario; a log in memory is one more parameter."""
    made: Run = request.param(topics)
    return made


class TestWorkflowLog(WorkflowLogContract):
    """The contract."""


def test_holes_of_control_records_are_no_claims(topics: str, run: Run):
    async def scenario(place: Place) -> None:
        log, partition = place.log(), place.partition
        epoch = await log.claim(partition, "worker-1")
        async with transactional(topics) as producer, producer.transaction():
            value = encode(a_record(epoch - 1, 99))
            await producer.send(WORKFLOW_HISTORY, value, KEY, partition)
        # The foreign record and the end of its transaction, which comes by itself, lie between.
        await ended(topics, partition, epoch + 3)
        assert await append(log, partition, some(epoch, 1)) == epoch + 3
        assert await counted(log, partition, epoch, epoch + 4) == [(epoch + 3, 0)]

    run(scenario)


async def ended(bootstrap: str, partition: int, offset: int) -> None:
    """Waits for the log to reach an offset, with a bound."""
    where = TopicPartition(WORKFLOW_HISTORY, partition)
    async with asyncio.timeout(60), AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([where])
        while (await consumer.end_offsets([where]))[where] < offset:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.01)


def transactional(bootstrap: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="a-hole")


def test_what_is_queued_behind_a_refused_batch_is_refused_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    # ADR 0006, K2: without this a later decision could stand where an earlier one does not.
    monkeypatch.setattr(
        "headwater.streams.workflows.history_lease.MAX_VALUE_BYTES", 2 * MAX_RECORD_BYTES
    )

    async def scenario(place: Place) -> None:
        log, partition, other = place.log(), *place.partitions[:2]
        epoch, elsewhere = [await log.claim(p, "worker-1") for p in (partition, other)]
        refused = append(log, partition, [(KEY, a_record(epoch, 0, MAX_RECORD_BYTES))])
        behind = append(log, partition, some(epoch, 1, 1))
        outcomes = await asyncio.gather(refused, behind, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OwnershipLost, OwnershipLost]
        # The producer is of no more use for this partition, and claims go through another.
        assert await append(log, other, some(elsewhere, 1)) == elsewhere + 1
        assert await log.claim(partition, "worker-1") == epoch + 1
        assert await append(log, partition, some(epoch + 1, 1)) == epoch + 2

    run(scenario)


def test_who_writes_what_not_everybody_reads_waits_before_claiming_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    def newer(_: object) -> bytes:
        raise NotYetReadable("expected a form that all members read, found a newer one")

    async def scenario(place: Place) -> None:
        log, partition = place.log(), place.partition
        epoch = await log.claim(partition, "worker-1")
        monkeypatch.setattr(history_lease, "encode", newer)
        with pytest.raises(OwnershipLost) as lost:
            await append(log, partition, some(epoch, 1))
        assert lost.value.pause_s == 5.0

    run(scenario)


def test_who_reads_no_further_leaves_no_consumer_open(run: Run):
    async def scenario(place: Place) -> None:
        log, partition = place.log(), place.partition
        epoch = await log.claim(partition, "worker-1")
        await append(log, partition, some(epoch, 3))
        before = open_consumers()
        async with aclosing(log.read(partition, 0, epoch + 1)) as batches:
            async for _ in batches:
                break
        assert open_consumers() == before

    run(scenario)


def test_without_a_broker_the_log_says_so() -> None:
    async def whole() -> None:
        log = a_log(NOBODY)
        for attempt in (log.start(), log.claim(0, "worker-1"), drained(log), log.partitions()):
            with pytest.raises(BrokerUnavailable, match=NOBODY):
                await attempt
        await log.stop()

    async def drained(log: WorkflowLog) -> None:
        async for _ in log.read(0, 0, 1):
            pass

    asyncio.run(whole())


async def replied(appender: Appender, replies: Sequence[tuple[int, ReplySent]]) -> None:
    await appender.append(
        [Outgoing(WORKFLOW_REPLIES, to, None, encode(reply)) for to, reply in replies]
    )


class FakeOwner:
    """Owns all partitions, starts every run and refuses every other command."""

    def __init__(self, bootstrap: str) -> None:
        self.log = a_log(bootstrap)
        self.replies = Appender(cluster=Cluster(bootstrap), client_id="replies")
        self.bootstrap = bootstrap
        self.commands: list[CommandSent] = []

    async def run(self, ready: asyncio.Event) -> None:
        epochs = {p: await self.log.claim(p, "fake") for p in range(await self.log.partitions())}
        where = [TopicPartition(WORKFLOW_COMMANDS, partition) for partition in epochs]
        servers = self.bootstrap
        # Clients wait for outcomes only while the group of the workers has a member.
        member = AIOKafkaConsumer(WORKFLOW_COMMANDS, bootstrap_servers=servers, group_id=GROUP)
        async with AIOKafkaConsumer(bootstrap_servers=servers) as consumer, member:
            consumer.assign(where)
            await consumer.seek_to_end(*where)
            await asyncio.gather(*(consumer.position(item) for item in where))
            ready.set()
            while True:
                for at, records in (await consumer.getmany(timeout_ms=1_000)).items():
                    await self.carry_out(at.partition, epochs[at.partition], records)

    async def carry_out(self, partition: int, epoch: int, records: list[Incoming]) -> None:
        commands = [decode(record.value, CommandSent) for record in records]
        self.commands += commands
        group = [
            (record.key or b"", self.outcome(epoch, record.offset, sent))
            for record, sent in zip(records, commands, strict=True)
        ]
        first = await append(self.log, partition, group)
        replies = [
            (sent.reply_to, self.reply(sent, outcome, partition, first + number))
            for number, (sent, (_, outcome)) in enumerate(zip(commands, group, strict=True))
        ]
        await replied(self.replies, [*replies, *replies])

    @staticmethod
    def outcome(epoch: int, cause: int, sent: CommandSent) -> HistoryAppended:
        starts = isinstance(sent.command, StartRun)
        return HistoryAppended(
            workflow=sent.workflow,
            instance_id=sent.instance_id,
            run_number=0,
            sequence=0,
            epoch=epoch,
            cause=cause,
            at_ms=sent.sent_at_ms,
            events=(RunStarted("{}", "seed") if starts else CommandRejected("not_running", "no"),),
        )

    @staticmethod
    def reply(
        sent: CommandSent, outcome: HistoryAppended, partition: int, position: int
    ) -> ReplySent:
        event = outcome.events[0]
        refused = isinstance(event, CommandRejected)
        return ReplySent(
            command_id=sent.command_id,
            code=event.code if refused else "",
            message=event.message if refused else "",
            status="none" if refused else "running",
            run_number=0,
            partition=partition,
            position=position,
        )


def a_client(bootstrap: str, client_id: str, timeout_s: float = 20.0) -> WorkflowClient:
    new_id = map(f"{client_id}-{{}}".format, itertools.count(1)).__next__
    return workflow_parts.a_client(bootstrap, client_id, timeout_s, new_id)


async def connected(client: WorkflowClient) -> None:
    await client.start()
    await until(lambda: client.ready)


def with_owner(
    topics: str, scenario: Callable[[FakeOwner, WorkflowClient, WorkflowClient], Awaitable[None]]
) -> None:
    """Runs a scenario with an owner and two clients."""

    async def whole() -> None:
        owner, ready = FakeOwner(topics), asyncio.Event()
        running = asyncio.create_task(owner.run(ready))
        clients = [a_client(topics, name) for name in ("one", "two")]
        try:
            await asyncio.gather(ready.wait(), *map(connected, clients))
            await scenario(owner, *clients)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.gather(
                owner.log.stop(), owner.replies.stop(), *(client.stop() for client in clients)
            )

    asyncio.run(whole())


def test_a_command_comes_back_with_its_outcome(topics: str):
    async def scenario(owner: FakeOwner, client: WorkflowClient, _: WorkflowClient) -> None:
        started = await client.send("orders", "1", StartRun("{}"), command_id="first")
        assert (started.command_id, started.code, started.status) == ("first", "", "running")
        refused = await client.send("orders", "1", PauseRun())
        assert (refused.command_id, refused.code) == ("one-1", "not_running")
        assert refused.partition == started.partition
        assert refused.position == started.position + 1
        at = refused.position
        ((_, reported),) = [
            placed
            async for batch in owner.log.read(refused.partition, at, at + 1)
            for placed in batch
        ]
        assert reported.events == (CommandRejected("not_running", "no"),)

    with_owner(topics, scenario)


def test_many_commands_of_many_senders_all_come_back(topics: str):
    async def scenario(owner: FakeOwner, one: WorkflowClient, two: WorkflowClient) -> None:
        async def sends(client: WorkflowClient, number: int) -> None:
            requested = [Addressed("orders", f"{number}-{n}", StartRun("{}")) for n in range(5)]
            replies = await client.send_many(requested)
            assert len({reply.command_id for reply in replies}) == 5
            assert all(reply.code == "" for reply in replies)

        began = time.perf_counter()
        await asyncio.gather(*(sends(client, n) for n in range(100) for client in (one, two)))
        took = time.perf_counter() - began
        print(f"\n1,000 commands of 200 senders there and back in {took * 1_000:.0f} ms")  # noqa: T201
        began = time.perf_counter()
        for _ in range(50):
            await one.send("orders", "1", PauseRun())
        took = time.perf_counter() - began
        print(f"one command there and back in {took * 20:.1f} ms")  # noqa: T201
        assert len(owner.commands) == 1_050
        assert await one.send_many([]) == []

    with_owner(topics, scenario)


def test_commands_to_one_instance_arrive_in_the_order_of_the_calls(topics: str):
    async def scenario(owner: FakeOwner, client: WorkflowClient, _: WorkflowClient) -> None:
        ids = [f"in-order-{n}" for n in range(1_200)]
        sends = (client.send("orders", "1", PauseRun(), command_id=one) for one in ids)
        replies = await asyncio.gather(*sends)
        assert [reply.command_id for reply in replies] == ids
        assert [command.command_id for command in owner.commands] == ids

    with_owner(topics, scenario)


def test_a_command_with_the_id_of_one_under_way_is_that_one(topics: str):
    async def scenario(owner: FakeOwner, client: WorkflowClient, _: WorkflowClient) -> None:
        both = (client.send("orders", "1", PauseRun(), command_id="same") for _ in range(2))
        first, second = await asyncio.gather(*both)
        assert first == second
        assert len(owner.commands) == 1

    with_owner(topics, scenario)


def test_without_a_worker_the_outcome_is_unknown_and_the_command_stays(topics: str):
    async def whole() -> None:
        client, waiting = a_client(topics, "three"), a_client(topics, "three")
        await asyncio.gather(connected(client), connected(waiting))
        sent = [Addressed("orders", "late", StartRun("{}"), name) for name in ("a-late", "b-late")]
        with pytest.raises(OutcomeUnknown, match="expected a worker") as raised:
            await client.send_many(sent)
        assert raised.value.command_ids == ("a-late", "b-late")
        partition = partition_of(b"orders/late", PARTITIONS)
        read = read_partition(Cluster(topics), [WORKFLOW_COMMANDS], partition)
        commands = [
            decode(record.value, CommandSent) async for records in read for record in records
        ]
        assert [command.command_id for command in commands][-2:] == ["a-late", "b-late"]
        # The replies come after all: nobody waits for them, and they stand in nobody's way.
        owner = Appender(cluster=Cluster(topics), client_id="late")
        outcome = FakeOwner.outcome(0, 0, commands[-1])
        late = FakeOwner.reply(commands[-1], outcome, partition, 0)
        await replied(owner, [(commands[-1].reply_to, late)])
        send = asyncio.create_task(waiting.send("orders", "x", PauseRun(), command_id="c"))
        reply = FakeOwner.reply(commands[-1], outcome, partition, 1)
        reply = msgspec.structs.replace(reply, command_id="c")
        async with asyncio.timeout(60):
            while not send.done():
                await replied(owner, [(commands[-1].reply_to, reply)])
        assert await send == reply
        await asyncio.gather(owner.stop(), client.stop(), waiting.stop())

    asyncio.run(whole())


def test_without_a_broker_a_client_starts_and_says_so():
    async def whole() -> None:
        client = a_client(NOBODY, "nobody")
        await client.start()
        with pytest.raises(BrokerUnavailable, match=NOBODY):
            await client.send("orders", "1", PauseRun())
        await client.stop()

    asyncio.run(whole())
