"""Group commit over a producer that acknowledges when the test says so, or never."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from headwater.schemas.errors import BrokerUnavailable, Overloaded
from headwater.streams.kafka.append_queues import GroupCommit
from headwater.streams.kafka.appender import BATCH_BYTES, Sent
from headwater.streams.kafka.records import Outgoing
from tests.waiting import until

TOPIC = "webhooks"


class Entry:
    def __init__(self, name: str, size: int = 10, partition: int = 0) -> None:
        self.name = name
        self.record = Outgoing(TOPIC, partition, name.encode(), b"v" * size)


class StallingProducer:
    """Takes every group; acknowledges one, or refuses it, when the test says so."""

    def __init__(self, world: "StallingProducers") -> None:
        self._world = world

    async def partitions(self, topic: str) -> int:
        assert topic == TOPIC
        self._world.connects += 1
        await self._world.connected.wait()
        return 2

    async def send(self, records: Sequence[Outgoing]) -> list[Sent]:
        self._world.groups.append([(record.key or b"").decode() for record in records])
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._world.waiting.append(acknowledged)
        self._world.through.append(self)
        return [Sent(TOPIC, 0, len(records), acknowledged)]

    async def acknowledged(self, sent: Sequence[Sent]) -> list[int]:
        for batch in sent:
            await batch.acknowledged
        return [0 for _ in sent]


class StallingProducers:
    """A producer for all partitions, and another for each that was failed."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.waiting: list[asyncio.Future[None]] = []
        #: The producer that each group was given to.
        self.through: list[StallingProducer] = []
        self.connects = 0
        self.connected = asyncio.Event()
        self.connected.set()
        self._of = dict.fromkeys(range(2), StallingProducer(self))

    def producer_for(self, partition: int) -> StallingProducer:
        return self._of[partition]

    def replace_failed(self, partition: int, producer: StallingProducer) -> None:
        assert self._of[partition] is producer
        self._of[partition] = StallingProducer(self)

    async def stop(self, within_s: float) -> None:
        """Nothing is left to send."""


class World:
    """A group commit and what it said of each entry."""

    def __init__(self, held_bytes_max: int = 1_000_000) -> None:
        self.producer = StallingProducers()
        self.settled: list[tuple[str, bool]] = []
        self.commit: GroupCommit[Entry] = GroupCommit(
            self.producer, TOPIC, settled=self._settled, held_bytes_max=held_bytes_max
        )

    def _settled(self, entries: Sequence[Entry], error: BrokerUnavailable | None) -> None:
        self.settled += [(entry.name, error is None) for entry in entries]

    async def sent(self, count: int) -> None:
        """Waits until the producer was given so many groups."""
        await until(lambda: len(self.producer.groups) >= count)


def run(scenario: Callable[[World], Awaitable[None]], held_bytes_max: int = 1_000_000) -> World:
    async def whole() -> World:
        world = World(held_bytes_max)
        await world.commit.start()
        try:
            await until(lambda: world.commit.ready)
            await scenario(world)
        finally:
            await world.commit.stop()
        return world

    return asyncio.run(whole())


async def stall(world: World) -> None:
    """A group is with a broker that does not answer, so nothing more is sent to its partition."""
    world.commit.add([Entry("first")])
    await world.sent(1)


def test_what_is_added_while_a_group_is_under_way_is_appended_together_and_in_order():
    async def scenario(world: World) -> None:
        await stall(world)
        world.commit.add([Entry("a"), Entry("b")])
        world.commit.add([Entry("c")])
        world.producer.waiting[0].set_result(None)
        await world.sent(2)
        assert world.producer.groups == [["first"], ["a", "b", "c"]]
        assert world.settled == [("first", True)]
        world.producer.waiting[1].set_result(None)
        await until(lambda: len(world.settled) == 4)
        assert [ok for _, ok in world.settled] == [True] * 4

    run(scenario)


def test_a_partition_that_stalls_holds_up_no_other():
    async def scenario(world: World) -> None:
        await stall(world)
        world.commit.add([Entry("waits"), Entry("other", partition=1), Entry("waits too")])
        await world.sent(2)
        world.producer.waiting[1].set_result(None)
        await until(lambda: world.settled == [("other", True)])
        world.commit.add([Entry("another", partition=1)])
        await world.sent(3)
        assert world.producer.groups[1:] == [["other"], ["another"]]

    run(scenario)


def test_what_nobody_waits_for_any_more_is_never_appended():
    async def scenario(world: World) -> None:
        await stall(world)
        first_try, retry, other = Entry("first try"), Entry("retry"), Entry("other")
        world.commit.add([first_try, other])
        assert world.commit.withdraw(first_try)
        world.commit.add([retry])
        world.producer.waiting[0].set_result(None)
        await world.sent(2)
        assert world.producer.groups[1] == ["other", "retry"]
        assert "first try" not in dict(world.settled)

    run(scenario)


