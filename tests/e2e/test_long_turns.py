"""A decision that takes longer than the session of its worker costs nobody a partition."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.processors.runs.claims import Claims
from headwater.schemas.history import NO_CAUSE, PartitionClaimed, SendEvent, StartRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.deadlines import SESSION_S
from headwater.streams.kafka.records import partition_of
from tests.e2e.workflow_house import PARTITIONS, Sender, Story, WorkflowHouse, opened, play

#: Seconds for which one decision blocks the thread of its worker, at least.
BLOCKED_S = SESSION_S + 3


@pytest.fixture
def house(scratch: Path) -> Iterator[WorkflowHouse]:
    directory = scratch / "long-turns"
    directory.mkdir()
    with opened(WorkflowHouse(directory)) as house:
        yield house


def claims(story: Story) -> Counter[int]:
    """How often each partition was claimed."""
    return Counter(
        told.partition for told in story.told if isinstance(told.record.events[0], PartitionClaimed)
    )


def owner_of(claimed: Claims) -> int:
    """The process that owns a partition."""
    return int(claimed.owner.rpartition("-")[2])


def instance_in(partition: int, name: str) -> str:
    """An id of a counter that is in a partition."""
    ids = (f"{name}-{number}" for number in range(1_000))
    return next(
        each for each in ids if partition_of(f"count/{each}".encode(), PARTITIONS) == partition
    )


def outcomes(story: Story, key: str) -> int:
    """How many commands to an instance have an outcome in the log."""
    return sum(told.record.cause != NO_CAUSE for told in story.by_instance[key])


def test_a_decision_that_outlasts_the_session_moves_no_partition(house: WorkflowHouse):
    async def act(story: Story, client: Sender) -> None:
        both = {part.pid for part in house.parts.values()}

        def settled() -> bool:
            owned = Counter(map(owner_of, story.claims.values()))
            return set(owned) == both and set(owned.values()) == {PARTITIONS // 2}

        await house.until(story, settled, "each worker to own its half")
        before = claims(story)
        blocked = min(story.claims)
        owner = owner_of(story.claims[blocked])
        free = next(number for number, each in story.claims.items() if owner_of(each) != owner)
        slow, over = instance_in(blocked, "slow"), house.directory / "over"
        params = json.dumps({"to": 1, "until": str(over)})
        answer = asyncio.create_task(client.send("count", slow, StartRun(params)))
        begun = over.with_suffix(".begun")
        await house.until(story, begun.exists, "the decision to begin")
        until_s = time.monotonic() + BLOCKED_S
        # What other workers own goes on meanwhile.
        quick = instance_in(free, "quick")
        assert not (await client.send("count", quick, StartRun('{"to": 1}'))).code
        assert not (await client.send("count", quick, SendEvent("1", "add", "1"))).code
        await house.until(story, lambda: time.monotonic() > until_s, "the session to be over")
        assert not answer.done()
        over.touch()
        assert not (await answer).code
        # And what the same worker owns goes on afterwards.
        assert not (await client.send("count", slow, SendEvent("1", "add", "1"))).code
        await house.until(
            story, lambda: story.status(f"count/{slow}") is RunStatus.COMPLETE, "its end"
        )
        assert claims(story) == before, "expected no partition to move"
        assert outcomes(story, f"count/{slow}") == 2
        story.check(await house.commands())

    house.start("one", checkpoint_records="1")
    house.start("two", checkpoint_records="1")
    play(house, act)
