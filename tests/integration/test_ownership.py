"""A partition that is assigned is taken over, whatever happens to the first attempt."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from types import SimpleNamespace
from typing import cast

import pytest
from typing_extensions import override

from headwater.processors.runs.claims import Claims
from headwater.processors.runs.engine import engine_of
from headwater.schemas.topics import WORKFLOW_COMMANDS
from headwater.streams.clock import monotonic, now_ms
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.state_store import StoreCorrupted
from headwater.streams.ownership.deadlines import SessionDeadlines
from headwater.streams.workflows.command_reader import CommandHandling
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.ownership import GROUP, Handover, Ownership
from tests.conftest import PARTITIONS
from tests.fakes.engines import ENGINES
from tests.integration.consumers import stranger_in
from tests.waiting import until


def ownership(
    kafka: str,
    driver: Driver,
    take_over: Callable[[int, int], Awaitable[Partition]],
    *,
    before_release: Callable[[Collection[int]], Awaitable[None]] = lambda _: asyncio.sleep(0),
    released: Callable[[Partition], None] = lambda _: None,
    after_release: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0),
) -> Ownership:
    clock = BrokerClock(now_ms, monotonic)
    return Ownership(
        cluster=Cluster(kafka),
        name="tests",
        member=None,
        driver=driver,
        workflow_log=WorkflowLog(cluster=Cluster(kafka), client_id="tests", clock=clock),
        deadlines=SessionDeadlines.create(),
        handover=Handover(take_over, before_release, released, after_release),
        handling=CommandHandling(clock, lambda *_: None),
    )


async def cancelled_from_within() -> None:
    """As a library does that lets the end of a task of its own out."""
    own = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(own.cancel)
    await own


async def torn() -> None:
    """As a store does that cannot be made, because the disk is full."""
    raise StoreCorrupted("expected to make a store, found no space")


@pytest.mark.parametrize("fails", [cancelled_from_within, torn])
def test_a_takeover_that_fails_is_tried_again(topics: str, fails: Callable[[], Awaitable[None]]):
    attempts: list[int] = []

    async def take_over(number: int, replied: int) -> Partition:
        attempts.append(number)
        if attempts == [number]:
            await fails()
        return idle_partition(number, replied)

    async def scenario() -> None:
        wake_up = asyncio.Event()
        driver = Driver(partitions=1, wake_up=wake_up.set)
        subject = ownership(topics, driver, take_over)
        await subject.start()
        try:
            async with asyncio.timeout(60):
                while not attempts or attempts[0] not in driver.partitions:
                    wake_up.clear()
                    await wake_up.wait()
            assert attempts.count(attempts[0]) == 2
        finally:
            await subject.stop()

    asyncio.run(scenario())


def test_a_worker_that_the_group_refuses_waits_until_it_is_let_in(
    topics: str, caplog: pytest.LogCaptureFixture
):
    async def take_over(number: int, replied: int) -> Partition:
        return idle_partition(number, replied)

    async def scenario() -> None:
        subject = ownership(topics, Driver(partitions=1), take_over)
        async with stranger_in(GROUP, WORKFLOW_COMMANDS, topics):
            starting = asyncio.create_task(subject.start())
            await until(lambda: "waiting for Kafka" in caplog.text or starting.done())
        try:
            async with asyncio.timeout(60):
                await starting
        finally:
            await subject.stop()

    asyncio.run(scenario())


def test_a_takeover_that_is_given_up_ends(topics: str):
    begun = asyncio.Event()

    async def take_over(_number: int, _replied: int) -> Partition:
        begun.set()
        await asyncio.sleep(60)
        raise AssertionError("expected to be cancelled before")

    async def scenario() -> None:
        subject = ownership(topics, Driver(partitions=1), take_over)
        await subject.start()
        async with asyncio.timeout(60):
            await begun.wait()
            tasks = list(subject._acquiring.values())
            await subject.stop()
            await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    asyncio.run(scenario())


class Members:
    """Two members of the group, and what they do, in order."""

    def __init__(self, kafka: str) -> None:
        self.does: list[tuple[str, str, int]] = []
        self.drivers = {name: Driver(partitions=PARTITIONS) for name in ("one", "two")}
        self.two = ownership(kafka, self.drivers["two"], self._taking("two"))
        self.one = ownership(
            *(kafka, self.drivers["one"], self._taking("one")),
            before_release=self.before_release,
            after_release=self.after_release,
        )

    def _taking(self, name: str) -> Callable[[int, int], Awaitable[Partition]]:
        async def take_over(number: int, replied: int) -> Partition:
            self.does.append((name, "takes over", number))
            return idle_partition(number, replied)

        return take_over

    def taken(self, name: str) -> Collection[int]:
        return self.drivers[name].partitions

    async def before_release(self, numbers: Collection[int]) -> None:
        pass

    async def after_release(self) -> None:
        pass

    async def play(self) -> None:
        """The one has all, until the other comes."""
        async with asyncio.timeout(60):
            await self.one.start()
            await until(lambda: len(self.taken("one")) == PARTITIONS)
            self.does.clear()
            await self.two.start()
            await until(lambda: bool(self.taken("two")))
            await until(lambda: len(self.taken("one")) + len(self.taken("two")) == PARTITIONS)

    async def close(self) -> None:
        await asyncio.gather(self.one.stop(), self.two.stop())


async def closed_after(members: Members) -> None:
    try:
        await members.play()
    finally:
        await members.close()


def test_nobody_takes_a_partition_over_before_the_code_of_its_owner_has_heard(topics: str):
    class Slow(Members):
        @override
        async def after_release(self) -> None:
            await asyncio.sleep(0.3)
            self.does.append(("one", "has told its code", 0))

    members = Slow(topics)
    asyncio.run(closed_after(members))
    assert members.does[0] == ("one", "has told its code", 0)
    assert len(members.does) == PARTITIONS + 1


def test_what_is_lost_while_partitions_are_given_up_is_not_taken_over_again(topics: str):
    class Loses(Members):
        @override
        async def before_release(self, numbers: Collection[int]) -> None:
            # As when the last append finds that somebody else has claimed them.
            for partition in list(self.drivers["one"].partitions.values()):
                self.one.reacquire(partition, "somebody wrote")

    members = Loses(topics)
    asyncio.run(closed_after(members))
    numbers = [number for _, _, number in members.does]
    assert sorted(numbers) == list(range(PARTITIONS)), members.does


def test_a_takeover_that_does_not_hear_that_it_is_cancelled_comes_to_nothing(topics: str):
    given_up: list[object] = []
    stale: list[object] = []
    deaf, others_own = True, asyncio.Event()

    async def take_over(number: int, replied: int) -> Partition:
        partition = idle_partition(number, replied)
        if deaf:
            stale.append(partition)
            with contextlib.suppress(asyncio.CancelledError):  # as a library does at times
                await asyncio.sleep(60)
            await others_own.wait()
        return partition

    async def scenario() -> None:
        nonlocal deaf
        drivers = [Driver(partitions=PARTITIONS) for _ in range(2)]
        one, two = (
            ownership(topics, driver, take_over, released=given_up.append) for driver in drivers
        )
        try:
            async with asyncio.timeout(60):
                await one.start()
                await until(lambda: len(stale) == PARTITIONS)
                deaf = False
                await two.start()
                await until(lambda: sum(len(driver.partitions) for driver in drivers) >= PARTITIONS)
                others_own.set()
                await until(lambda: len(given_up) == PARTITIONS)
        finally:
            await asyncio.gather(one.stop(), two.stop())
        owned = [partition for driver in drivers for partition in driver.partitions.values()]
        assert sorted(map(id, given_up)) == sorted(map(id, stale))
        assert sorted(item.number for item in owned) == list(range(PARTITIONS))

    asyncio.run(scenario())


def test_a_takeover_whose_commands_cannot_be_read_leaves_nothing_open(topics: str):
    given_up: list[int] = []

    async def take_over(number: int, _replied: int) -> Partition:
        if not given_up:
            # A leader epoch that no request can hold.
            owner = SimpleNamespace(claims=Claims(cause=0, leader_epoch=2**40))
            return cast("Partition", SimpleNamespace(number=number, replied=0, owner=owner))
        return idle_partition(number, 0)

    async def scenario() -> None:
        driver = Driver(partitions=PARTITIONS)
        subject = ownership(
            *(topics, driver, take_over),
            released=lambda partition: given_up.append(partition.number),
        )
        await subject.start()
        try:
            async with asyncio.timeout(60):
                await until(lambda: len(driver.partitions) == PARTITIONS)
        finally:
            await subject.stop()

    asyncio.run(scenario())
    assert given_up


def test_a_partition_with_runs_of_a_newer_kind_waits_and_says_so(
    topics: str, caplog: pytest.LogCaptureFixture
):
    attempts: list[int] = []

    async def take_over(number: int, replied: int) -> Partition:
        attempts.append(number)
        if number == 0:
            engine_of(ENGINES, "chart")
        return idle_partition(number, replied)

    async def scenario() -> None:
        wake_up = asyncio.Event()
        driver = Driver(partitions=1, wake_up=wake_up.set)
        subject = ownership(topics, driver, take_over)
        await subject.start()
        running = asyncio.create_task(subject.run())
        try:
            await until(lambda: "of kind 'chart'" in caplog.text)
            async with asyncio.timeout(60):
                while len(driver.partitions) < len(set(attempts)) - 1:
                    wake_up.clear()
                    await wake_up.wait()
            assert attempts.count(0) == 1
            assert 0 not in driver.partitions
        finally:
            running.cancel()
            await subject.stop()

    asyncio.run(scenario())
    assert "cannot acquire partition 0: expected runs of one of the kinds" in caplog.text
    assert "found one of kind 'chart', which a newer release started" in caplog.text


class Idle:
    """An owner that nothing is due for, and that has decided nothing."""

    def __init__(self) -> None:
        self.claims = Claims()

    def next_due_ms(self) -> None:
        return None

    def activations(self) -> list[int]:
        return []


def idle_partition(number: int, replied: int) -> Partition:
    fields = {"commands": [], "in_flight": [], "owner": Idle()}
    return cast("Partition", SimpleNamespace(number=number, replied=replied, **fields))


def test_what_is_heard_late_of_a_partition_concerns_nobody_who_has_it_now(topics: str):
    async def take_over(number: int, replied: int) -> Partition:
        return idle_partition(number, replied)

    async def scenario() -> None:
        wake_up = asyncio.Event()
        driver = Driver(partitions=1, wake_up=wake_up.set)
        subject = ownership(topics, driver, take_over)

        async def owned() -> Partition:
            async with asyncio.timeout(60):
                while 0 not in driver.partitions:
                    wake_up.clear()
                    await wake_up.wait()
            return driver.partitions[0]

        await subject.start()
        try:
            before = await owned()
            subject.reacquire(before, "somebody wrote")
            assert 0 not in driver.partitions
            now = await owned()
            subject.reacquire(before, "somebody wrote, of which an append that was late has heard")
            assert driver.partitions[0] is now
        finally:
            await subject.stop()

    asyncio.run(scenario())
