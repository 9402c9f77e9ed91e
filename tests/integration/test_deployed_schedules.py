"""Schedules of deployments, with workers and hosts that are killed while others are activated."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headwater import schedule
from headwater.processors.code.engine import ReplayEngine
from headwater.schemas.deployments import DeployedWorkflow
from headwater.streams.code_host.schedules import Schedule
from tests.deployed_apps import deploying
from tests.e2e.workflow_system import Sender, Story, WorkflowSystem, opened, play
from tests.integration.test_deployed_code import began_on
from tests.integration.test_starting import owner_of, ticks

APP = "tests.apps.starting"
_BEATS = (DeployedWorkflow(name="beat", kind=ReplayEngine.kind),)
_CODE = """
from headwater import workflow

VERSION = {version!r}

@workflow("beat")
async def beat(event, step):
    return await step.do("say", lambda: VERSION)
"""


def each_second(name: str) -> Schedule:
    return schedule(name, cron="* * * * * *", workflow="beat", catch_up="all")


@pytest.fixture
def system(tmp_path: Path) -> Iterator[WorkflowSystem]:
    with opened(WorkflowSystem(tmp_path, APP)) as system:
        yield system


def beats(story: Story, name: str = "pulse") -> list[str]:
    """The keys of what a schedule has started, in the order of its ticks; each began once."""
    result = sorted(key for key in story.by_instance if key.startswith(f"beat/{name}-"))
    assert all(len(began_on(story, key)) == 1 for key in result)
    return result


def on(story: Story, deployment: str, name: str = "pulse") -> list[str]:
    return [key for key in beats(story, name) if began_on(story, key) == [deployment]]


def kill_hosts(system: WorkflowSystem, worker: str) -> None:
    """Kills all hosts of a worker: that of schedules, of its app, and of deployments."""
    parent = system.parts[worker].pid
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                os.kill(int(stat.parent.name), signal.SIGKILL)


def app_misses_nothing(story: Story) -> bool:
    """Whether the schedule of the app has started something for each second.

    Partitions start what they own at their own pace, so a second may be missing for a while.
    """
    result = ticks(story)
    return [round((t - result[0]).total_seconds()) for t in result] == list(range(len(result)))


def test_each_tick_starts_once_whoever_is_killed_while_another_is_activated(system: WorkflowSystem):
    async def act(story: Story, client: Sender) -> None:
        async with deploying(system.bootstrap) as deployer:
            first = await deployer.deploy(
                _CODE.format(version="first"),
                workflows=_BEATS,
                schedules=(each_second("pulse"), each_second("gone")),
            )
            second = await deployer.deploy(
                _CODE.format(version="second"),
                workflows=_BEATS,
                schedules=(each_second("pulse"), each_second("come")),
            )
            await deployer.activate(first)
            for name in ("one", "two"):
                system.start(name)
            await system.until(story, lambda: len(on(story, first)) > 3, "ticks of the first")
            await deployer.activate(second)
            owner = owner_of(system, story, "headwater-schedule/pulse")
            system.kill(owner)
            await system.until(story, lambda: len(on(story, second)) > 2, "ticks of the second")
            system.start(owner)
            removed = beats(story, "gone")
            owner = owner_of(system, story, "headwater-schedule/pulse")
            kill_hosts(system, owner)
            await deployer.activate(first, rollback=True)
            kill_hosts(system, owner)
            reached = len(on(story, first))
            kill_hosts(system, owner)
            await system.until(
                story, lambda: len(on(story, first)) > reached + 5, "ticks of the first again"
            )
            await system.until(
                story, lambda: len(beats(story, "gone")) > len(removed) + 3, "what is back"
            )
            come = beats(story, "come")
            # One a second, none twice and none left out, whatever was active.
            await system.until(
                story,
                lambda: _seconds(beats(story)) == list(range(len(beats(story)))),
                "a beat of each second",
            )
            assert {began_on(story, key)[0] for key in beats(story)} == {first, second}
            assert {began_on(story, key)[0] for key in come} == {second}
            reported = len(ticks(story))
            await system.until(story, lambda: len(ticks(story)) > reported + 3, "ticks of the app")
            assert beats(story, "come") == come
            await system.until(story, lambda: app_misses_nothing(story), "a tick of each second")

    play(system, act)


def _seconds(keys: list[str]) -> list[int]:
    clock = [key[-7:-1] for key in keys]
    of_day = [3600 * int(t[:2]) + 60 * int(t[2:4]) + int(t[4:]) for t in clock]
    return [(item - of_day[0]) % 86_400 for item in of_day]
