"""The agent amid others: what it writes counts, or it ends; over a log in memory."""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import pytest

from headwater.processors.providers.provider import Placement
from headwater.schemas.avro_schemas import IDS
from headwater.schemas.codec import decode, decode_row
from headwater.schemas.epochs import CLAIM_KEY, is_claim
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.records import DuplicateDropped, UserForgotten
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import (
    ADMISSIONS,
    DEAD_LETTERS,
    OUTCOMES,
    TRACES,
    WAITING,
    WEBHOOKS,
    WIPES,
)
from headwater.streams.kafka.appender import Sent
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.state_store import Family, StoreCorrupted
from headwater.streams.ownership.deadlines import SessionExpired
from headwater.streams.ownership.leases import LogCut, PartitionLost
from headwater.streams.ownership.phases import OwnedPartitions
from headwater.streams.ownership.watchdog import Stalled, Watchdog
from headwater.streams.pipeline import fenced_log
from headwater.streams.pipeline._faust import TP
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.fenced_log import FencedLog
from headwater.streams.pipeline.partition_lease import Fold
from headwater.streams.pipeline.partition_runner import PartitionRunner
from tests.fakes.memory_store import MemoryStore
from tests.unit.streams.test_intake import AUTH, DAILY, NOW, PROVIDERS, incoming, raw, received
from tests.unit.streams.test_wiping import ordered
from tests.waiting import until

#: The beginning of a record whose schema this release does not know.
LATER = b"\x00" + (max(IDS.values()) + 1).to_bytes(4) + b"\x02"
PARK_FOR_MS = 10**9
#: What the owner of the partition is assigned.
ALL = {TP(topic, 0) for topic in Intake.sources}
#: Where the state keeps deliveries that wait.
WAITS = Family("w")
Meanwhile = Callable[[], Awaitable[object]]


class Log:
    """Topics of one partition; also what appends to them, and knows their ends."""

    def __init__(self) -> None:
        self.records: defaultdict[str, list[Outgoing]] = defaultdict(list)
        #: What happens right before the next append, and while ends are asked for.
        self.before_append: list[Meanwhile] = []
        self.while_asked: list[Meanwhile] = []
        self.acknowledges = asyncio.Event()
        self.acknowledges.set()
        #: The clock that learns the broker's time, as that of a real appender does.
        self.broker_clock: BrokerClock | None = None
        self.broker_ms = NOW
        #: By those who took a partition.
        self.was_read: list[Incoming] = []

    def add(self, record: Outgoing) -> int:
        self.records[record.topic].append(record)
        return len(self.records[record.topic]) - 1

    def read(self, topic: str, start: int = 0, end: int | None = None) -> list[Incoming]:
        return [
            Incoming(topic, 0, offset, NOW, 0, one.key or b"", one.value, None, 0, 0,
                     tuple(one.headers or ()))
            for offset, one in enumerate(self.records[topic][:end])
            if offset >= start
        ]  # fmt: skip

    def newest(self) -> dict[tuple[str, bytes], bytes | None]:
        """What counts of rows and outcomes, the last of each key."""
        result: dict[tuple[str, bytes], bytes | None] = {}
        for topic in (*(table.topic for table in ALL_TABLES), OUTCOMES):
            fold = Fold()
            for record in self.read(topic):
                if fold.admit(record):
                    result[topic, record.key or b""] = record.value
        return result

    def kept(self) -> dict[tuple[str, bytes], bytes | None]:
        """What compaction leaves of rows and outcomes: the last of each key, whoever wrote it."""
        return {
            (topic, one.key or b""): one.value
            for topic in (*(table.topic for table in ALL_TABLES), OUTCOMES)
            for one in self.records[topic]
            if one.key != CLAIM_KEY
        }

    # -- as an appender

    async def send(self, records: Sequence[Outgoing]) -> list[Sent]:
        if self.before_append:
            await self.before_append.pop(0)()
        by_topic: defaultdict[str, list[Outgoing]] = defaultdict(list)
        for record in records:
            by_topic[record.topic].append(record)
        sent = []
        for topic, group in by_topic.items():
            first, *_ = [self.add(record) for record in group]
            acknowledged = asyncio.get_running_loop().create_future()
            acknowledged.set_result(first)
            sent_at = self.broker_clock.now() if self.broker_clock else None
            sent.append(Sent(topic, 0, len(group), acknowledged, sent_at))
        return sent

    async def acknowledged(self, sent: Sequence[Sent]) -> list[int]:
        await self.acknowledges.wait()
        for batch in sent:
            if self.broker_clock is not None and batch.sent_at is not None:
                self.broker_clock.record_append(batch.sent_at, self.broker_ms)
        return [item.acknowledged.result() for item in sent]

    # -- as offsets

    async def ends(self, topics: Sequence[str], _: int) -> dict[str, int]:
        if self.while_asked:
            await self.while_asked.pop(0)()
        return {topic: len(self.records[topic]) for topic in topics}

    committed = ends


