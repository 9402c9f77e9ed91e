"""Schedules and rules with workers that are killed: each tick and each delivery counts once."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headwater.processors.providers.results import Effect
from headwater.processors.triggers.decide import decide
from headwater.processors.triggers.rules import read_rules
from headwater.schemas.codec import encode
from headwater.schemas.history import PartitionClaimed, RunStarted, TerminateRun
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.statuses import RunStatus
from headwater.schemas.topics import EFFECTS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Outgoing, partition_of
from headwater.streams.pipeline.record_batch import effect_of
from tests.deployed_apps import code_of, deploying
from tests.e2e.workflow_system import PARTITIONS, Sender, Story, WorkflowSystem, opened, play

APP = "tests.apps.starting"
WORKER = ["headwater", "worker", "--app", APP]
SCHEDULE = "headwater-schedule/second"
RULES = """
[[rule]]
name = "tell"
source = "terra"
type = "sleep"
workflow = "watch"
mode = "signal_with_start"
id = 'event.user_id'
event = "delivery"
params = '{"count": 40}'
payload = 'event.body.n'

[[rule]]
name = "review"
source = "terra"
type = "sleep"
workflow = "review"
mode = "start"
when = 'event.body.n % 10 == 0'
id = 'event.user_id + "-" + string(event.body.n)'
"""
USERS = [f"user_{name}" for name in "abcdef"]


@pytest.fixture(scope="module")
def system(scratch: Path) -> Iterator[WorkflowSystem]:
    directory = scratch / "starting"
    directory.mkdir()
    rules = directory / "rules.toml"
    rules.write_text(RULES)
    with opened(WorkflowSystem(directory, APP)) as system:
        system.settings["HEADWATER_RULES"] = str(rules)
        for name in ("one", "two"):
            system.start(name)
        yield system


def ticks(story: Story) -> list[datetime]:
    """What the instances that the schedule has started are named for; each began once."""
    result = []
    for key in list(story.by_instance):
        name, _, tick = key.partition("/second-")
        starts = [
            event
            for record in story.records(key)
            for event in record.events
            if isinstance(event, RunStarted)
        ]
        if name == "report" and starts:
            assert len(starts) == 1, key
            result.append(datetime.strptime(tick, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC))
    return sorted(result)


def owner_of(system: WorkflowSystem, story: Story, key: str) -> str:
    """The worker that claimed an instance's partition last."""
    partition = partition_of(key.encode(), PARTITIONS)
    claims = [
        event.owner
        for reported in story.told
        if reported.partition == partition
        for event in reported.record.events
        if isinstance(event, PartitionClaimed)
    ]
    pid = int(claims[-1].rpartition("-")[2])
    return next(name for name, part in system.parts.items() if part.pid == pid)


def test_a_tick_starts_one_instance_whoever_is_killed(system: WorkflowSystem):
    async def act(story: Story, client: Sender) -> None:
        await system.until(story, lambda: len(ticks(story)) >= 3, "the first ticks")
        name = owner_of(system, story, SCHEDULE)
        system.kill(name)
        reached = len(ticks(story))
        # Longer than the group waits for who is gone.
        await system.until(story, lambda: len(ticks(story)) >= reached + 13, "more ticks")
        system.start(name)
        reply = await client.send("headwater-schedule", "second", TerminateRun("enough"))
        assert not reply.code, reply
        await system.until(
            story, lambda: story.status(SCHEDULE) is RunStatus.TERMINATED, "the end of it"
        )
        result = ticks(story)
        seconds = [round((tick - result[0]).total_seconds()) for tick in result]
        assert seconds == list(range(len(result)))
        await system.until(
            story,
            lambda: all(story.ended(f"report/second-{t:%Y%m%dT%H%M%SZ}") for t in result),
            "the reports",
        )
        last = f"report/second-{result[-1]:%Y%m%dT%H%M%SZ}"
        assert story.output(last) == f"{result[-1]:%Y-%m-%dT%H:%M:%SZ}"

    play(system, act)


