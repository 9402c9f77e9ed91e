"""A workflow worker that was suspended begins nothing before it knows what it still owns.

Two workers; the one that has all the work is stopped, alone or with its code hosts, for longer than
its session. The other takes over and completes what the first had in hand. When the first goes on,
it has acknowledgements, frames and queues of before: none of them may begin a step again whose
completion everybody can read by then.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.schemas.history import StartRun
from headwater.streams.ownership.deadlines import SESSION_S
from tests.e2e.test_workflows_killing import check_trail
from tests.e2e.workflow_system import Sender, Story, WorkflowSystem, opened, play

INSTANCES = 150


@pytest.fixture
def system(scratch: Path, request: pytest.FixtureRequest) -> Iterator[WorkflowSystem]:
    directory = scratch / request.node.name.replace("[", "-").strip("]")
    directory.mkdir()
    with opened(WorkflowSystem(directory)) as system:
        yield system


def worker_alone(system: WorkflowSystem) -> list[int]:
    return [system.parts["one"].pid]


def worker_and_host(system: WorkflowSystem) -> list[int]:
    host = system.host_of("one")
    assert host is not None
    # The host first: it then has frames that it has not read.
    return [host, system.parts["one"].pid]


def host_goes_on_first(system: WorkflowSystem) -> list[int]:
    return worker_and_host(system)[::-1]


def owners(story: Story) -> set[int]:
    return {int(claim.owner.rpartition("-")[2]) for claim in story.claims.values()}


@pytest.mark.parametrize(
    "whom",
    [
        pytest.param(worker_alone, marks=pytest.mark.soak),
        pytest.param(worker_and_host, marks=pytest.mark.soak),
        host_goes_on_first,
    ],
)
def test_a_worker_that_was_suspended_begins_no_step_that_another_has_completed(
    system: WorkflowSystem, whom: Callable[[WorkflowSystem], list[int]]
):
    keys = [f"looping/n{number}" for number in range(INSTANCES)]

    async def act(story: Story, client: Sender) -> None:
        one = system.parts["one"].pid
        await system.until(story, lambda: owners(story) == {one}, "the first worker to own all")
        async with asyncio.TaskGroup() as tasks:
            for key in keys:
                tasks.create_task(client.send(*key.split("/", 1), StartRun("7")))
        await system.until(story, lambda: len(story.completions()) > INSTANCES, "steps")
        stopped = whom(system)
        system.start("two", member=False)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            two = system.parts["two"].pid
            await system.until(story, lambda: owners(story) == {two}, "the second to own all")
            done = len(story.completions())
            reached = done + INSTANCES
            await system.until(story, lambda: len(story.completions()) >= reached, "more steps")
        finally:
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)
        # It joins again, and has its share of the partitions.
        await system.until(story, lambda: owners(story) == {one, two}, "the first to come back")
        await system.until(story, lambda: all(map(story.ended, keys)), "all ends")
        story.check(await system.commands())
        check_trail(system.marks(), story, keys)

    assert SESSION_S == 10
    system.start("one", member=False)
    play(system, act)
