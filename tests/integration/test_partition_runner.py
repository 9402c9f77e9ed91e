"""An agent of the pipeline on a real broker, where partitions and forms change under its hands."""

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import cast

import pytest
from typing_extensions import override

from headwater.processors.columns import RowUpdate, merge
from headwater.processors.providers.provider import Placement
from headwater.processors.wipes import WipeOrder, wipe_order_of
from headwater.schemas.codec import NEWEST_VERSIONS, decode, encode_row, set_write_versions
from headwater.schemas.errors import NotYetReadable
from headwater.schemas.records import Stamp, WebhookReceived
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import EVENTS, TRACES, UNRESOLVED, WEBHOOKS
from headwater.streams.clock import monotonic, now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets, read_partition
from headwater.streams.kafka.records import Headers, Incoming, Outgoing
from headwater.streams.kafka.state_store import Changes
from headwater.streams.ownership.leases import PartitionLost
from headwater.streams.ownership.phases import OwnedPartitions
from headwater.streams.ownership.watchdog import Watchdog
from headwater.streams.pipeline._faust import TP, Batch, BatchConsumer
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.fenced_log import FencedLog
from headwater.streams.pipeline.partition_lease import Fold
from headwater.streams.pipeline.partition_runner import PartitionRunner, SchemaVersionsChanged
from headwater.streams.pipeline.partition_state import PartitionState
from headwater.streams.pipeline.processing import Processing
from headwater.streams.pipeline.wiping import WipeLog
from tests.fakes.memory_store import MemoryStore

PARTITION = 0
OWNED = {TP(EVENTS, PARTITION), TP(UNRESOLVED, PARTITION)}

ROWS = DAILY_SUMMARY.topic
KEY = b'["user_1", "garmin", "2026-07-01"]'


def row_with(steps: int) -> bytes:
    update = RowUpdate(
        DAILY_SUMMARY,
        ("user_1", "garmin", "2026-07-01"),
        {"steps": steps},
        Stamp(0, steps, 0, f"e{steps}", 0, steps),
    )
    return encode_row(DAILY_SUMMARY, merge(None, update))


MEMORY, FIRST, SECOND, AFTER_ALL = map(row_with, range(1, 5))


def nothing() -> None:
    """Nothing happens meanwhile."""


class Store(MemoryStore):
    """A store that lets something happen while it is written, which is while it is restored."""

    def __init__(self) -> None:
        super().__init__()
        self.while_restoring = nothing
        self.is_closed = False

    @override
    def write(self, changes: Changes, positions: Mapping[str, int]) -> None:
        super().write(changes, positions)
        happens, self.while_restoring = self.while_restoring, nothing
        happens()

    @override
    def close(self) -> None:
        self.is_closed = True


class Watched(Intake):
    """Intake that decides as it is told to, on one row."""

    sources = (EVENTS, UNRESOLVED)
    memory = (ROWS,)

    def __init__(self) -> None:
        super().__init__(placement=Placement({}, "user_"), partitions=1, park_for_ms=1)
        #: What the row was when it was asked.
        self.stepped_with: list[bytes | None] = []
        self.store = Store()
        self.while_stepping = nothing
        self.emits: list[bytes] = []
        self.headers: Headers = []

    async def open_store(self, partition: int) -> Store:
        assert partition == PARTITION
        return self.store

    @override
    def step(self, unit: Processing, topic: str, records: Sequence[Incoming], now_ms: int) -> None:
        state = unit.state
        self.while_stepping()
        self.stepped_with.append(state.current(ROWS, [KEY])[0].value)
        self.headers = state.headers
        for value in self.emits:
            state.restore_record(Incoming(ROWS, PARTITION, 0, 0, 0, KEY, value, None, 1, 1, ()))
        for value in self.emits:
            unit.output.add(Outgoing(ROWS, PARTITION, KEY, value, self.headers))

    @override
    def tick(self, state: PartitionState, now_ms: int) -> list[Outgoing]:
        return []


class Committed:
    """Takes note of batches that are done."""

    def __init__(self) -> None:
        self.batches = 0

    def batch_done(self, batch: Batch) -> None:
        del batch
        self.batches += 1


def agent_of(
    intake: Watched, bootstrap: str, appender: Appender, offsets: Offsets
) -> PartitionRunner:
    partitions = OwnedPartitions(Watchdog(patience_s=60, monotonic=monotonic))
    agent = PartitionRunner(
        intake,
        topics=FencedLog(
            cluster=Cluster(bootstrap),
            appender=appender,
            check_session=nothing,
            owner="test",
            memory=intake.memory,
            progress=partitions.progress,
        ),
        partitions=partitions,
        offsets=offsets,
        open_store=intake.open_store,
        clock=BrokerClock(now_ms, monotonic),
    )
    agent.assigned(OWNED)
    return agent


def play(bootstrap: str, act: Callable[[Watched, PartitionRunner, Batch], object]) -> Committed:
    committed = Committed()

    async def whole() -> None:
        appender = Appender(cluster=Cluster(bootstrap), client_id="watched")
        await appender.append([Outgoing(ROWS, PARTITION, KEY, MEMORY)])
        intake = Watched()
        offsets = Offsets(Cluster(bootstrap), "watched")
        agent = agent_of(intake, bootstrap, appender, offsets)
        record = Incoming(EVENTS, PARTITION, 0, 0, 0, b"k", b"v", None, 1, 1, ())
        batch = Batch(EVENTS, PARTITION, [record], None, cast("BatchConsumer", committed))
        try:
            await cast("asyncio.Future[None]", act(intake, agent, batch))
        finally:
            await offsets.stop()
            await appender.stop()

    asyncio.run(whole())
    return committed


