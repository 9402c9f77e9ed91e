"""A partition that is assigned is taken over, whatever happens to the first attempt."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

from headwater.streams.clock import now_ms
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.ownership import Ownership


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
        before_giving_up=lambda: asyncio.sleep(0),
        given_up=lambda _: None,
        parked=lambda *_: None,
        wake_up=wake_up.set,
    )


async def cancelled_from_within() -> None:
    """As a library does that lets the end of a task of its own out."""
    own = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(own.cancel)
    await own


def test_a_takeover_that_is_cancelled_from_within_is_tried_again(topics: str):
    attempts: list[int] = []

    async def take_over(number: int, replied: int) -> Partition:
        attempts.append(number)
        if attempts == [number]:
            await cancelled_from_within()
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