async def read_partition(
    log: Log,
    topics: Sequence[str],
    _: int,
    *,
    start: int | Mapping[str, int] | None = None,
    end: int | None = None,
) -> AsyncIterator[list[Incoming]]:
    for topic in topics:
        at = start if isinstance(start, int) else (start or {}).get(topic, 0)
        await asyncio.sleep(0)
        if result := log.read(topic, at, end):
            log.was_read += result
            yield result


class Lease:
    """That of a process, which may have stood still."""

    is_lost = False

    def check(self) -> None:
        if self.is_lost:
            raise SessionExpired("it stood still")


class Batch:
    """What a fetch brought; `up_to` is the offset before which all is done."""

    def __init__(self, *records: Incoming, whole: "Batch | None" = None) -> None:
        self.topic, self.partition, self.records = records[0].topic, 0, list(records)
        self.after = None
        self.end = records[-1].offset + 1
        self.up_to = 0
        self._whole = whole or self

    @property
    def is_done(self) -> bool:
        return self.up_to == self.end

    def first(self, count: int) -> "Batch":
        return Batch(*self.records[:count], whole=self._whole)

    def done(self) -> None:
        self._whole.up_to = self.end


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fenced_log, "read_partition", read_partition)


class Time:
    """Seconds that pass when they are told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def agent_of(
    log: Log,
    owner: str = "one",
    store: MemoryStore | None = None,
    watchdog: Watchdog | None = None,
    lease: Lease | None = None,
    clock: BrokerClock | None = None,
) -> PartitionRunner:
    kept = store or MemoryStore()
    log.broker_clock = clock

    async def open_store(_: int) -> MemoryStore:
        return kept

    partitions = OwnedPartitions(watchdog)
    topics = FencedLog(
        cluster=log,
        appender=log,
        check_session=(lease or Lease()).check,
        owner=owner,
        memory=Intake.memory,
        progress=partitions.progress,
    )
    agent = PartitionRunner(
        Intake(placement=Placement(PROVIDERS, "user_"), partitions=1, park_for_ms=PARK_FOR_MS),
        topics=topics,
        partitions=partitions,
        offsets=log,
        open_store=open_store,
        clock=clock or BrokerClock(lambda: NOW, lambda: 0.0),
    )
    agent.assigned(ALL)
    return agent


def test_an_owner_that_was_overtaken_while_it_took_the_partition_ends():
    async def scene() -> None:
        log = Log()
        slow, quick = agent_of(log, "slow"), agent_of(log, "quick")

        async def nothing() -> None: ...

        # Between the claim that gives the epoch and those of the other topics.
        log.before_append = [nothing, lambda: quick.prepare(0)]
        with pytest.raises(PartitionLost, match="claimed as 1 meanwhile"):
            await slow.prepare(0)
        batch = Batch(raw(received(reference="user_1")))
        await quick.process(batch)
        assert batch.is_done
        assert {topic for topic, _ in log.newest()} == {"daily-summary", "users", OUTCOMES}

    asyncio.run(scene())


async def another_delivery(agent: PartitionRunner) -> None:
    await agent.process(Batch(raw(received(event_id="e2", reference="user_2"), 1)))


async def nothing_to_do(agent: PartitionRunner) -> None:
    await agent.tick()


async def a_partition_to_take(agent: PartitionRunner) -> None:
    agent.revoked()
    agent.assigned(set())
    agent.assigned(ALL)
    await agent.prepare(0)


@pytest.mark.parametrize("go_on", [another_delivery, a_partition_to_take])
def test_a_process_that_stood_still_appends_nothing(
    go_on: Callable[[PartitionRunner], Awaitable[None]],
):
    async def scene() -> None:
        log, lease = Log(), Lease()
        agent = agent_of(log, lease=lease)
        await agent.prepare(0)
        await agent.process(Batch(raw(received(reference="user_1"))))
        before = {topic: list(records) for topic, records in log.records.items()}
        lease.is_lost = True
        with pytest.raises(SessionExpired):
            await go_on(agent)
        assert {topic: records for topic, records in log.records.items() if records} == before

    asyncio.run(scene())


def test_a_process_that_stood_still_while_it_appended_forgets_nothing_for_that():
    async def scene() -> None:
        log, lease = Log(), Lease()
        agent = agent_of(log, lease=lease)
        await agent.prepare(0)
        await agent.process(Batch(raw(received())))
        waiting = list(log.records[WAITING])

        async def stop() -> None:
            lease.is_lost = True

        log.before_append = [stop]
        auth = received(event_id="a", type="auth", body=AUTH, reference="user_1")
        with pytest.raises(SessionExpired):
            await agent.process(Batch(raw(auth, 1)))
        assert log.records[WAITING] == waiting, "the end of the wait, which is appended last"

    asyncio.run(scene())


async def one_writes_late(log: Log) -> PartitionRunner:
    """The owner of a partition, whose row the owner before it has written over."""
    one, two = agent_of(log), agent_of(log, "two")
    await one.prepare(0)
    await two.prepare(0)
    await two.process(Batch(raw(received(reference="user_1"))))
    older = received(event_id="e2", reference="user_1", sent_at_ms=NOW - 1)
    with pytest.raises(PartitionLost):
        await one.process(Batch(raw(older, 1)))
    return two


@pytest.mark.parametrize("dies", [False, True])
def test_what_a_superseded_owner_has_hidden_is_written_again_by_who_takes_over(dies: bool):
    async def scene() -> None:
        log = Log()
        await one_writes_late(log)
        assert not log.newest().items() <= log.kept().items(), (
            "what one wrote late hides what two has written"
        )
        store = MemoryStore()
        if dies:
            log.before_append = [happens, happens, die]
            with pytest.raises(Died):
                await agent_of(log, "three", store).prepare(0)
        await agent_of(log, "four", store).prepare(0)
        assert log.newest().items() <= log.kept().items()

    asyncio.run(scene())


@pytest.mark.parametrize("warm", [True, False])
def test_who_takes_over_reads_what_the_store_does_not_have_alone(warm: bool):
    async def scene() -> None:
        log, store = Log(), MemoryStore()
        one = agent_of(log, store=store)
        await one.prepare(0)
        await one.process(Batch(raw(received(reference="user_1"))))
        log.was_read.clear()
        await agent_of(log, "two", store if warm else None).prepare(0)
        memory = [item for item in log.was_read if item.topic != OUTCOMES]
        assert all(is_claim(item.headers) for item in memory) == warm

    asyncio.run(scene())


def test_the_store_has_nothing_that_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        log, store = Log(), MemoryStore()
        agent = agent_of(log, store=store)
        await agent.prepare(0)
        acknowledged = log.acknowledged
        stored: list[object] = []

        async def looks(sent: Sequence[Sent]) -> list[int]:
            stored.extend(store.scan(WAITS))
            return await acknowledged(sent)

        monkeypatch.setattr(log, "acknowledged", looks)
        await agent.process(Batch(raw(received())))
        assert not stored
        assert store.scan(WAITS)

    asyncio.run(scene())


class Died(Exception):
    """Somebody died."""


async def happens() -> None:
    """Claims are appended."""


async def die() -> None:
    raise Died


def test_from_a_record_of_a_later_release_on_a_partition_waits_and_nothing_is_a_dead_letter(
    caplog: pytest.LogCaptureFixture,
):
    async def scene() -> None:
        log = Log()
        agent = agent_of(log)
        await agent.prepare(0)
        known = [raw(received(event_id=f"{n:032x}", reference="user_1"), n) for n in (0, 1, 3)]
        later = incoming(WEBHOOKS, b"f" * 32, LATER, 2)
        batch = Batch(known[0], known[1], later, known[2])
        await agent.process(batch)
        assert batch.up_to == 2
        after = Batch(raw(received(event_id="e" * 32, reference="user_2"), 4))
        await agent.process(after)
        assert after.up_to == 0
        await agent.tick()
        assert not log.records[DEAD_LETTERS]
        assert {key for topic, key in log.newest() if topic == OUTCOMES} == {
            item.key for item in known[:2]
        }

    asyncio.run(scene())
    assert f"{WEBHOOKS}/0@2" in caplog.text


def test_a_partition_whose_rows_a_later_release_wrote_is_not_taken(
    caplog: pytest.LogCaptureFixture,
):
    async def scene() -> None:
        log = Log()
        log.add(Outgoing("daily-summary", 0, b'["user_1","garmin","2026-07-01"]', LATER))
        agent = agent_of(log)
        assert not await agent.prepare(0)
        await agent.tick()

    asyncio.run(scene())
    assert "daily-summary/0@0" in caplog.text


@pytest.mark.parametrize("hooks", ["before_append", "while_asked"])
def test_a_rebalance_at_any_moment_of_a_takeover_leaves_nobody_ready(hooks: str):
    async def taken_over(moment: int) -> bool:
        """Whether the takeover has such a moment."""
        log = Log()
        await agent_of(log, "before").prepare(0)
        agent = agent_of(log)

        async def nothing() -> None: ...

        async def rebalance() -> None:
            agent.revoked()
            agent.assigned(set())

        setattr(log, hooks, [*[nothing] * moment, rebalance])
        is_ready = await agent.prepare(0)
        if getattr(log, hooks):
            return False
        assert not is_ready, moment
        agent.assigned(ALL)
        batch = Batch(raw(received(reference="user_1")))
        await agent.process(batch)
        assert batch.is_done
        return True

    async def scene() -> None:
        moment = 0
        while await taken_over(moment):
            moment += 1
        assert moment

    asyncio.run(scene())


def test_memory_is_what_the_log_says_after_an_operator_wrote_in_between():
    async def scene() -> None:
        log = Log()
        agent = agent_of(log)
        await agent.prepare(0)
        await agent.process(Batch(raw(received(reference="user_1"))))
        (row,) = [position for position in log.newest() if position[0] == "daily-summary"]

        async def deletes() -> None:
            log.add(Outgoing(row[0], 0, row[1], None))

        log.before_append = [deletes]
        more = received(
            event_id="e2", sent_at_ms=NOW + 1, reference="user_1", body=DAILY.replace(b"100", b"2")
        )
        await agent.process(Batch(raw(more, 1)))
        # What is decided next merges into the row that the log has.
        third = received(
            event_id="e3", sent_at_ms=NOW + 2, reference="user_1",
            body=DAILY.replace(b'"steps": 100', b'"floors": 3').replace(
                b'"metadata": {"start_time": "2026-07-01T00:00:00+01:00"}', b'"date": "2026-07-01"'
            ),
        )  # fmt: skip
        before = log.newest()[row]
        await agent.process(Batch(raw(third, 2)))
        after = log.newest()[row]
        assert before is not None
        assert after is not None
        assert decode_row(DAILY_SUMMARY, after).values == decode_row(DAILY_SUMMARY, before).values

    asyncio.run(scene())


def test_what_may_not_be_written_yet_does_not_reach_the_store(monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        log, store = Log(), MemoryStore()
        agent = agent_of(log, store=store)
        await agent.prepare(0)
        await agent.process(Batch(raw(received())))
        waits = store.scan(WAITS)
        assert waits
        step = agent.intake.step

        def refused(*arguments: object) -> list[Outgoing]:
            step(*arguments)  # type: ignore[arg-type]
            raise NotYetReadable("expected a form that all members read, found a newer one")

        log.acknowledges.clear()
        first = asyncio.create_task(agent.process(Batch(raw(received(event_id="x"), 1))))
        await asyncio.sleep(0)
        batch = Batch(raw(received(event_id="a", type="auth", body=AUTH), 2))
        second = asyncio.create_task(agent.process(batch))
        await asyncio.sleep(0)
        ticking = asyncio.create_task(agent.tick())
        await asyncio.sleep(0)
        monkeypatch.setattr(agent.intake, "step", refused)
        log.acknowledges.set()
        await asyncio.gather(first, second, ticking)
        assert not batch.is_done
        assert store.scan(WAITS)[: len(waits)] == waits

    asyncio.run(scene())


def test_a_torn_store_makes_no_dead_letters():
    async def scene() -> None:
        log, store = Log(), MemoryStore()
        agent = agent_of(log, store=store)
        await agent.prepare(0)

        def torn(*_: object) -> bytes:
            raise StoreCorrupted("torn")

        store.get = torn  # type: ignore[method-assign]
        with pytest.raises(StoreCorrupted):
            await agent.process(Batch(raw(received(reference="user_1"))))
        assert not log.records[DEAD_LETTERS]
        assert not log.newest()

    asyncio.run(scene())


def test_a_rebalance_during_a_tick_ends_nobody():
    async def scene() -> None:
        log = Log()
        agent = agent_of(log)
        await agent.prepare(0)

        async def rebalance() -> None:
            agent.revoked()
            agent.assigned(set())

        log.while_asked = [rebalance]
        await agent.tick()
        assert not log.while_asked, "the rebalance came during the tick"

    asyncio.run(scene())


@pytest.mark.parametrize("goes_on", ["tick", "prepare"])
def test_a_rebalance_while_hidden_records_are_read_ends_nobody(
    goes_on: str, monkeypatch: pytest.MonkeyPatch
):
    async def scene() -> None:
        log = Log()
        two = await one_writes_late(log)
        rebalances = 0

        async def read(
            log: Log, topics: Sequence[str], partition: int, **between: int | None
        ) -> AsyncIterator[list[Incoming]]:
            nonlocal rebalances
            async for records in read_partition(log, topics, partition, **between):
                if not rebalances:
                    two.revoked()
                    two.assigned(set())
                rebalances += 1
                yield records

        if goes_on == "prepare":
            two.revoked()
            two.assigned(ALL)
        monkeypatch.setattr(fenced_log, "read_partition", read)
        await (two.tick() if goes_on == "tick" else two.prepare(0))
        assert rebalances
        await agent_of(log, "three").prepare(0)
        assert log.newest().items() <= log.kept().items(), "whoever has it next shows them"

    asyncio.run(scene())


@pytest.mark.parametrize("comes", [True, False])
def test_a_partition_that_gets_no_records_though_there_are_some_is_told_by_the_watchdog(
    comes: bool,
):
    async def scene() -> None:
        log, time = Log(), Time()
        watchdog = Watchdog(patience_s=60, monotonic=time)
        agent = agent_of(log, watchdog=watchdog)
        await agent.prepare(0)
        lag = {topic: int(topic == WEBHOOKS) for topic in Intake.sources}

        async def behind(topics: Sequence[str], partition: int) -> dict[str, int]:
            return {topic: len(log.records[topic]) - lag[topic] for topic in topics}

        log.committed = behind  # type: ignore[method-assign, assignment]
        time.now_s = 59
        if comes:
            await agent.process(Batch(raw(received(reference="user_1"))))
        await agent.tick()
        time.now_s = 61
        if comes:
            watchdog.check()
        else:
            with pytest.raises(Stalled, match="progress of partition 0 within 60 s"):
                watchdog.check()
        lag[WEBHOOKS] = 0
        agent._checked_s = -math.inf
        await agent.tick()
        watchdog.check()

    asyncio.run(scene())


@pytest.mark.parametrize("go_on", [another_delivery, nothing_to_do])
def test_a_log_that_lost_its_end_empties_the_store(
    go_on: Callable[[PartitionRunner], Awaitable[None]],
):
    async def scene() -> None:
        log, store = Log(), MemoryStore()
        agent = agent_of(log, store=store)
        await agent.prepare(0)
        await agent.process(Batch(raw(received(reference="user_1"))))
        for topic in log.records:
            if topic != WEBHOOKS:
                del log.records[topic][1:]
        with pytest.raises(LogCut):
            await go_on(agent)
        assert not store.positions()

    asyncio.run(scene())


def test_a_partition_that_comes_back_is_taken_anew_if_somebody_else_had_it_meanwhile():
    async def scene() -> None:
        log = Log()
        one, two = agent_of(log, "one"), agent_of(log, "two")
        await one.prepare(0)
        # Cut off, one is too late for a rebalance, and two has the partition until the next.
        await two.prepare(0)
        await two.process(Batch(raw(received(reference="user_1"))))
        before = {topic: list(records) for topic, records in log.records.items()}
        one.revoked()
        assert one.assigned(ALL) == {0}
        await one.tick()
        assert log.records == before, "nothing is done before it is looked at"
        await one.prepare(0)
        copy = Batch(raw(received(reference="user_1", request_id="r2"), 1))
        await one.process(copy)
        assert copy.is_done
        (trace,) = log.records[TRACES]
        assert decode(trace.value, DuplicateDropped).first_offset == 0
        assert len([record for record in log.records[ADMISSIONS] if record.value]) == 1

    asyncio.run(scene())


def test_a_partition_that_nobody_else_had_is_kept_and_not_read_again():
    async def scene() -> None:
        log = Log()
        agent = agent_of(log)
        await agent.prepare(0)
        await agent.process(Batch(raw(received(reference="user_1"))))
        log.was_read.clear()
        agent.revoked()
        agent.assigned(ALL)
        assert await agent.prepare(0)
        await agent.process(Batch(raw(received(reference="user_1", request_id="r2"), 1)))
        assert not log.was_read
        assert len(log.records[TRACES]) == 1

    asyncio.run(scene())


def test_what_was_decided_and_not_appended_is_no_memory_of_a_worker_that_lives_on():
    async def scene() -> None:
        log = Log()
        agent = agent_of(log)
        await agent.prepare(0)
        first = Batch(raw(received(reference="user_1")))

        async def never() -> None:
            await asyncio.Event().wait()

        log.before_append = [never]
        processing = asyncio.create_task(agent.process(first))
        await asyncio.sleep(0)
        ticking = asyncio.create_task(agent.tick())
        await asyncio.sleep(0)
        processing.cancel()
        await asyncio.wait([processing])
        await ticking
        again = Batch(*first.records)
        await agent.process(again)
        assert again.is_done
        assert {topic for topic, _ in log.newest()} == {"daily-summary", "users", OUTCOMES}

    asyncio.run(scene())


def test_a_wipe_whose_end_could_not_be_appended_is_not_over(monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        log, store = Log(), MemoryStore()
        agent = agent_of(log, store=store)
        await agent.prepare(0)
        await agent.process(Batch(ordered(0)))
        send = log.send

        async def away(records: Sequence[Outgoing]) -> list[Sent]:
            said = [record.value for record in records if record.topic == WIPES and record.value]
            wipes = [decode(value, UserForgotten) for value in said]
            if any(wipe.done_at_ms for wipe in wipes):
                raise BrokerUnavailable("expected to say that it is over")
            return await send(records)

        monkeypatch.setattr(log, "send", away)
        await agent.tick()
        await until(lambda: bool(agent._sweeps._running[0].done()))
        await agent.process(Batch(raw(received(reference="user_2"), 1)))
        (kept,) = [decode(value, UserForgotten) for _, value in store.scan(Family("x"))]
        assert kept.names, "the store knows no more than the log"
        with pytest.raises(BrokerUnavailable):
            await agent.tick()

    asyncio.run(scene())


@pytest.mark.parametrize("machine", ["awake", "asleep"])
def test_a_wait_ends_on_time_when_no_other_delivery_comes(
    machine: str, caplog: pytest.LogCaptureFixture
):
    """The monotonic clock of a machine that sleeps stands still; its clock of the day does not."""

    async def scene() -> None:
        log, now, at = Log(), [NOW], [0.0]
        agent = agent_of(log, clock=BrokerClock(lambda: now[0], lambda: at[0]))
        await agent.prepare(0)
        await agent.process(Batch(raw(received())))
        for _ in range(60):
            await agent.tick()
            now[0] += 1_000
            at[0] += 1.0
            log.broker_ms = now[0]
        assert not log.records[DEAD_LETTERS]
        now[0] += PARK_FOR_MS
        at[0] += 0.0 if machine == "asleep" else PARK_FOR_MS / 1_000
        log.broker_ms = now[0]
        await agent.tick()
        assert len(log.records[DEAD_LETTERS]) == 1
        assert not caplog.messages, "the clock is right"

    asyncio.run(scene())


def test_a_clock_that_stays_wrong_costs_one_record():
    async def scene() -> None:
        log, now, at = Log(), [NOW], [0.0]
        agent = agent_of(log, clock=BrokerClock(lambda: now[0], lambda: at[0]))
        await agent.prepare(0)
        await agent.process(Batch(raw(received())))
        waiting = len(log.records[WAITING])
        now[0] += 3_600_000
        for _ in range(30):
            now[0] += 1_000
            at[0] += 1.0
            log.broker_ms += 1_000
            await agent.tick()
        assert not log.records[DEAD_LETTERS]
        assert len(log.records[WAITING]) == waiting + 1

    asyncio.run(scene())


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wait_that_begins_while_the_clock_is_wrong_ends_on_time(hours: int):
    async def scene() -> None:
        log, now, at = Log(), [NOW], [0.0]
        agent = agent_of(log, clock=BrokerClock(lambda: now[0], lambda: at[0]))

        def passes(ms: int) -> None:
            now[0] += ms
            at[0] += ms / 1_000
            log.broker_ms += ms

        await agent.prepare(0)
        now[0] += hours * 3_600_000
        await agent.process(Batch(raw(received())))
        now[0] -= hours * 3_600_000
        passes(PARK_FOR_MS - 60_000)
        await agent.tick()
        assert not log.records[DEAD_LETTERS]
        passes(120_000)
        await agent.tick()
        assert len(log.records[DEAD_LETTERS]) == 1

    asyncio.run(scene())


def test_no_wait_ends_because_the_clock_has_jumped():
    async def scene() -> None:
        log, now, at = Log(), [NOW], [0.0]
        agent = agent_of(log, clock=BrokerClock(lambda: now[0], lambda: at[0]))
        await agent.prepare(0)
        await agent.process(Batch(raw(received())))
        now[0] += PARK_FOR_MS
        await agent.tick()
        assert not log.records[DEAD_LETTERS]
        now[0] += PARK_FOR_MS + 1_000
        at[0] += PARK_FOR_MS / 1_000 + 1
        log.broker_ms += PARK_FOR_MS + 1_000
        await agent.tick()
        assert len(log.records[DEAD_LETTERS]) == 1

    asyncio.run(scene())