def test_what_was_read_before_a_rebalance_is_no_memory_after_it(topics: str):
    async def act(intake: Watched, agent: PartitionRunner, batch: Batch) -> None:
        def rebalance() -> None:
            agent.revoked()
            agent.assigned(OWNED)

        intake.store.while_restoring = rebalance
        await agent.process(batch)
        assert intake.stepped_with == []
        await agent.process(batch)
        assert intake.stepped_with == [MEMORY]

    assert play(topics, act).batches == 1


def test_forms_that_change_while_a_batch_is_refused_end_the_worker(topics: str):
    async def act(intake: Watched, agent: PartitionRunner, batch: Batch) -> None:
        def refuse() -> None:
            set_write_versions(
                dict(NEWEST_VERSIONS) | {"another": NEWEST_VERSIONS["daily_summary"]}
            )
            raise NotYetReadable("expected all members to read it")

        intake.while_stepping = refuse
        await agent.process(batch)
        with pytest.raises(SchemaVersionsChanged):
            await agent.tick()

    try:
        assert play(topics, act).batches == 0
    finally:
        set_write_versions(NEWEST_VERSIONS)


def test_a_partition_is_owned_when_all_topics_of_its_number_are(topics: str):
    async def act(intake: Watched, agent: PartitionRunner, batch: Batch) -> None:
        agent.revoked()
        agent.assigned({TP(EVENTS, PARTITION), TP(UNRESOLVED, PARTITION + 1)})
        await agent.process(batch)
        assert intake.stepped_with == []
        agent.assigned(OWNED)
        await agent.process(batch)
        assert len(intake.stepped_with) == 1

    assert play(topics, act).batches == 1


def test_an_owner_that_was_superseded_finds_out_and_what_it_hid_is_written_again(topics: str):
    counted: list[bytes | None] = []

    async def act(intake: Watched, agent: PartitionRunner, batch: Batch) -> None:
        appender = Appender(cluster=Cluster(topics), client_id="another")
        offsets = Offsets(Cluster(topics), "watched")
        other = Watched()
        another = agent_of(other, topics, appender, offsets)
        intake.emits, other.emits = [FIRST], [SECOND]
        try:
            await agent.process(batch)
            await another.process(batch)
            # It stood still meanwhile, and goes on.
            intake.emits = [b"late"]
            with pytest.raises(PartitionLost, match="another process has claimed the partition"):
                await agent.process(batch)
            await another.tick()
            again = [Outgoing(ROWS, PARTITION, KEY, AFTER_ALL, other.headers)]
            await appender.append(again)
        finally:
            await offsets.stop()
            await appender.stop()
        fold = Fold()
        async for records in read_partition(Cluster(topics), [ROWS], PARTITION):
            counted.extend(r.value for r in records if fold.admit(r) and r.key == KEY)

    play(topics, act)
    assert counted[-5:] == [MEMORY, FIRST, SECOND, SECOND, AFTER_ALL]


def test_what_an_operator_deletes_is_deleted_in_memory_too(topics: str):
    async def act(intake: Watched, agent: PartitionRunner, batch: Batch) -> None:
        await agent.process(batch)
        appender = Appender(cluster=Cluster(topics), client_id="operator")
        await appender.append([Outgoing(ROWS, PARTITION, KEY, None)])
        await appender.stop()
        await agent.tick()
        await agent.process(batch)
        assert intake.stepped_with == [MEMORY, None]

    play(topics, act)


def test_what_stays_is_kept_by_a_rebalance_and_what_went_is_forgotten(topics: str):
    async def act(intake: Watched, agent: PartitionRunner, batch: Batch) -> None:
        assert await agent.prepare(PARTITION)
        agent.revoked()
        await agent.process(batch)
        assert intake.stepped_with == []  # Nobody owns it just now.
        assert agent.assigned(OWNED) == {PARTITION}
        assert await agent.prepare(PARTITION)
        await agent.process(batch)
        assert intake.stepped_with == [MEMORY]
        agent.revoked()
        assert agent.assigned(set()) == set()
        assert intake.store.is_closed
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


def test_the_second_order_of_a_wipe_has_the_positions_of_the_first_as_its_fence(topics: str):
    async def scenario() -> list[tuple[tuple[int, ...], WipeOrder, int]]:
        cluster = Cluster(topics)
        log = WipeLog(cluster=cluster, clock=now_ms, topics=[TRACES, "of.nobody"])
        offsets = Offsets(cluster, "watched")
        appender = Appender(cluster=cluster, client_id="watched")
        await appender.append([Outgoing(TRACES, PARTITION, b"k", b"v")])
        ends = (await offsets.ends_of([TRACES]))[TRACES]
        partitions = await log.order("user_1", "wipe of a test", ["t1"])
        result = []
        for partition in range(partitions):
            async with aclosing(read_partition(cluster, [WEBHOOKS], partition)) as batches:
                async for records in batches:
                    for record in records:
                        order = record.value and wipe_order_of(
                            decode(record.value, WebhookReceived)
                        )
                        if order and order.wipe_id == "wipe of a test":
                            result.append((ends, order, record.offset))
        for client in (log, offsets, appender):
            await client.stop()
        return result

    read = asyncio.run(scenario())
    partitions = len(read) // 2
    assert partitions > 0
    for partition in range(partitions):
        (ends, first, at), (_, second, later) = read[2 * partition : 2 * partition + 2]
        assert first.fence[partition] <= at < later
        assert second.fence[partition] == at
        assert first.topics == second.topics == {TRACES: ends}
        assert ends[PARTITION] > 0