def test_what_is_with_the_producer_cannot_be_withdrawn():
    async def scenario(world: World) -> None:
        entry = Entry("sent")
        world.commit.add([entry])
        await world.sent(1)
        assert not world.commit.withdraw(entry)
        world.producer.waiting[0].set_result(None)
        await until(lambda: world.settled == [("sent", True)])

    run(scenario)


def test_beyond_the_limit_callers_are_refused_whole_and_at_once():
    async def scenario(world: World) -> None:
        await stall(world)
        entries = [Entry(f"e{number}", size=1_000) for number in range(10)]
        with pytest.raises(Overloaded, match="webhooks"):
            world.commit.add(entries)
        world.commit.add(entries[:3])
        with pytest.raises(Overloaded):
            world.commit.add(entries[3:6])
        # Room that was withdrawn, or acknowledged, is room again.
        assert world.commit.withdraw(entries[0])
        assert world.commit.withdraw(entries[1])
        world.commit.add(entries[3:5])
        world.producer.waiting[0].set_result(None)
        await world.sent(2)
        assert world.producer.groups[1] == ["e2", "e3", "e4"]
        world.producer.waiting[1].set_result(None)
        await until(lambda: len(world.settled) == 4)
        world.commit.add(entries[5:9])

    run(scenario, held_bytes_max=7_000)


def test_a_group_is_one_kafka_batch_and_a_larger_record_goes_alone():
    async def scenario(world: World) -> None:
        await stall(world)
        half = BATCH_BYTES // 2
        world.commit.add(
            [Entry("small"), Entry("half", half), Entry("half too", half), Entry("large", 4 * half)]
        )
        for group in range(4):
            await world.sent(group + 1)
            world.producer.waiting[group].set_result(None)
        assert world.producer.groups[1:] == [["small", "half"], ["half too"], ["large"]]

    run(scenario, held_bytes_max=100 * BATCH_BYTES)


def test_after_a_failed_append_the_producer_is_replaced_and_what_is_queued_goes_out():
    async def scenario(world: World) -> None:
        await stall(world)
        world.commit.add([Entry("queued")])
        world.producer.waiting[0].set_exception(BrokerUnavailable("expected an acknowledgement"))
        await world.sent(2)
        assert world.producer.groups[1] == ["queued"]
        assert world.settled == [("first", False)]
        assert world.producer.through[0] is not world.producer.through[1]
        assert world.commit.ready

    run(scenario)


def test_a_failed_append_is_a_failure_of_its_partition_alone():
    async def scenario(world: World) -> None:
        await stall(world)
        world.producer.connected.clear()
        world.producer.waiting[0].set_exception(BrokerUnavailable("expected an acknowledgement"))
        await until(lambda: world.settled == [("first", False)])
        # At once, although the partition that failed still has no other producer.
        for number, name in enumerate(("other", "another"), start=1):
            world.commit.add([Entry(name, partition=1)])
            await world.sent(number + 1)
            world.producer.waiting[number].set_result(None)
            await until(lambda name=name: world.settled[-1] == (name, True))
        assert world.producer.through[2] is world.producer.through[1]
        world.producer.connected.set()

    run(scenario)


def test_a_failure_is_noticed_although_nothing_more_is_added():
    async def scenario(world: World) -> None:
        world.commit.add([Entry("only")])
        await world.sent(1)
        world.producer.waiting[0].set_exception(BrokerUnavailable("expected an acknowledgement"))
        await until(lambda: world.producer.connects == 2 and world.commit.ready)

    world = run(scenario)
    assert world.settled == [("only", False)]


def test_a_fault_of_our_own_fails_a_group_and_the_next_one_is_appended():
    async def scenario(world: World) -> None:
        await stall(world)
        world.commit.add([Entry("queued")])
        world.producer.waiting[0].set_exception(RuntimeError("a bug"))
        await world.sent(2)
        assert world.settled == [("first", False)]
        assert world.producer.groups[1] == ["queued"]

    run(scenario)


def test_stopping_while_the_broker_stalls_ends_and_fails_everything_that_is_left():
    async def scenario(world: World) -> None:
        await stall(world)
        world.commit.add([Entry("queued")])

    world = run(scenario)
    assert world.settled == [("first", False), ("queued", False)]
    assert not world.commit.ready


def test_a_record_waits_for_others_only_while_something_is_appended():
    async def scenario(world: World) -> None:
        world.commit._linger_s = 3_600.0
        world.commit.add([Entry("alone")])
        await world.sent(1)
        world.commit.add([Entry("of a burst", partition=1)])
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.producer.groups == [["alone"]]

    run(scenario)
