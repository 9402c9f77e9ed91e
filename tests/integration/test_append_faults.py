"""Faults under the appends of an owner: each costs a claim, and no record is lost or doubled."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.streams.clock import monotonic, now_ms
from headwater.streams.kafka.batch_sender import BatchQueue, BatchSender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.embedded import Access, EmbeddedKafka, Listener
from headwater.streams.kafka.topics import create_topics
from headwater.streams.workflows.history_lease import OwnershipLost
from headwater.streams.workflows.log import WorkflowLog
from tests.fakes.proxy import Proxy
from tests.fakes.workflow_log import append, appending, claimed, counted, some
from tests.integration.test_leaders import Brokers, brokers, leaders  # noqa: F401 (a fixture)
from tests.integration.test_workflow_log import ended
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import until

PARTITIONS = 3
PATIENCE_S = 60.0
_EACH = 10


class Network:
    """A broker, and the network before it."""

    def __init__(self, broker: EmbeddedKafka, direct: str, proxy: Proxy) -> None:
        self.broker = broker
        self.proxy = proxy
        self.cluster = Cluster(proxy.address)
        #: Past the network.
        self.direct = Cluster(direct)


@pytest.fixture(scope="module")
def network(scratch: Path) -> Iterator[Network]:
    """For all tests: each appends behind what is there."""
    with Proxy(lambda: broker.address_of("PROXIED")) as proxy:
        listener = Listener("PROXIED", "PLAINTEXT", {}, proxy.address)
        directory = scratch / "kafka behind a network"
        broker = ThrowawayKafka(directory, port=0, report=print, access=Access([listener]))
        try:
            direct = broker.start()
            asyncio.run(create_topics(Cluster(direct), partitions=PARTITIONS, replication=1))
            yield Network(broker, direct, proxy)
        finally:
            broker.kill()


@asynccontextmanager
async def opened(cluster: Cluster) -> AsyncIterator[WorkflowLog]:
    log = WorkflowLog(cluster=cluster, client_id="test", clock=BrokerClock(now_ms, monotonic))
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield log
    finally:
        await log.stop()


class Owner:
    """Writes numbered records, two appends at a time, and claims its partition when it has to."""

    def __init__(self, log: WorkflowLog, partition: int) -> None:
        self._log, self._partition = log, partition
        self._first: int | None = None
        self.epochs: list[int] = []
        self.acknowledged: dict[int, int] = {}
        self.errors: list[OwnershipLost] = []

    async def write(self, total: int) -> None:
        while True:
            epoch = await claimed(self._log, self._partition)
            self.epochs.append(epoch)
            written = len(await self.read(epoch + 1))
            try:
                await self._write(epoch, written, total)
            except OwnershipLost as error:
                self.errors.append(error)
            else:
                return

    async def _write(self, epoch: int, written: int, total: int) -> None:
        in_flight: list[tuple[int, asyncio.Future[int]]] = []
        try:
            while written < total or in_flight:
                while len(in_flight) < 2 and written < total:
                    records = some(epoch, min(_EACH, total - written), written)
                    in_flight.append((written, appending(self._log, self._partition, records)))
                    written += len(records)
                number, future = in_flight[0]
                self.acknowledged[number] = await future
                del in_flight[0]
        finally:
            await asyncio.gather(*(future for _, future in in_flight), return_exceptions=True)

    async def read(self, end: int) -> list[tuple[int, int]]:
        """Offset and number of what counts."""
        first = self.epochs[0]
        result = await counted(self._log, self._partition, first, end)
        assert [number for _, number in result] == list(range(len(result)))
        return result

    async def until(self, count: int) -> None:
        await until(lambda: len(self.acknowledged) * _EACH >= count)

    async def check(self, total: int) -> None:
        """Compares what is in the log with what was written and acknowledged."""
        last = max(self.acknowledged)
        offsets = {n: at for at, n in await self.read(self.acknowledged[last] + _EACH)}
        assert len(offsets) == total
        assert self.acknowledged.items() <= offsets.items()


def test_a_connection_lost_in_flight_costs_a_claim(network: Network):
    async def scenario() -> None:
        async with opened(network.cluster) as log:
            owner = Owner(log, 0)
            writing = asyncio.create_task(owner.write(3_000))
            for count in (500, 1_500):
                await owner.until(count)
                network.proxy.drop()
            await writing
            await owner.check(3_000)
            assert len(owner.epochs) == len(owner.errors) + 1 >= 2

    asyncio.run(scenario())


def test_what_was_written_though_its_answer_was_lost_is_read_and_not_written_again(
    network: Network,
):
    async def scenario() -> None:
        async with opened(network.cluster) as log:
            epoch = await log.claim(0, "worker-1")
            await append(log, 0, some(epoch, 1))
            network.proxy.hold(to_server=False)
            unanswered = appending(log, 0, some(epoch, 3, 1))
            behind = appending(log, 0, some(epoch, 1, 4))
            await ended(str(network.direct), 0, epoch + 5)
            network.proxy.drop()
            network.proxy.heal()
            for future in (unanswered, behind):
                with pytest.raises(OwnershipLost, match="KafkaConnectionError"):
                    await future
            again = await claimed(log, 0)
            assert again == epoch + 5
            result = await counted(log, 0, epoch, again + 1)
            assert [number for _, number in result] == [0, 1, 2, 3]
            assert await append(log, 0, some(again, 1, 4)) == again + 1

    asyncio.run(scenario())


def test_a_connection_that_is_lost_while_nothing_is_in_flight_costs_nothing(network: Network):
    async def scenario() -> None:
        async with opened(network.cluster) as log:
            epoch = await log.claim(0, "worker-1")
            connected = log._sender._leaders.values()
            for number in range(3):
                assert await append(log, 0, some(epoch, 1, number)) == epoch + 1 + number
                network.proxy.drop()
                await until(lambda: not any(leader.connection for leader in connected))

    asyncio.run(scenario())


def test_a_broker_that_stands_still_fails_what_is_in_flight_after_a_while(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(BatchSender.__init__.__kwdefaults__, "slow_s", 0.5)
    monkeypatch.setitem(BatchSender.__init__.__kwdefaults__, "give_up_s", 1.5)

    async def scenario() -> None:
        async with opened(network.cluster) as log:
            owner = Owner(log, 0)
            writing = asyncio.create_task(owner.write(2_000))
            await owner.until(500)
            pid = network.broker.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                await until(lambda: bool(owner.errors))
            finally:
                os.kill(pid, signal.SIGCONT)
            await writing
            await owner.check(2_000)
            assert "none of 20 records of workflow-history/0 for 2 s" in str(owner.errors[0])

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "20 records of workflow-history/0 not acknowledged for 0 s" in caplog.text


def test_a_partition_that_is_fenced_in_flight_loses_its_lease_and_others_keep_theirs(
    network: Network,
):
    async def scenario() -> None:
        async with opened(network.cluster) as log, opened(network.direct) as other:
            owners = [Owner(log, partition) for partition in range(PARTITIONS)]
            writing = [asyncio.create_task(owner.write(1_500)) for owner in owners]
            await owners[0].until(500)
            fence = await other.claim(0, "worker-2")
            await asyncio.gather(*writing)
            for owner in owners:
                await owner.check(1_500)
            assert f"worker-2 claimed it at offset {fence}" in str(owners[0].errors[0])
            assert [len(owner.epochs) for owner in owners] == [2, 1, 1]

    asyncio.run(scenario())


def test_records_of_others_that_are_no_claims_delay_appends_and_cost_nothing(network: Network):
    async def scenario() -> None:
        async with opened(network.cluster) as log, opened(network.direct) as zombie:
            old = await zombie.claim(0, "worker-2")
            epoch = await log.claim(0, "worker-1")
            # The zombie does not know yet that it is superseded.
            void = appending(zombie, 0, some(old, 3))
            await ended(str(network.direct), 0, epoch + 4)
            with pytest.raises(OwnershipLost):
                await void
            appends = [appending(log, 0, some(epoch, 2, 2 * number)) for number in range(3)]
            firsts = await asyncio.gather(*appends)
            assert firsts == [epoch + 4, epoch + 6, epoch + 8]
            result = await counted(log, 0, epoch, epoch + 10)
            assert [number for _, number in result] == list(range(6))

    asyncio.run(scenario())


def test_what_a_broker_refuses_that_does_not_lead_is_sent_again_to_the_leader(
    brokers: Brokers,  # noqa: F811 (the fixture)
    monkeypatch: pytest.MonkeyPatch,
):
    cluster = brokers.start(replication=1)

    async def scenario() -> None:
        led: dict[int, int] = {}
        async with asyncio.timeout(PATIENCE_S):
            while len(set(led.values()) & {1, 2}) < 2:
                led = await leaders(cluster, WORKFLOW_HISTORY)
        (mine, *_), (others, *_) = (
            [partition for partition, leader in led.items() if leader == node] for node in (1, 2)
        )
        async with opened(cluster) as log:
            epoch = await log.claim(mine, "worker-1")
            elsewhere = await log.claim(others, "worker-1")
            lease = log._leases[mine]
            queue, asked, leader = lease.queue, [], lease.queue.leader
            others_leader = log._leases[others].queue.leader()

            def moved(self: BatchQueue) -> tuple[str, int] | None:
                """As after a move of which the metadata tell nothing yet, when asked first."""
                asked.append(self)
                return others_leader if asked.count(queue) == 1 and self is queue else leader()

            with monkeypatch.context() as patched:
                patched.setattr(BatchQueue, "leader", moved)
                assert await append(log, mine, some(epoch, 2)) == epoch + 1
            assert asked.count(queue) == 2
            assert await append(log, others, some(elsewhere, 1)) == elsewhere + 1
            assert await append(log, mine, some(epoch, 2)) == epoch + 3
            assert log._leases[mine] is lease

    asyncio.run(scenario())


def test_a_leader_that_is_killed_costs_claims_and_its_successor_goes_on(
    brokers: Brokers,  # noqa: F811 (the fixture)
):
    cluster = brokers.start(replication=2)

    async def scenario() -> None:
        led: dict[int, int] = {}
        async with asyncio.timeout(PATIENCE_S):
            while 2 not in led.values():
                led = await leaders(cluster, WORKFLOW_HISTORY)
        async with opened(cluster) as log:
            owners = [Owner(log, partition) for partition in led]
            writing = [asyncio.create_task(owner.write(2_000)) for owner in owners]
            for owner in owners:
                await owner.until(500)
            await asyncio.to_thread(brokers.second.kill)
            await asyncio.gather(*writing)
            for owner in owners:
                await owner.check(2_000)

    asyncio.run(scenario())
