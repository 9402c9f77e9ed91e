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
from headwater.streams.kafka.records import partition_of
from headwater.streams.ownership.deadlines import SESSION_S
from tests.e2e.workflow_system import PARTITIONS, Sender, Story, WorkflowSystem, opened, play

#: Seconds for which one decision blocks the thread of its worker, at least.
BLOCKED_S = SESSION_S + 3


@pytest.fixture
def system(scratch: Path) -> Iterator[WorkflowSystem]:
    directory = scratch / "long-turns"
    directory.mkdir()
    with opened(WorkflowSystem(directory)) as system:
        yield system


def claims(story: Story) -> Counter[int]:
    """How often each partition was claimed."""
    return Counter(
        reported.partition
        for reported in story.told
        if isinstance(reported.record.events[0], PartitionClaimed)
    )


def owner_of(claimed: Claims) -> int:
    """The process that owns a partition."""
    return int(claimed.owner.rpartition("-")[2])


def instance_in(partition: int, name: str) -> str:
    """An id of a counter that is in a partition."""
    ids = (f"{name}-{number}" for number in range(1_000))
    return next(
        item for item in ids if partition_of(f"count/{item}".encode(), PARTITIONS) == partition
    )


def outcomes(story: Story, key: str) -> int:
    """How many commands to an instance have an outcome in the log."""
    return sum(reported.record.cause != NO_CAUSE for reported in story.by_instance[key])


def test_a_decision_that_outlasts_the_session_moves_no_partition(system: WorkflowSystem):
    async def act(story: Story, client: Sender) -> None:
        both = {part.pid for part in system.parts.values()}

        def settled() -> bool:
            owned = Counter(map(owner_of, story.claims.values()))
            return set(owned) == both and set(owned.values()) == {PARTITIONS // 2}

        await system.until(story, settled, "each worker to own its half")
        before = claims(story)
        blocked = min(story.claims)
        owner = owner_of(story.claims[blocked])
        free = next(number for number, claim in story.claims.items() if owner_of(claim) != owner)
        slow, over = instance_in(blocked, "slow"), system.directory / "over"
        params = json.dumps({"to": 1, "until": str(over)})
        answer = asyncio.create_task(client.send("count", slow, StartRun(params)))
        begun = over.with_suffix(".begun")
        await system.until(story, begun.exists, "the decision to begin")
        until_s = time.monotonic() + BLOCKED_S
        # What other workers own goes on meanwhile.
        quick = instance_in(free, "quick")
        assert not (await client.send("count", quick, StartRun('{"to": 1}'))).code
        assert not (await client.send("count", quick, SendEvent("1", "add", "1"))).code
        await system.until(story, lambda: time.monotonic() > until_s, "the session to be over")
        assert not answer.done()
        over.touch()
        assert not (await answer).code
        # And what the same worker owns goes on afterwards.
        assert not (await client.send("count", slow, SendEvent("1", "add", "1"))).code
        await system.until(
            story, lambda: story.status(f"count/{slow}") is RunStatus.COMPLETE, "its end"
        )
        assert claims(story) == before, "expected no partition to move"
        assert outcomes(story, f"count/{slow}") == 2
        story.check(await system.commands())

    system.start("one", checkpoint_records="1")
    system.start("two", checkpoint_records="1")
    play(system, act)
