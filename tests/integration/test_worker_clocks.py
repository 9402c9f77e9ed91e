"""A worker decides by Kafka's clock while that of its machine is wrong, and by its own else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import pytest

from headwater.processors.code.state import CodeRun
from headwater.schemas.history import SendEvent, StartRun
from headwater.streams.clock import now_ms
from headwater.streams.workflows.client import WorkflowClient
from headwater.streams.workflows.worker import WorkflowWorker
from tests.e2e.workflow_system import Sender
from tests.waiting import until
from tests.workflow_parts import a_client, a_worker, running, started

_HOUR_MS: Final = 3_600_000
_HALF_AN_HOUR_MS: Final = 1_800_000
#: Clocks of one machine, and how long a broker needs to append a record, differ by less.
_NEAR_MS: Final = 10_000


class ShiftedClock:
    """A clock that is off by as much as the test says."""

    def __init__(self) -> None:
        self.off_ms = 0

    def __call__(self) -> int:
        return now_ms() + self.off_ms


class Scene:
    """Instances of a worker; their ids end with the name of the scene."""

    def __init__(self, worker: WorkflowWorker, client: WorkflowClient, name: str) -> None:
        self._worker = worker
        self.sender = Sender(client)
        self._name = name

    def run(self, key: str) -> CodeRun | None:
        for partition in self._worker._driver.partitions.values():
            live = partition.owner.instances.find(key)
            if live is not None:
                assert isinstance(live.run, CodeRun)
                return live.run
        return None

    def status(self, key: str) -> str:
        run = self.run(key)
        return "" if run is None else run.status.value

    async def waits(self, workflow: str, instance: str, length: str) -> str:
        """Creates an instance and returns its key when it waits."""
        instance_id = f"{instance}-{self._name}"
        key = f"{workflow}/{instance_id}"
        await self.sender.send(workflow, instance_id, StartRun(f'"{length}"'))
        await until(lambda: self.status(key) == "waiting")
        return key

    async def completes(self, key: str) -> CodeRun:
        await until(lambda: self.status(key) == "complete")
        run = self.run(key)
        assert run is not None
        return run

    async def hears(self, key: str) -> None:
        """Sends an instance its event, which comes in time."""
        workflow, _, instance_id = key.partition("/")
        await self.sender.send(workflow, instance_id, SendEvent(f"{instance_id}#1", "go", "1"))
        assert (await self.completes(key)).output == "1"

    def check_due(self, key: str, earliest_ms: int, latest_ms: int) -> None:
        """The only entry of an instance is due at a time."""
        run = self.run(key)
        assert run is not None
        (entry,) = run.entries.values()
        assert earliest_ms - _NEAR_MS <= (entry.wake_at_ms or 0) <= latest_ms + _NEAR_MS


@asynccontextmanager
async def scene_of(
    topics: str, name: str, worker_clock: ShiftedClock, client_clock: Callable[[], int] = now_ms
) -> AsyncIterator[Scene]:
    worker, client = a_worker(topics, clock=worker_clock), a_client(topics, clock=client_clock)
    async with running(worker), started(client):
        scene = Scene(worker, client, name)
        await scene.sender.ready()
        yield scene


@pytest.mark.parametrize(("off_ms", "name"), [(-_HOUR_MS, "behind"), (_HOUR_MS, "ahead")])
def test_what_is_decided_while_a_clock_is_wrong_holds_when_it_is_right_again(
    topics: str, off_ms: int, name: str, caplog: pytest.LogCaptureFixture
):
    clock = ShiftedClock()

    async def play() -> None:
        async with scene_of(topics, name, clock) as scene:
            early = await scene.waits("sleeper", "early", "3 seconds")
            clock.off_ms, since_ms = off_ms, now_ms()
            # It was set before the jump, and is due when it would have been without.
            await scene.completes(early)
            await scene.hears(await scene.waits("patient", "hour", "1 hour"))
            half = await scene.waits("patient", "half", "30 minutes")
            long = await scene.waits("sleeper", "long", "30 minutes")
            for key in (half, long):
                scene.check_due(key, since_ms + _HALF_AN_HOUR_MS, now_ms() + _HALF_AN_HOUR_MS)
            clock.off_ms = 0
            await scene.completes(await scene.waits("sleeper", "after", "3 seconds"))
            assert scene.status(half) == scene.status(long) == "waiting"
            await scene.hears(half)

    with caplog.at_level("INFO"):
        asyncio.run(play())
    assert f" s {name}" in caplog.text
    assert "is right again" in caplog.text


def test_nothing_is_due_early_for_a_clock_that_is_a_month_ahead(topics: str):
    clock = ShiftedClock()

    async def play() -> None:
        async with scene_of(topics, "ahead", clock) as scene:
            month = await scene.waits("sleeper", "month", "30 days")
            clock.off_ms = 40 * 24 * _HOUR_MS
            await scene.completes(await scene.waits("sleeper", "moment", "3 seconds"))
            assert scene.status(month) == "waiting"

    asyncio.run(play())


def test_an_event_counts_when_it_came_though_its_sender_was_ahead(topics: str):
    clock = ShiftedClock()

    async def play() -> None:
        async with scene_of(topics, "sent-ahead", ShiftedClock(), clock) as scene:
            key = await scene.waits("patient", "half", "30 minutes")
            clock.off_ms = _HOUR_MS
            await scene.hears(key)

    asyncio.run(play())
