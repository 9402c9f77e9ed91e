"""Partitions without a leader: others go on, nobody waits for ever, and nothing is lost."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headwater.processors.providers.provider import Placement
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import StartRun
from headwater.schemas.records import WebhookReceived
from headwater.schemas.topics import DEAD_LETTERS, WEBHOOKS, WORKFLOW_HISTORY
from headwater.streams.clock import now_ms
from headwater.streams.kafka.append_queues import PartitionQueues
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.batch_sender import BatchSender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Outgoing, partition_of
from headwater.streams.kafka.topics import create_topics
from headwater.streams.pipeline.webhook_log import WebhookLog
from headwater.streams.workflows.client import OutcomeUnknown, WorkflowClient
from headwater.streams.workflows.worker import WorkflowWorker
from tests.e2e.workflow_system import Sender
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import until
from tests.workflow_parts import a_client, a_worker, running, started

PARTITIONS = 4
PATIENCE_S = 60.0
SENDERS = 32
DELIVERIES = 3_000
TAKEN = "INSTANCE_ID_ALREADY_EXISTS"
TEXT = StartRun('"x"')


class Brokers:
    """Two brokers; the controller is in the first."""

    def __init__(self, directory: Path) -> None:
        self.first = ThrowawayKafka(directory / "1", port=0, report=print)
        self.second = ThrowawayKafka(directory / "2", port=0, report=print, after=self.first)

    def start(self, replication: int) -> Cluster:
        cluster = Cluster(f"{self.first.start()},{self.second.start()}")
        asyncio.run(create_topics(cluster, partitions=PARTITIONS, replication=replication))
        return cluster

    def kill(self) -> None:
        self.second.kill()
        self.first.kill()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path)
    try:
        yield brokers
    finally:
        brokers.kill()


async def leaders(cluster: Cluster, topic: str) -> dict[int, int]:
    """The node that leads each partition, as far as one does."""
    admin = AIOKafkaAdminClient(**cluster.options())
    await admin.start()
    (described,) = await admin.describe_topics([topic])
    await admin.close()
    return {partition["partition"]: partition["leader"] for partition in described["partitions"]}


def test_partitions_that_have_a_leader_go_on_while_others_have_none(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
):
    cluster = brokers.start(replication=1)

    async def scenario() -> None:
        led: dict[int, int] = {}
        async with asyncio.timeout(PATIENCE_S):
            while not {1, 2} <= set(led.values()):
                led = await leaders(cluster, WEBHOOKS)
        (removed, *_), (there, *_) = (
            [partition for partition, leader in led.items() if leader == node] for node in (2, 1)
        )
        appender = Appender(cluster=cluster, client_id="test", slow_s=0.5, give_up_s=3)
        records = {
            partition: Outgoing(WEBHOOKS, partition, b"k", b"v") for partition in (removed, there)
        }
        for record in records.values():
            await appender.append([record])
        await asyncio.to_thread(brokers.second.kill)
        waiting = asyncio.create_task(appender.append([records[removed]]))
        meanwhile = 0
        while not waiting.done():
            await appender.append([records[there]])
            meanwhile += 1
        assert meanwhile > 1  # One alone could have waited for the end, too.
        with pytest.raises(BrokerUnavailable, match=f"1 records of webhooks/{removed} for 3 s"):
            await waiting
        assert f"1 records of webhooks/{removed} not acknowledged for 0 s" in caplog.text
        await appender.stop(within_s=0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


@pytest.mark.soak
def test_no_append_waits_for_ever_for_a_broker_that_is_gone(brokers: Brokers):
    cluster = brokers.start(replication=1)

    async def scenario() -> None:
        appender = Appender(cluster=cluster, client_id="test", slow_s=0.5, give_up_s=2)
        everywhere = [Outgoing(DEAD_LETTERS, number, b"k", b"v") for number in range(PARTITIONS)]
        await appender.append(everywhere)
        await asyncio.to_thread(brokers.kill)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(
                BrokerUnavailable, match=r"dead-letters/\d, 1 records of dead-letters/\d"
            ):
                await appender.append(everywhere)
        await appender.stop(within_s=0)

    asyncio.run(scenario())


class Senders:
    """Senders of webhooks, each of which tries again until it is answered."""

    def __init__(self, log: WebhookLog) -> None:
        self._log = log
        self._left = iter(range(DELIVERIES))
        self.answered: list[str] = []
        self.refused = 0
        self.slowest_s = 0.0

    async def run(self) -> None:
        await asyncio.gather(*(self._send() for _ in range(SENDERS)))

    async def _send(self) -> None:
        now = asyncio.get_running_loop().time
        for number in self._left:
            event_id = f"{number:032x}"
            began = now()
            while not await self._taken(event_id):
                self.refused += 1
                await asyncio.sleep(0.05)
            self.answered.append(event_id)
            self.slowest_s = max(self.slowest_s, now() - began)

    async def _taken(self, event_id: str) -> bool:
        try:
            await self._log.append(delivery(event_id))
        except BrokerUnavailable:
            return False
        return True

    async def until_answered(self, count: int) -> None:
        await until(lambda: len(self.answered) >= count)


def delivery(event_id: str) -> WebhookReceived:
    return WebhookReceived(
        event_id=event_id,
        request_id="r",
        source="terra",
        type="daily",
        subject=event_id,
        reference=None,
        sent_at_ms=0,
        updated_at_ms=0,
        received_at_ms=0,
        body=b"{}",
    )


@pytest.mark.soak
def test_nothing_is_lost_when_a_leader_is_killed_under_load(brokers: Brokers):
    cluster = brokers.start(replication=2)

    async def scenario() -> Senders:
        log = a_webhook_log(cluster)
        await log.start()
        await until(lambda: log.ready)
        assert 2 in (await leaders(cluster, WEBHOOKS)).values()
        senders = Senders(log)
        running = asyncio.create_task(senders.run())
        await senders.until_answered(DELIVERIES // 3)
        await asyncio.to_thread(brokers.second.kill)
        async with asyncio.timeout(PATIENCE_S):
            await running
        await log.stop()
        assert set((await leaders(cluster, WEBHOOKS)).values()) == {1}
        return senders

    senders = asyncio.run(scenario())
    result = asyncio.run(in_the_log(cluster))
    assert len(senders.answered) == DELIVERIES
    assert set(senders.answered) <= result.keys()
    # A retry is a new record only where the first try may be in the log already.
    assert sum(result.values()) <= DELIVERIES + senders.refused


# Half a minute, most of it waiting; that a producer waits for no leader is in test_leaderless.
@pytest.mark.soak
def test_deliveries_of_partitions_that_have_a_leader_are_taken_while_others_are_refused(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(Appender.__init__.__kwdefaults__, "give_up_s", 2.0)
    cluster = Cluster(f"{brokers.first.start()},{brokers.second.start()}")

    async def scenario() -> None:
        await create_topics(cluster, partitions=2, replication=1)
        await on_both(cluster, WEBHOOKS)
        log = a_webhook_log(cluster, append_timeout_s=5)
        await log.start()
        await until(lambda: log.ready)
        there, removed = (
            [f"{n:032x}" for n in range(1_000) if partition_of(b"%032x" % n, 2) == number]
            for number in range(2)
        )
        for item in (there.pop(), removed.pop()):
            await log.append(delivery(item))
        await asyncio.to_thread(brokers.second.kill)
        # That a broker is gone may hold up its clients for a moment, whatever they send.
        await taken(log, there.pop())
        refused = asyncio.create_task(all_refused(log, removed[:3]))
        while not refused.done():
            await log.append(delivery(there.pop()))
            await asyncio.sleep(0.02)
        await refused
        await asyncio.to_thread(brokers.second.start)
        await taken(log, removed[0])
        await log.stop()

    async def all_refused(log: WebhookLog, event_ids: list[str]) -> None:
        for event_id in event_ids:
            with pytest.raises(BrokerUnavailable):
                await log.append(delivery(event_id))

    asyncio.run(scenario())


def a_webhook_log(cluster: Cluster, append_timeout_s: float = 2) -> WebhookLog:
    return WebhookLog(
        cluster=cluster,
        append_timeout_s=append_timeout_s,
        placement=Placement({}, "user_"),
        clock=now_ms,
    )


async def taken(log: WebhookLog, event_id: str) -> None:
    """Returns once a delivery is taken."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await log.append(delivery(event_id))
            except BrokerUnavailable:
                await asyncio.sleep(0.1)
            else:
                return


