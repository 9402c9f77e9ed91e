"""An agent of the pipeline on a real broker, where partitions and forms change under its hands."""

import asyncio
import gc
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import pytest

from headwater.schemas.codec import write_forms
from headwater.schemas.errors import NotYetReadable
from headwater.schemas.forms import NEWEST_FORMS
from headwater.schemas.records import UserForgotten
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import EVENTS, TRACES, UNRESOLVED
from headwater.streams.clock import monotonic, now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.offsets import Offsets
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Headers, Incoming, Outgoing
from headwater.streams.pipeline._faust import TP, Batch, BatchConsumer
from headwater.streams.pipeline.agent import Agent
from headwater.streams.pipeline.lease import Lease
from headwater.streams.pipeline.staged import Mark, Store
from headwater.streams.pipeline.stopped import FormsChanged
from headwater.streams.pipeline.tenure import Fold, PartitionLost
from headwater.streams.pipeline.watchdog import Watchdog
from tests.fakes.memory_store import MemoryStore

PARTITION = 0
OWNED = {TP(EVENTS, PARTITION), TP(UNRESOLVED, PARTITION)}

ROWS = DAILY_SUMMARY.topic
KEY = b'["user_1", "garmin", "2026-07-01"]'


async def a_store(partition: int) -> MemoryStore:
    assert partition == PARTITION
    return MemoryStore()


def nothing() -> None:
    """Nothing happens meanwhile."""


class Watched:
    """A stage that lets something happen while it restores, or steps."""

    name = "watched"
    sources = (EVENTS, UNRESOLVED)
    memory: tuple[str, ...] = (TRACES,)

    def __init__(self) -> None:
        self.known: list[bytes | None] = []
        self.stepped_with: list[list[bytes]] = []
        self.while_restoring = nothing
        self.while_stepping = nothing
        self.emits: list[bytes] = []
        self.headers: Headers = []

    def opened(self, partition: int, store: Store) -> Mark:
        del store
        assert partition == PARTITION
        return Mark()

    def write(self, partition: int, mark: Mark) -> None:
        assert partition == PARTITION
        self.mark = mark

    def restored(self, record: Incoming) -> None:
        self.known.append(record.value)
        happens, self.while_restoring = self.while_restoring, nothing
        happens()

    def forget(self, partition: int) -> None:
        assert partition == PARTITION
        self.known.clear()

    def step(
        self, topic: str, partition: int, records: Sequence[Incoming], now_ms: int
    ) -> list[Outgoing]:
        del topic, partition, records, now_ms
        self.while_stepping()
        self.stepped_with.append(list(self.known))
        return [Outgoing(ROWS, PARTITION, KEY, value, self.headers) for value in self.emits]

    def tick(self, partition: int, now_ms: int) -> list[Outgoing]:
        del partition, now_ms
        return []

    def wanted(self, partition: int) -> list[UserForgotten]:
        assert partition == PARTITION
        return []

    def owned(self, partition: int, headers: Headers) -> None:
        assert partition == PARTITION
        self.headers = headers

    def again(self, partition: int, topic: str, keys: Iterable[bytes]) -> list[Outgoing]:
        return [Outgoing(topic, partition, key, b"mine", self.headers) for key in keys]


class Committed:
    """Takes note of batches that are done."""

    def __init__(self) -> None:
        self.batches = 0

    def batch_done(self, batch: Batch) -> None:
        del batch
        self.batches += 1


def play(bootstrap: str, act: Callable[[Watched, Agent, Batch], object]) -> Committed:
    committed = Committed()

    async def whole() -> None:
        appender = Appender(cluster=Cluster(bootstrap), client_id="watched")
        await appender.append([Outgoing(TRACES, PARTITION, b"k", b"memory")])
        stage = Watched()
        offsets = Offsets(Cluster(bootstrap), "watched")
        lease = Lease(valid_for_s=60, monotonic=monotonic)
        agent = Agent(
            stage,
            cluster=Cluster(bootstrap),
            appender=appender,
            offsets=offsets,
            lease=lease,
            watchdog=Watchdog(patience_s=60, monotonic=monotonic),
            open_store=a_store,
            clock=BrokerClock(now_ms, monotonic),
            owner="test",
        )
        agent.assigned(OWNED)
        record = Incoming(EVENTS, PARTITION, 0, 0, 0, b"k", b"v", None, 1, 1, ())
        batch = Batch(EVENTS, PARTITION, [record], None, cast("BatchConsumer", committed))
        try:
            await cast("asyncio.Future[None]", act(stage, agent, batch))
        finally:
            await offsets.stop()
            await appender.stop()

    asyncio.run(whole())
    return committed


