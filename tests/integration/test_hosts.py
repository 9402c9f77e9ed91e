"""Apps side by side in a worker on a real broker, each in a process that is killed alone."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from headwater.schemas.failures import INSTANCE_EXISTS
from headwater.schemas.history import StartRun, StepFailed, StepsRetried
from headwater.schemas.statuses import RunStatus
from headwater.streams.code_host.builtin_app import BUILTIN_APP
from tests.apps.beside import STOPS
from tests.e2e.workflow_system import Sender, Story, WorkflowSystem, opened, play

SHOP, BESIDE, CLOCK = APPS = "tests.e2e.workflow_app", "tests.apps.beside", "tests.apps.starting"
PARCELS = [f"parcel/p{n}" for n in range(60)]
ORDERS = [f"ten/o{n}" for n in range(60)]
KILLS = 5


@pytest.fixture(scope="module")
def system(scratch: Path) -> Iterator[WorkflowSystem]:
    directory = scratch / "hosts"
    directory.mkdir()
    with opened(WorkflowSystem(directory, *APPS)) as system:
        system.start("one")
        yield system


async def create(client: Sender, key: str) -> None:
    workflow, _, name = key.partition("/")
    reply = await client.send(workflow, name, StartRun("null"))
    # It is sent again until a worker is there, and may have been carried out before.
    assert reply.code in {"", INSTANCE_EXISTS}, reply


def done(story: Story) -> int:
    """How many steps of parcels are completed."""
    return sum(instance in PARCELS for instance, _, _ in story.completions())


def test_a_host_that_is_killed_costs_the_others_nothing(system: WorkflowSystem):
    async def act(story: Story, client: Sender) -> None:
        killed: set[int | None] = {None}
        async with asyncio.TaskGroup() as tasks:
            for key in PARCELS + ORDERS:
                tasks.create_task(create(client, key))
            for _ in range(KILLS):
                reached = done(story) + 20
                await system.until(story, lambda: done(story) >= reached, "parcels on their way")  # noqa: B023
                alive = partial(system.host_of, "one", SHOP)
                await system.until(story, lambda: alive() not in killed, "another host")  # noqa: B023
                killed.add(alive())
                system.kill_host("one", SHOP)
        assert not all(map(story.ended, PARCELS)), "expected kills while parcels are on their way"
        await system.until(story, lambda: all(map(story.ended, PARCELS + ORDERS)), "their ends")
        assert {story.output(key) for key in ORDERS} == {45}
        assert all(story.output(key) == list(range(STOPS)) for key in PARCELS)
        failed = [
            event
            for key in PARCELS
            for record in story.records(key)
            for event in record.events
            if isinstance(event, StepFailed | StepsRetried)
        ]
        assert not failed
        marks = [mark for mark in system.marks() if mark.instance in PARCELS]
        assert set(Counter((mark.instance, mark.key) for mark in marks).values()) == {1}
        assert {mark.pid for mark in marks} == {system.host_of("one", BESIDE)}

    play(system, act)
    assert f"restarting it for {SHOP}" in system.log("one", 1_000_000)


def ticks(story: Story) -> list[datetime]:
    """Of the reports that the schedule has started and that are complete, when each was due."""
    names = [key.partition("/second-")[2] for key in list(story.by_instance)]
    return sorted(
        datetime.strptime(name, "%Y%m%dT%H%M%S%z")
        for name in names
        if name and story.status(f"report/second-{name}") is RunStatus.COMPLETE
    )


@pytest.mark.parametrize("app", [BUILTIN_APP, CLOCK])
def test_schedules_go_on_whichever_host_is_killed(system: WorkflowSystem, app: str):
    async def act(story: Story, client: Sender) -> None:
        for _ in range(3):
            reached = len(ticks(story))
            await system.until(story, lambda: len(ticks(story)) >= reached + 3, "more ticks")  # noqa: B023
            system.kill_host("one", app)
        reached = len(ticks(story))
        await system.until(story, lambda: len(ticks(story)) >= reached + 3, "the last ticks")
        result = ticks(story)
        seconds = [(item - result[0]).total_seconds() for item in result]
        assert seconds == list(range(len(result))), "none is missing"

    play(system, act)
