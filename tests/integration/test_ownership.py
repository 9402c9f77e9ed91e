"""A partition that is assigned is taken over, whatever happens to the first attempt."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from headwater.processors.runs.engine import engine_of
from headwater.streams.clock import now_ms
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.state_store import StoreTorn
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.ownership import Ownership
from tests.fakes.engines import ENGINES
from tests.waiting import until


def ownership(
    kafka: str,
    driver: Driver,
    take_over: Callable[[int, int], Awaitable[Partition]],
    wake_up: asyncio.Event,
) -> Ownership:
    return Ownership(
        cluster=Cluster(kafka),
        name="tests",
        member=None,
        driver=driver,
        workflow_log=WorkflowLog(cluster=Cluster(kafka), client_id="tests", clock=now_ms),
        clock=now_ms,
        take_over=take_over,
        before_giving_up=lambda _: asyncio.sleep(0),
        given_up=lambda _: None,
        parked=lambda *_: None,
        wake_up=wake_up.set,
    )


async def cancelled_from_within() -> None:
    """As a library does that lets the end of a task of its own out."""
    own = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(own.cancel)
    await own


async def torn() -> None:
    """As a store does that cannot be made, because the disk is full."""
    raise StoreTorn("expected to make a store, found no space")


@pytest.mark.parametrize("fails", [cancelled_from_within, torn])
def test_a_takeover_that_fails_is_tried_again(topics: str, fails: Callable[[], Awaitable[None]]):
    attempts: list[int] = []

    async def take_over(number: int, replied: int) -> Partition:
        attempts.append(number)
        if attempts == [number]:
            await fails()
        return cast("Partition", SimpleNamespace(number=number, replied=replied))

    async def scenario() -> None:
        wake_up, driver = asyncio.Event(), Driver(partitions=1)
        subject = ownership(topics, driver, take_over, wake_up)
        await subject.start()
        try:
            async with asyncio.timeout(20):
                while not attempts or attempts[0] not in driver.partitions:
                    wake_up.clear()
                    await wake_up.wait()
            assert attempts.count(attempts[0]) == 2
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
        subject = ownership(topics, Driver(partitions=1), take_over, asyncio.Event())
        await subject.start()
        async with asyncio.timeout(20):
            await begun.wait()
            tasks = list(subject._takeovers.values())
            await subject.stop()
            await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    asyncio.run(scenario())


def test_a_partition_with_runs_of_a_newer_kind_waits_and_says_so(
    topics: str, caplog: pytest.LogCaptureFixture
):
    attempts: list[int] = []

    async def take_over(number: int, replied: int) -> Partition:
        attempts.append(number)
        if number == 0:
            engine_of(ENGINES, "chart")
        return cast("Partition", SimpleNamespace(number=number, replied=replied, owner=Idle()))

    async def scenario() -> None:
        wake_up, driver = asyncio.Event(), Driver(partitions=1)
        subject = ownership(topics, driver, take_over, wake_up)
        await subject.start()
        running = asyncio.create_task(subject.run())
        try:
            await until(lambda: "of kind 'chart'" in caplog.text)
            async with asyncio.timeout(20):
                while len(driver.partitions) < len(set(attempts)) - 1:
                    wake_up.clear()
                    await wake_up.wait()
            assert attempts.count(0) == 1
            assert 0 not in driver.partitions
        finally:
            running.cancel()
            await subject.stop()

    asyncio.run(scenario())
    assert "partition 0 cannot be taken over: expected runs of one of the kinds" in caplog.text
    assert "found one of kind 'chart', which a newer release started" in caplog.text


class Idle:
    """An owner that nothing is due for."""

    def next_due_ms(self) -> None:
        return None

    def activations(self) -> list[int]:
        return []


def test_what_is_heard_late_of_a_partition_concerns_nobody_who_has_it_now(topics: str):
    async def take_over(number: int, replied: int) -> Partition:
        return cast("Partition", SimpleNamespace(number=number, replied=replied, owner=Idle()))

    async def scenario() -> None:
        wake_up, driver = asyncio.Event(), Driver(partitions=1)
        subject = ownership(topics, driver, take_over, wake_up)

        async def owned() -> Partition:
            async with asyncio.timeout(20):
                while 0 not in driver.partitions:
                    wake_up.clear()
                    await wake_up.wait()
            return driver.partitions[0]

        await subject.start()
        try:
            before = await owned()
            subject.lose([before], "somebody wrote")
            assert 0 not in driver.partitions
            now = await owned()
            subject.lose([before], "somebody wrote, of which an append that was late has heard")
            assert driver.partitions[0] is now
        finally:
            await subject.stop()

    asyncio.run(scenario())
