"""What used to stop the workflow worker: values that are large together, a topic that is not there,
and time that passes while it does not.
"""

import asyncio
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.processors.runs.limits import FAILURE_MESSAGE_MAX
from headwater.schemas.failures import RECORD_TOO_LARGE
from headwater.schemas.history import PauseRun, ResumeRun, RetryRun
from headwater.schemas.statuses import RunStatus
from headwater.schemas.topics import MAX_RECORD_BYTES
from headwater.streams.kafka.records import partition_of
from tests.e2e.workflow_system import PARTITIONS, WorkflowSystem, opened
from tests.integration.test_workflow_worker import Scene, play, snapshots, work


@pytest.fixture(scope="module")
def system(scratch: Path) -> Iterator[WorkflowSystem]:
    directory = scratch / "workflow-worker-limits"
    directory.mkdir()
    with opened(WorkflowSystem(directory)) as system:
        yield system


def test_a_topic_that_is_not_there_holds_up_nobody_else(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        await scene.ends(await scene.create("announcer", "lost", '"no-such-topic"'))
        key = await scene.create("creator", "unhindered")
        assert await scene.ends(key) == "unhindered-x"
        await scene.until(
            lambda: scene.story.ended("created/unhindered-x"), "what it has created to end"
        )

    work(system)
    play(system, act)


def test_an_event_that_was_sent_in_time_counts_though_the_worker_was_suspended(
    system: WorkflowSystem,
):
    async def act(scene: Scene) -> None:
        for attempt in range(3):
            for n in range(30):
                await scene.create("looping", f"busy-{attempt}-{n}")
            # Long enough that all of them are seen to wait before the first has waited enough.
            patient = [f"stalled-{attempt}-{n}" for n in range(4)]
            keys = await asyncio.gather(
                *(scene.create("patient", item, "6000") for item in patient)
            )
            for key in keys:
                await scene.status(key, RunStatus.WAITING)
            system.parts["one"].send_signal(signal.SIGSTOP)
            # What the worker had asked the broker for before has been answered when it wakes up.
            await asyncio.sleep(0.2)
            requested = [asyncio.create_task(scene.event(key)) for key in keys]
            await scene.after_the_waits(keys)
            system.parts["one"].send_signal(signal.SIGCONT)
            await asyncio.gather(*requested, return_exceptions=True)
            assert [await scene.ends(key) for key in keys] == [1] * len(keys), attempt

    work(system)
    play(system, act)


def test_a_state_that_is_larger_than_a_record_is_in_several_and_is_taken_over(
    system: WorkflowSystem,
):
    async def act(scene: Scene) -> None:
        key = await scene.create("hoarder", "large")
        await scene.status(key, RunStatus.WAITING)
        await scene.written_down(key)
        taken = await snapshots(system, partition_of(key.encode(), PARTITIONS))
        first, second = taken[key.encode()], taken[f"{key}#1".encode()]
        assert (first.parts, first.compressed, first.position) == (2, True, second.position)
        assert sum(len(zlib.decompress(e.state)) for e in (first, second)) > MAX_RECORD_BYTES
        system.kill("one")
        system.start("one", checkpoint_records="1")
        assert not (await scene.ask(key, PauseRun())).code

    work(system)
    play(system, act)


def test_many_large_events_that_are_taken_at_once_fit(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        key = await scene.create("greedy", "at-once")
        await asyncio.gather(*(scene.event(key, "line", f'"{"x" * 1_000_000}"') for _ in range(16)))
        await scene.event(key, "begin")
        assert 1 <= await scene.ends(key) <= 16

    work(system)
    play(system, act)


def test_large_results_that_come_at_once_fit(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        key = await scene.create("bulky", "at-once", "[16, 1000000]")
        assert await scene.ends(key) == 16_000_000

    work(system)
    play(system, act)


def test_large_children_that_begin_at_once_fit(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        key = await scene.create("crowded", "at-once", "[13, 900000]")
        assert await scene.ends(key) == 13 * 900_000

    work(system)
    play(system, act)


@pytest.mark.parametrize("size", [900_000, 12_000_000])
def test_long_errors_fit(system: WorkflowSystem, size: int):
    async def act(scene: Scene) -> None:
        key = await scene.create("loud", f"of-{size}", str(size))
        await scene.status(key, RunStatus.ERRORED)
        failure = scene.story.state(key).failure
        assert failure is not None
        assert (failure.name, len(failure.message)) == ("ValueError", FAILURE_MESSAGE_MAX)

    work(system)
    play(system, act)


def test_what_is_decided_at_once_and_does_not_fit_costs_its_instance_alone(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        # One in each partition goes on beside it.
        others = [await scene.create("laden", f"beside-{n}", "1") for n in range(8)]
        key = await scene.create("laden", "too-much", "13")
        await scene.status(key, RunStatus.WAITING)
        assert not (await scene.ask(key, PauseRun())).code
        for number in range(13):
            await scene.event(key, f"t{number}", f'"{"x" * 900_000}"')
        resumed = await scene.ask(key, ResumeRun())
        assert (resumed.code, resumed.status) == ("", "errored")
        await scene.status(key, RunStatus.ERRORED)
        failure = scene.story.state(key).failure
        assert failure is not None
        assert failure.name == RECORD_TOO_LARGE
        for other in others:
            await scene.event(other, "t0", '"xx"')
        assert [await scene.ends(other) for other in others] == [2] * 8

        system.kill("one")
        system.start("one", checkpoint_records="1")
        assert not (await scene.ask(key, RetryRun())).code
        assert await scene.ends(key) == 13 * 900_000

    work(system)
    play(system, act)