async def on_both(cluster: Cluster, topic: str) -> None:
    """Has the brokers lead a partition of a topic each: 0 the first, 1 the second."""
    admin = AIOKafkaAdminClient(**cluster.options())
    await admin.start()
    await admin.delete_topics([topic])
    expected = NewTopic(topic, -1, -1, replica_assignments={0: [1], 1: [2]})
    async with asyncio.timeout(PATIENCE_S):
        while (await leaders(cluster, topic)) != {0: 1, 1: 2}:
            await admin.create_topics([expected])
            await asyncio.sleep(0.1)
    await admin.close()


@pytest.fixture
def history_of_both(brokers: Brokers) -> Cluster:
    """Everything is with the first broker, but for one partition of the history."""
    alone = Cluster(brokers.first.start())
    asyncio.run(create_topics(alone, partitions=2, replication=1))
    asyncio.run(joined_a_group(alone))
    cluster = Cluster(f"{alone},{brokers.second.start()}")
    asyncio.run(on_both(cluster, WORKFLOW_HISTORY))
    return cluster


@asynccontextmanager
async def working(cluster: Cluster) -> AsyncIterator[tuple[WorkflowWorker, WorkflowClient]]:
    worker = a_worker(str(cluster))
    async with running(worker), started(a_client(str(cluster), timeout_s=60)) as client:
        yield worker, client