def test_what_was_read_before_a_rebalance_is_no_memory_after_it(topics: str):
    async def act(stage: Watched, agent: Agent, batch: Batch) -> None:
        def rebalance() -> None:
            agent.revoked()
            agent.assigned(OWNED)

        stage.while_restoring = rebalance
        await agent.process(batch)
        assert stage.stepped_with == []
        await agent.process(batch)
        assert [known[-1] for known in stage.stepped_with] == [b"memory"]

    assert play(topics, act).batches == 1


def test_forms_that_change_while_a_batch_is_refused_end_the_worker(topics: str):
    async def act(stage: Watched, agent: Agent, batch: Batch) -> None:
        def refuse() -> None:
            write_forms(dict(NEWEST_FORMS) | {"another": NEWEST_FORMS["daily_summary"]})
            raise NotYetReadable("expected all members to read it")

        stage.while_stepping = refuse
        await agent.process(batch)
        with pytest.raises(FormsChanged):
            await agent.tick()

    try:
        assert play(topics, act).batches == 0
    finally:
        write_forms(NEWEST_FORMS)


def test_a_partition_is_owned_when_all_topics_of_its_number_are(topics: str):
    async def act(stage: Watched, agent: Agent, batch: Batch) -> None:
        agent.revoked()
        agent.assigned({TP(EVENTS, PARTITION), TP(UNRESOLVED, PARTITION + 1)})
        await agent.process(batch)
        assert stage.stepped_with == []
        agent.assigned(OWNED)
        await agent.process(batch)
        assert len(stage.stepped_with) == 1

    assert play(topics, act).batches == 1


def test_an_owner_that_was_superseded_finds_out_and_what_it_hid_is_written_again(topics: str):
    counted: list[bytes | None] = []

    async def act(stage: Watched, agent: Agent, batch: Batch) -> None:
        appender = Appender(cluster=Cluster(topics), client_id="another")
        offsets = Offsets(Cluster(topics), "watched")
        other = Watched()
        another = Agent(
            other,
            cluster=Cluster(topics),
            appender=appender,
            offsets=offsets,
            lease=Lease(valid_for_s=60, monotonic=monotonic),
            watchdog=Watchdog(patience_s=60, monotonic=monotonic),
            open_store=a_store,
            clock=BrokerClock(now_ms, monotonic),
            owner="another",
        )
        another.assigned(OWNED)
        stage.emits, other.emits = [b"first"], [b"second"]
        try:
            await agent.process(batch)
            await another.process(batch)
            # It stood still meanwhile, and goes on.
            stage.emits = [b"late"]
            with pytest.raises(PartitionLost, match="somebody else has taken the partition"):
                await agent.process(batch)
            await another.tick()
            again = [Outgoing(ROWS, PARTITION, KEY, b"after all", other.headers)]
            await appender.append(again)
        finally:
            await offsets.stop()
            await appender.stop()
        fold = Fold()
        async for records in read_partition(Cluster(topics), [ROWS], PARTITION):
            counted.extend(r.value for r in records if fold.admit(r) and r.key == KEY)

    play(topics, act)
    assert counted == [b"first", b"second", b"mine", b"after all"]


def test_what_an_operator_deletes_is_deleted_in_memory_too(topics: str):
    async def act(stage: Watched, agent: Agent, batch: Batch) -> None:
        await agent.process(batch)
        stage.memory = (ROWS,)
        appender = Appender(cluster=Cluster(topics), client_id="operator")
        await appender.append([Outgoing(ROWS, PARTITION, KEY, None)])
        await appender.stop()
        stage.known.clear()
        await agent.tick()
        assert stage.known == [None]

    play(topics, act)


def test_what_stays_is_kept_by_a_rebalance_and_what_went_is_forgotten(topics: str):
    async def act(stage: Watched, agent: Agent, batch: Batch) -> None:
        assert await agent.prepare(PARTITION)
        known = list(stage.known)
        agent.revoked()
        await agent.process(batch)
        assert stage.stepped_with == []  # Nobody owns it just now.
        assert agent.assigned(OWNED) == {PARTITION}
        assert await agent.prepare(PARTITION)
        await agent.process(batch)
        assert stage.stepped_with == [known]
        agent.revoked()
        assert agent.assigned(set()) == set()
        assert stage.known == []
        assert agent.assigned(OWNED) == {PARTITION}

    assert play(topics, act).batches == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_offsets_that_many_ask_for_at_once_are_asked_by_one_consumer(topics: str):
    async def scenario() -> list[dict[str, object]]:
        complaints: list[dict[str, object]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        offsets = Offsets(Cluster(topics), "watched")
        await asyncio.gather(*(offsets.ends([TRACES], PARTITION) for _ in range(4)))
        await offsets.stop()
        gc.collect()
        return complaints

    assert asyncio.run(scenario()) == []
