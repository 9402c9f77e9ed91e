"""Schedules in the harness: once a tick, through crashes, downtime and changed declarations."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headwater import Schedule, WorkflowEvent, WorkflowTest, schedule, workflow
from headwater.processors.code.decide import KIND
from headwater.schemas.deployments import DeployedWorkflow, DeploymentActivated, DeploymentCreated
from headwater.schemas.history import DeleteInstance, ReplySent
from headwater.streams.code_host.builtin_app import DECLARED, RUNNER, ScheduleRunner
from headwater.streams.code_host.schedules import Declared, FromDeployment
from headwater.streams.starters.schedule_declarer import declare, schedules_of
from headwater.streams.workflows.client import Addressed
from tests.deployed_apps import deployed_schedule

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
START = "2026-01-01T00:00:00Z"


class Enough(Exception):
    """A worker has declared for long enough."""


def names_of(schedules: Sequence[Schedule]) -> list[str]:
    return [item.declared.schedule for item in schedules]


class Client:
    """Carries commands to the harness, as the client of the service does to Kafka."""

    def __init__(self, test: WorkflowTest) -> None:
        self._test = test

    async def send_many(self, commands: Sequence[Addressed]) -> list[ReplySent]:
        return [
            await self._test.send(command.workflow, command.instance_id, command.command)
            for command in commands
        ]


class World:
    """The app of a test, whose schedules may change, and what they have started."""

    def __init__(self, *schedules: Schedule) -> None:
        self.started: list[str] = []
        self.payloads: list[Any] = []

        @workflow("report")
        async def report(event: WorkflowEvent[Any], step: object) -> None:
            assert isinstance(event.payload, dict)
            self.payloads.append(dict(event.payload))

        @workflow("digest")
        async def digest(event: WorkflowEvent[Any], step: object) -> None:
            self.payloads.append({"digest": event.payload["scheduled_for"]})

        self.runner = ScheduleRunner(names_of(schedules))
        self.test = WorkflowTest([report, digest, self.runner], seed=5, start=START)

    async def redeploy(self, *schedules: Schedule, down: timedelta = timedelta()) -> None:
        """Stops the worker, lets time pass without one, and starts one with other schedules."""
        self.test._stop()
        self.test.now_ms += round(down.total_seconds() * 1_000)
        self.runner.function = ScheduleRunner(names_of(schedules)).function
        self.test._boot()
        await self.declare(*schedules)

    def deploy(self, name: str, *schedules: Schedule) -> None:
        """Deploys both workflows and schedules."""
        self.test._deployments.apply(
            DeploymentCreated(
                id=name,
                app="app",
                digest="00",
                size=1,
                offset=0,
                workflows=tuple(
                    DeployedWorkflow(name=value, kind=KIND, latest=value == "digest")
                    for value in ("report", "digest")
                ),
                schedules=tuple(map(deployed_schedule, schedules)),
                by="",
                at_ms=self.test.now_ms,
            )
        )

    def activate(self, name: str) -> list[FromDeployment]:
        """Activates a deployment; gives what workers will declare when they hear of it."""
        self.test._deployments.apply(
            DeploymentActivated(id=name, after="", rollback=False, by="", at_ms=self.test.now_ms)
        )
        return schedules_of(self.test._deployments)

    async def release(self, name: str, *schedules: Schedule) -> None:
        """Deploys and activates, and has it declared by two workers."""
        self.deploy(name, *schedules)
        reported = self.activate(name)
        await self.tell(reported)
        await self.tell(reported)

    async def declare(self, *schedules: Schedule) -> None:
        await self.tell([item.declared for item in schedules])

    async def began_on(self, day: int, hour: int = 3, workflow: str = "report") -> str | None:
        """The deployment of the instance that a tick has started."""
        name = f"{workflow}/nightly-202601{day:02}T{hour:02}0000Z"
        live = self.test._owner.instances.find(name)
        assert live is not None, name
        return None if live.run.deployment is None else live.run.deployment.name

    async def tell(self, schedules: Sequence[Declared | FromDeployment]) -> None:
        await declare(
            Client(self.test),
            schedules,
            new_id=lambda: self.test.new_id("evt"),
            sleep=self._no_sleep,
        )
        await self.test.run_until_idle()

    async def tell_each_day(
        self,
        schedules: Sequence[Declared | FromDeployment],
        then: Callable[[int], Awaitable[None]],
        days: int,
    ) -> None:
        """Has a worker say it again after each of some days, and something happen before that."""
        day = 0

        async def nap(_: float) -> None:
            nonlocal day
            await self.test.advance(DAY)
            day += 1
            await then(day)
            if day == days:
                raise Enough

        client, new_id = Client(self.test), lambda: self.test.new_id("evt")
        with pytest.raises(Enough):
            await declare(client, schedules, new_id=new_id, sleep=nap, repeat_s=300.0)

    async def delete(self, workflow: str, name: str) -> None:
        reply = await self.test.send(workflow, name, DeleteInstance())
        assert not reply.code, reply

    @staticmethod
    async def _no_sleep(_: float) -> None:
        raise AssertionError("expected no need to try again")

    def ticks(self) -> list[str]:
        return [payload["scheduled_for"] for payload in self.payloads]

    def ticks_of_all(self) -> list[str]:
        return [payload.get("scheduled_for") or payload["digest"] for payload in self.payloads]

    async def status(self, name: str = "nightly") -> str:
        return (await self.test.get(RUNNER, name).status()).status

    async def said(self, name: str = "nightly") -> list[str]:
        return [line.message for line in (await self.test.get(RUNNER, name).history()).logs]

    async def warnings(self, name: str = "nightly") -> list[str]:
        logs = (await self.test.get(RUNNER, name).history()).logs
        return [line.message for line in logs if line.level == "warn"]


def play(scenario: Callable[[World], Awaitable[None]], *schedules: Schedule) -> World:
    async def scene() -> World:
        world = World(*schedules)
        async with world.test:
            await world.declare(*schedules)
            await scenario(world)
        return world

    return asyncio.run(scene())


def nightly(**changes: object) -> Schedule:
    said: dict[str, Any] = {
        "cron": "0 3 * * *",
        "workflow": "report",
        "params": {"kind": "full"},
        **changes,
    }
    return schedule("nightly", **said)


def days(first: int, last: int, hour: int = 3) -> list[str]:
    at = datetime(2026, 1, 1, hour, tzinfo=UTC)
    return [f"{at + DAY * day:%Y-%m-%dT%H:%M:%SZ}" for day in range(first - 1, last)]


@pytest.mark.parametrize("crash_every", [None, 1, 5])
def test_a_month_has_one_instance_a_night(crash_every: int | None):
    async def scenario(world: World) -> None:
        for night in range(31):
            await world.test.advance(DAY)
            if crash_every and night % crash_every == 0:
                await world.test.crash()

    world = play(scenario, nightly())
    assert world.ticks() == days(1, 31)
    assert world.payloads[0] == {
        "kind": "full",
        "schedule": "nightly",
        "scheduled_for": "2026-01-01T03:00:00Z",
    }


def test_an_instance_is_named_for_its_tick_and_its_workflow_may_be_the_object():
    async def scenario(world: World) -> None:
        await world.test.advance(DAY)
        assert (await world.test.get("report", "nightly-20260101T030000Z").status()).output is None

    @workflow("report")
    async def report(event: object, step: object) -> None: ...

    play(scenario, nightly(workflow=report))


def test_the_history_of_a_schedule_stays_short():
    async def scenario(world: World) -> None:
        await world.test.advance(DAY * 60)
        history = await world.test.get(RUNNER, "nightly").history()
        assert len(history.steps) < 150

    assert len(play(scenario, nightly()).payloads) == 60


def test_seconds_are_kept_too():
    async def scenario(world: World) -> None:
        await world.test.advance("1 minute")

    world = play(scenario, nightly(cron="*/10 * * * * *"))
    assert world.ticks() == [f"2026-01-01T00:00:{s}0Z" for s in range(1, 6)] + [
        "2026-01-01T00:01:00Z"
    ]


def test_local_time_goes_over_the_changes_of_the_clock():
    async def scenario(world: World) -> None:
        await world.test.advance(DAY * 364)

    world = play(scenario, nightly(cron="30 2 * * *", timezone="Europe/Berlin"))
    assert len(world.payloads) == 364
    assert "2026-03-29T01:00:00Z" in world.ticks()  # 03:00, since there is no 02:30
    assert [tick for tick in world.ticks() if tick.startswith("2026-10-25")] == [
        "2026-10-25T00:30:00Z"
    ]


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("all", [*days(1, 6), *days(7, 8)]),
        ("latest", [*days(1, 1), *days(6, 6), *days(7, 8)]),
        ("skip", [*days(1, 1), *days(7, 8)]),
    ],
)
def test_what_was_missed_while_no_worker_ran(catch_up: str, expected: list[str]):
    made = nightly(catch_up=catch_up)

    async def scenario(world: World) -> None:
        await world.test.advance(DAY)
        await world.redeploy(made, down=DAY * 5)
        await world.test.advance(DAY * 2)
        reported = await world.warnings()
        assert reported == ([] if catch_up == "all" else ["ticks were missed and are not started"])

    assert sorted(play(scenario, made).ticks()) == expected


def test_all_that_was_missed_is_at_most_a_hundred():
    made = nightly(catch_up="all", cron="0 * * * *")

    async def scenario(world: World) -> None:
        await world.redeploy(made, down=DAY * 30)
        assert await world.warnings() == ["ticks were missed and are not started"]

    world = play(scenario, made)
    assert len(world.payloads) == 100
    assert max(world.ticks()) == "2026-01-31T00:00:00Z"


def test_a_tick_within_the_grace_is_not_missed():
    made = nightly(catch_up="skip", grace="2 hours")

    async def scenario(world: World) -> None:
        await world.redeploy(made, down=HOUR * 5)

    assert play(scenario, made).ticks() == days(1, 1)


def test_a_paused_schedule_starts_nothing_and_then_catches_up():
    async def scenario(world: World) -> None:
        instance = world.test.get(RUNNER, "nightly")
        await instance.pause()
        await world.test.advance(DAY * 3 + HOUR)
        assert world.payloads == []
        await instance.resume()
        await world.test.advance(DAY)

    assert play(scenario, nightly()).ticks() == days(3, 4)


def test_a_changed_declaration_holds_at_once():
    async def scenario(world: World) -> None:
        await world.test.advance(HOUR)
        changed = nightly(cron="0 2 * * *", params={"kind": "short"})
        await world.redeploy(changed)
        await world.test.advance(DAY * 2)
        await world.redeploy(changed)
        await world.test.advance(DAY)

    world = play(scenario, nightly())
    assert world.ticks() == days(1, 3, hour=2)
    assert world.payloads[0]["kind"] == "short"


def test_a_tick_belongs_to_the_declaration_of_its_time():
    async def scenario(world: World) -> None:
        # At 5 o'clock; 3 o'clock was missed, and 4 o'clock was not known of.
        await world.redeploy(nightly(cron="0 4 * * *", workflow="digest"), down=HOUR * 5)
        assert world.payloads == [
            {"kind": "full", "schedule": "nightly", "scheduled_for": "2026-01-01T03:00:00Z"}
        ]
        await world.test.advance(DAY)
        assert world.payloads[1:] == [{"digest": "2026-01-02T04:00:00Z"}]

    play(scenario, nightly())


def test_a_declaration_in_the_middle_of_a_crash_loses_and_doubles_nothing():
    async def scenario(world: World) -> None:
        for hour in range(48):
            await world.test.advance(HOUR / 2)
            await world.redeploy(nightly(cron="0 * * * *", params={"kind": str(hour)}))
            await world.test.crash()
            await world.test.advance(HOUR / 2)

    world = play(scenario, nightly(cron="0 * * * *"))
    assert len(world.ticks()) == 48
    assert len(set(world.ticks())) == 48


def test_a_declaration_that_is_none_is_ignored():
    async def scenario(world: World) -> None:
        instance = world.test.get(RUNNER, "nightly")
        other = schedule("other", cron="0 4 * * *", workflow="report")
        for payload in (
            "junk",
            {},
            msgspec.to_builtins(other.declared),
            {**msgspec.to_builtins(nightly().declared), "cron": "never"},
        ):
            await instance.send_event(DECLARED, payload)
        await world.test.advance(DAY)
        assert await world.warnings() == ["a declaration of this schedule was ignored"] * 4

    assert play(scenario, nightly()).ticks() == days(1, 1)


def test_a_schedule_that_is_gone_starts_nothing_and_ends():
    async def scenario(world: World) -> None:
        await world.redeploy()
        await world.test.advance(DAY)
        assert await world.status() == "complete"
        assert await world.warnings() == ["no app has such a schedule; nothing is started"]

    assert play(scenario, nightly()).payloads == []


def test_a_schedule_that_is_back_soon_has_lost_nothing():
    made = nightly(catch_up="all")

    async def scenario(world: World) -> None:
        await world.redeploy()
        await world.test.advance(HOUR * 3.5)
        assert world.payloads == []
        await world.redeploy(made)
        await world.test.advance(DAY)

    assert play(scenario, made).ticks() == days(1, 2)


def test_a_declaration_that_came_to_a_worker_of_the_old_release_is_kept():
    async def scenario(world: World) -> None:
        await world.redeploy()
        await world.declare(nightly(cron="0 4 * * *"))
        await world.test.advance(HOUR / 2)
        world.test._stop()
        world.runner.function = ScheduleRunner(["nightly"]).function
        world.test._boot()
        await world.test.advance(DAY)

    assert play(scenario, nightly()).ticks() == days(1, 1, hour=4)


def test_a_schedule_that_had_ended_begins_anew_when_it_is_declared_again():
    async def scenario(world: World) -> None:
        await world.redeploy()
        await world.test.advance(DAY * 3)
        await world.redeploy(nightly(cron="0 4 * * *"))
        await world.test.advance(DAY)

    assert play(scenario, nightly()).ticks() == days(4, 4, hour=4)


def test_a_terminated_schedule_stays_so(caplog: pytest.LogCaptureFixture):
    async def scenario(world: World) -> None:
        await world.test.get(RUNNER, "nightly").terminate()
        await world.redeploy(nightly())
        await world.test.advance(DAY)
        assert await world.status() == "terminated"

    assert play(scenario, nightly()).payloads == []
    assert "terminated and stays so" in caplog.text


def test_the_29th_of_february_is_waited_for():
    async def scenario(world: World) -> None:
        await world.test.advance(DAY * 365 * 2 + DAY * 60)

    world = play(scenario, nightly(cron="0 0 29 2 *"))
    assert world.ticks() == ["2028-02-29T00:00:00Z"]


def test_params_that_no_worker_gave_end_the_instance():
    async def scenario(world: World) -> None:
        instance = await world.test.create(RUNNER, id="by-hand", params={"cron": "0 3 * * *"})
        await world.test.run_until_idle()
        status = await instance.status()
        assert status.status == "errored"
        assert "schedule(...)" in status.error.message

    play(scenario)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"cron": "61 * * * *"}, "the schedule 'nightly': expected a cron expression of five"),
        ({"timezone": "Mars"}, "the schedule 'nightly': expected a time zone"),
        ({"catch_up": "some"}, "expected catch_up of the schedule 'nightly' to be one of all, "),
        ({"workflow": "no name"}, "expected the workflow of the schedule 'nightly' of 1 to 64"),
        ({"params": {"schedule": 1}}, "expected params without schedule and scheduled_for, found"),
        ({"params": {"at": datetime}}, "the schedule 'nightly': expected its params to be JSON"),
        ({"params": {"at": "x" * 9_000}}, "expected params of at most 8192 characters of JSON"),
        ({"grace": "soon"}, "expected a duration"),
    ],
)
def test_a_bad_declaration_is_refused_where_it_stands(said: dict[str, Any], told: str):
    with pytest.raises(ValueError, match="expected") as caught:
        nightly(**said)
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["", "two words", "n" * 84, "-a"])
def test_a_name_that_cannot_be_an_id_is_refused(name: str):
    with pytest.raises(ValueError, match="expected the name of a schedule of 1 to 83"):
        schedule(name, cron="0 3 * * *", workflow="report")


@pytest.mark.parametrize(("failures", "told"), [(2, 0), (4, 1)])
def test_declaring_waits_until_it_is_known_and_says_so_if_a_start_takes_no_longer(
    caplog: pytest.LogCaptureFixture, failures: int, told: int
):
    replies = [*["WORKFLOW_NOT_FOUND"] * failures, "MAILBOX_FULL", ""]
    slept: list[float] = []

    async def send_many(_: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(code=replies.pop(0), message="no", status="")]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def scene(schedules: Sequence[Schedule]) -> None:
        client: Any = SimpleNamespace(send_many=send_many)
        declared = [item.declared for item in schedules]
        await declare(client, declared, new_id=lambda: "e", sleep=sleep)

    asyncio.run(scene([nightly()]))
    assert (replies, slept) == ([], [1.0, 2.0, 4.0, 8.0, 16.0][: failures + 1])
    assert caplog.text.count("cannot be declared yet: WORKFLOW_NOT_FOUND") == told


# --- schedules of deployments


def test_the_schedules_of_the_active_deployment_fire():
    async def scenario(world: World) -> None:
        await world.release("dep_1", nightly())
        await world.test.advance(DAY)
        await world.release("dep_2", nightly(cron="0 4 * * *", workflow="digest"))
        await world.test.advance(DAY)
        await world.release("dep_3")
        await world.test.advance(DAY * 3)
        # The way back.
        await world.tell(world.activate("dep_1"))
        await world.test.advance(DAY)
        assert await world.began_on(1) == "dep_1"
        # What follows the code begins on no deployment.
        assert await world.began_on(2, 4, "digest") is None
        assert await world.began_on(6) == "dep_1"

    world = play(scenario)
    assert world.ticks_of_all() == [*days(1, 1), *days(2, 2, hour=4), *days(6, 6)]


@pytest.mark.parametrize("crash", [False, True])
def test_each_tick_is_started_once_however_often_another_is_activated(crash: bool):
    async def scenario(world: World) -> None:
        hourly = nightly(cron="*/10 * * * *")
        world.deploy("dep_0", hourly)
        world.deploy("dep_1", hourly)
        # In the middle of all that, at it, and between: 7 minutes and 10 meet everywhere.
        for n in range(40):
            reported = world.activate(f"dep_{n % 2}")
            await world.test.advance(timedelta(minutes=3))
            await world.tell(reported)
            if crash:
                await world.test.crash()
            await world.test.advance(timedelta(minutes=4))

    world = play(scenario)
    first = datetime(2026, 1, 1, tzinfo=UTC)
    every = [f"{first + timedelta(minutes=10 * n):%Y-%m-%dT%H:%M:%SZ}" for n in range(1, 29)]
    assert world.ticks() == every


def test_what_was_due_since_an_activation_is_not_lost_until_workers_hear_of_it():
    async def scenario(world: World) -> None:
        await world.release("dep_0")
        world.deploy("dep_1", nightly())
        world.deploy("dep_2", nightly(cron="*/30 * * * *", catch_up="all"))
        await world.test.advance(HOUR * 2.99)
        reported = world.activate("dep_1")
        await world.test.advance(HOUR * 0.02)
        await world.tell(reported)
        await world.tell(world.activate("dep_0"))
        await world.test.advance(HOUR * 8)
        reported = world.activate("dep_2")
        await world.test.advance(HOUR)
        await world.tell(reported)

    assert [tick[11:16] for tick in play(scenario).ticks()] == ["03:00", "11:30", "12:00"]


def test_one_missed_tick_is_caught_up_though_another_is_active_since():
    async def scenario(world: World) -> None:
        await world.release("dep_1", nightly())
        world.deploy("dep_2", nightly())
        reported = world.activate("dep_2")
        await world.tell(reported)
        world.test._stop()
        world.test.now_ms += round((DAY + HOUR * 4).total_seconds() * 1_000)
        reported = world.activate("dep_1")
        world.test.now_ms += round(DAY.total_seconds() * 1_000)
        world.test._boot()
        await world.tell(reported)

    # The third night is the last of those that nobody was there for.
    assert play(scenario).ticks() == days(3, 3)


def test_what_a_schedule_starts_is_of_the_deployment_that_declares_it():
    async def scenario(world: World) -> None:
        await world.release("dep_1", nightly())
        world.deploy("dep_2", nightly(workflow="digest"))
        await world.test.advance(HOUR * 2.99)
        reported = world.activate("dep_2")
        await world.test.advance(HOUR * 0.02)
        # Workers have not heard of it when the tick is due, and then they do.
        await world.tell(reported)
        await world.test.advance(DAY)
        assert await world.began_on(1) == "dep_1"

    world = play(scenario)
    assert world.ticks_of_all() == days(1, 2)
    assert [*world.payloads[1]] == ["digest"]


def test_two_activations_in_a_moment_start_no_tick_twice():
    async def scenario(world: World) -> None:
        await world.release("dep_1", nightly())
        world.deploy("dep_2")
        world.deploy("dep_3", nightly(workflow="digest"))
        await world.test.advance(HOUR * 2.98)
        second = world.activate("dep_2")
        await world.test.advance(HOUR * 0.01)
        third = world.activate("dep_3")
        await world.test.advance(HOUR * 0.02)
        await world.tell(second)
        await world.tell(third)

    assert play(scenario).ticks_of_all() == days(1, 1)


@pytest.mark.parametrize(("catch_up", "started"), [("latest", [3]), ("skip", []), ("all", [2, 3])])
def test_what_a_paused_schedule_has_missed_is_started_once(catch_up: str, started: list[int]):
    async def scenario(world: World) -> None:
        await world.release("dep_1", nightly(catch_up=catch_up))
        world.deploy("dep_2", nightly(catch_up=catch_up))
        await world.test.advance(DAY)
        instance = world.test.get(RUNNER, "nightly")
        await instance.pause()
        await world.test.advance(HOUR * 3 + timedelta(seconds=30))
        await world.tell(world.activate("dep_2"))
        await world.test.advance(DAY + HOUR)
        await instance.resume()
        await world.test.run_until_idle()

    assert play(scenario).ticks() == [*days(1, 1), *(days(day, day)[0] for day in started)]


def test_a_worker_that_is_behind_changes_nothing():
    async def scenario(world: World) -> None:
        world.deploy("dep_1", nightly())
        world.deploy("dep_2")
        old = world.activate("dep_1")
        await world.tell(old)
        await world.tell(world.activate("dep_2"))
        await world.tell(old)
        await world.test.advance(DAY * 400)
        assert await world.status() == "waiting"

    assert play(scenario).payloads == []


def test_the_schedules_of_apps_are_their_own():
    async def scenario(world: World) -> None:
        await world.release("dep_1", schedule("other", cron="0 6 * * *", workflow="report"))
        await world.test.advance(DAY)
        # Of the same name, the deployment's holds; when it is gone, the app's does again.
        await world.release("dep_2", nightly(cron="0 5 * * *"))
        await world.redeploy(nightly())
        await world.test.advance(DAY)
        await world.tell(world.activate("dep_1"))
        await world.test.advance(DAY)
        assert await world.began_on(2, 5) == "dep_2"
        assert await world.began_on(3) == "dep_1"

    world = play(scenario, nightly())
    nights = [tick for tick in world.ticks() if tick[11:13] != "06"]
    assert nights == [*days(1, 1), *days(2, 2, hour=5), *days(3, 3)]
    assert [tick for tick in world.ticks() if tick[11:13] == "06"] == days(1, 1, 6) + days(3, 3, 6)


def test_a_schedule_says_whose_it_is():
    async def scenario(world: World) -> None:
        await world.release("dep_1", nightly())
        await world.release("dep_2")
        lines = (await world.test.get(RUNNER, "nightly").history()).logs
        assert [(line.message, line.data) for line in lines] == [
            ("the active deployment declares it", {"deployment": "dep_1"}),
            ("the active deployment has no such schedule", {"deployment": "dep_2"}),
        ]

    play(scenario)


@pytest.mark.parametrize("told_before", [False, True])
def test_a_terminated_schedule_of_a_deployment_stays_so_until_it_is_restarted(
    told_before: bool, caplog: pytest.LogCaptureFixture
):
    async def scenario(world: World) -> None:
        await world.release("dep_1", nightly())
        world.deploy("dep_2", nightly(cron="0 5 * * *"))
        reported = world.activate("dep_2")
        if told_before:
            await world.tell(reported)
        await world.test.get(RUNNER, "nightly").terminate()

        async def restart(day: int) -> None:
            if day == 2:
                await world.test.get(RUNNER, "nightly").restart()

        await world.tell_each_day(reported, restart, 5)

    # Of the time since it was restarted.
    assert play(scenario).ticks() == days(3, 5, hour=5)
    assert caplog.text.count("was terminated and stays so") == 1


@pytest.mark.parametrize("catch_up", ["all", "latest"])
def test_a_schedule_that_was_deleted_starts_nothing_of_the_time_before(catch_up: str):
    async def scenario(world: World) -> None:
        world.deploy("dep_1", nightly(catch_up=catch_up))

        async def delete(day: int) -> None:
            if day == 3:
                await world.test.get(RUNNER, "nightly").terminate()
                await world.delete(RUNNER, "nightly")
                for tick in days(1, 3):
                    await world.delete("report", f"nightly-{re.sub('[-:]', '', tick)}")

        await world.tell_each_day(world.activate("dep_1"), delete, 5)

    assert play(scenario).ticks() == days(1, 5)


def test_a_schedule_of_an_app_that_is_restarted_waits_for_what_is_declared_now():
    changed = nightly(cron="0 2 * * *")

    async def scenario(world: World) -> None:
        await world.redeploy(changed)

        async def restart(day: int) -> None:
            if day == 1:
                await world.test.get(RUNNER, "nightly").terminate()
                await world.test.get(RUNNER, "nightly").restart()
                await world.test.advance(HOUR * 3.2)

        await world.tell_each_day([changed.declared], restart, 3)
        assert (
            "nothing is started until a worker reports what an app declares" in await world.said()
        )

    assert play(scenario, nightly()).ticks() == days(1, 4, hour=2)


def test_a_worker_that_says_it_again_changes_nothing_that_another_has_said():
    old, new = nightly(), nightly(cron="0 4 * * *")

    async def scenario(world: World) -> None:
        async def release(day: int) -> None:
            if day == 1:
                await world.tell([new.declared])

        await world.tell_each_day([old.declared], release, 3)

    assert play(scenario, old).ticks() == [*days(1, 1), *days(2, 3, hour=4)]


def test_a_schedule_that_is_new_to_the_app_begins_when_it_is_declared():
    async def scenario(world: World) -> None:
        await world.release("dep_1", nightly())
        await world.release("dep_2")
        await world.test.advance(DAY * 20)
        await world.redeploy(nightly(catch_up="all"))
        await world.test.advance(DAY)

    # Nobody declared it in the twenty nights before.
    assert play(scenario).ticks() == days(21, 21)