def effects(user: str, n: int, rules: str = RULES) -> list[Outgoing]:
    """The effects of a delivery, as the pipeline appends them."""
    event = WebhookAdmitted(
        event_id=f"{user}-{n}",
        request_id="r",
        source="terra",
        type="sleep",
        subject="s",
        reference=user,
        sent_at_ms=1,
        updated_at_ms=1,
        received_at_ms=1,
        body=json.dumps({"n": n}).encode(),
        user_id=user,
        partition=0,
        offset=0,
        admitted_at_ms=1,
    )
    partition = partition_of(user.encode(), PARTITIONS)
    return [
        Outgoing(EFFECTS, partition, event.event_id.encode(), encode(effect_of(event, result)))
        for result in decide(read_rules(rules), event)
        if isinstance(result, Effect)
    ]


def test_deliveries_signal_in_order_and_once_whoever_is_killed(system: WorkflowSystem):
    async def act(story: Story, client: Sender) -> None:
        appender = Appender(cluster=Cluster(system.bootstrap), client_id="test")
        for n in range(40):
            batch = [effect for user in USERS for effect in effects(user, n)]
            # Each third delivery is posted twice.
            await appender.append(batch * (2 if n % 3 == 0 else 1))
            if n in (8, 20, 32):
                name = "one" if n == 20 else "two"
                system.kill(name)
                system.start(name)
            await asyncio.sleep(0.05)
        await appender.stop()
        for user in USERS:
            await system.until(story, lambda: story.ended(f"watch/{user}"), user)  # noqa: B023
            assert story.output(f"watch/{user}") == list(range(40))
            for n in range(0, 40, 10):
                key = f"review/{user}-{n}"
                await system.until(story, lambda: story.ended(key), key)  # noqa: B023
                assert story.output(key) == {"n": n}
                assert story.state(key).run_number == 0
        assert len([key for key in story.by_instance if key.startswith("review/")]) == 4 * len(
            USERS
        )

    play(system, act)


def test_rules_that_cannot_be_end_a_worker_at_once(system: WorkflowSystem, tmp_path: Path):
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES.replace("event.user_id'", "event.user_id +'", 1))
    reported = {"HEADWATER_RULES": str(rules)}
    system.launch("wrong", WORKER, reported)
    assert system.parts.pop("wrong").wait(30) == 2
    assert "rule tell: id, line 1, column 16: Syntax error" in system.log("wrong")

    rules.write_text(RULES.replace('"review"\nmode', '"revue"\nmode'))
    system.launch("unknown", WORKER, reported)
    assert system.parts.pop("unknown").wait(60) == 2
    assert "rule review: expected workflow to be one of report, review, watch; found 'revue'" in (
        system.log("unknown")
    )


RULES_OF_DEPLOYED = """
[[rule]]
name = "pack"
source = "terra"
type = "sleep"
workflow = "parcel"
mode = "start"
id = 'event.user_id'
"""


def test_a_rule_may_start_what_is_deployed(system: WorkflowSystem, tmp_path: Path):
    rules = tmp_path / "deployed.toml"
    rules.write_text(RULES_OF_DEPLOYED)

    async def act(story: Story, client: Sender) -> None:
        async with deploying(system.bootstrap) as deployer:
            await deployer.release(code_of("v1"))
        system.launch("deployed", WORKER, {"HEADWATER_RULES": str(rules)})
        appender = Appender(cluster=Cluster(system.bootstrap), client_id="test")
        await appender.append(effects("parcels", 0, RULES_OF_DEPLOYED))
        await appender.stop()
        await system.until(story, lambda: story.ended("parcel/parcels"), "the parcel")
        assert story.output("parcel/parcels") == "v1"
        assert system.parts["deployed"].poll() is None

    play(system, act)