def test_workflows_whose_partition_has_a_leader_go_on_while_others_have_none(
    brokers: Brokers,
    history_of_both: Cluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    for sender in (Appender, BatchSender):
        monkeypatch.setitem(sender.__init__.__kwdefaults__, "give_up_s", 3.0)
    there, removed = (
        [f"i-{n}" for n in range(60) if partition_of(f"echo/i-{n}".encode(), 2) == partition]
        for partition in range(2)
    )

    async def scenario() -> None:
        few_s = a_client(str(history_of_both), "impatient", timeout_s=5)
        async with (
            working(history_of_both) as (worker, client),
            started(few_s) as impatient,
        ):
            sender = Sender(client)
            await sender.ready()
            await Sender(impatient).ready()
            for entry in (there.pop(), removed.pop()):
                assert (await sender.send("echo", entry, TEXT)).code in ("", TAKEN)
            epoch = worker._driver.partitions[0].epoch
            await asyncio.to_thread(brokers.second.kill)
            stuck = [asyncio.create_task(impatient.send("echo", item, TEXT)) for item in removed]
            for entry in there[1:]:
                assert not (await client.send("echo", entry, TEXT)).code
            with pytest.raises(OutcomeUnknown):
                await stuck[0]
            await until(lambda: "cannot acquire partition 1 yet" in caplog.text)
            assert worker._driver.partitions[0].epoch == epoch, "it was taken over on the way"
            assert not (await client.send("echo", there[0], TEXT)).code
            await asyncio.to_thread(brokers.second.start)
            assert (await sender.send("echo", removed[0], TEXT)).code in ("", TAKEN)
            await asyncio.gather(*stuck, return_exceptions=True)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_what_waits_for_a_partition_without_a_leader_holds_up_nothing_else(brokers: Brokers):
    cluster = brokers.start(replication=1)
    done: list[tuple[int, int]] = []

    async def scenario() -> None:
        await on_both(cluster, DEAD_LETTERS)
        queues = PartitionQueues[tuple[int, int]](
            cluster=cluster,
            client_id="test",
            topic=DEAD_LETTERS,
            what="they have to wait",
            records=lambda entries: [
                Outgoing(DEAD_LETTERS, position, b"k", b"%d" % number)
                for position, number in entries
            ],
            appended=done.append,
        )
        await queues.connect()
        await added(queues, *((position, 0) for position in range(2)))
        await asyncio.to_thread(brokers.second.kill)
        queues.add(1, (1, 1))
        for number in range(1, 50):
            async with asyncio.timeout(20):  # Less than an append is waited for.
                await added(queues, (0, number))
        assert (1, 1) not in done
        await asyncio.to_thread(brokers.second.start)
        await added(queues, (1, 2))
        await queues.stop(5)

    async def added(queues: PartitionQueues[tuple[int, int]], *entries: tuple[int, int]) -> None:
        for entry in entries:
            queues.add(entry[0], entry)
        await until(lambda: set(entries) <= set(done))

    asyncio.run(scenario())
    assert [number for location, number in done if location == 1] == [0, 1, 2]


async def joined_a_group(cluster: Cluster) -> None:
    """Has Kafka make its topic of groups, on the brokers that there are now."""
    async with AIOKafkaConsumer(WEBHOOKS, **cluster.options(), group_id="first") as consumer:
        await consumer.getmany(timeout_ms=100)


async def in_the_log(cluster: Cluster) -> Counter[str]:
    result: Counter[str] = Counter()
    for partition in range(PARTITIONS):
        async for records in read_partition(cluster, [WEBHOOKS], partition):
            result.update((record.key or b"").decode() for record in records)
    return result
