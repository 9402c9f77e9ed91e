"""Batches that wait for a partition are one commit unit: what it appends, and where it ends."""

import asyncio

import pytest

from headwater.schemas.epochs import CLAIM_KEY
from headwater.schemas.topics import ADMISSIONS, OUTCOMES, TRACES, WEBHOOKS
from headwater.streams.kafka.records import Incoming
from headwater.streams.pipeline import partition_runner
from headwater.streams.pipeline.partition_runner import PartitionRunner
from tests.fakes.memory_store import MemoryStore
from tests.unit.streams.test_intake import NOW, incoming, raw, received
from tests.unit.streams.test_partition_runner import (
    LATER,
    Batch,
    Died,
    Log,
    agent_of,
    die,
    in_memory,  # noqa: F401 (a fixture of all tests)
)


def day(event_id: str, offset: int, user: str = "user_1") -> Incoming:
    return raw(received(event_id=event_id, reference=user, sent_at_ms=NOW + offset), offset)


async def backlog(agent: PartitionRunner, *batches: Batch) -> list[BaseException | None]:
    """All of them are there before the first is processed."""
    async with agent._locks[0]:
        calls = [asyncio.create_task(agent.process(batch)) for batch in batches]
        await asyncio.sleep(0)
    return await asyncio.gather(*calls, return_exceptions=True)


def test_batches_that_wait_are_appended_together_and_a_row_is_written_once():
    async def scene() -> None:
        log, store = Log(), MemoryStore()
        agent = agent_of(log, store=store)
        await agent.prepare(0)
        done_before: list[bool] = []

        async def looks() -> None:
            done_before.append(any(batch.is_done for batch in batches))

        log.before_append = [looks]
        batches = [Batch(day(f"e{number}", number)) for number in range(4)]
        await backlog(agent, *batches)
        assert all(batch.is_done for batch in batches)
        assert done_before == [False]
        assert [
            len([r for r in log.records[topic] if r.key != CLAIM_KEY])
            for topic in ("daily-summary", "users", OUTCOMES, ADMISSIONS)
        ] == [1, 1, 4, 1]
        copy = Batch(day("e0", 4))
        await agent.process(copy)
        assert copy.is_done, "a batch that nothing follows waits for nothing"
        assert len(log.records[TRACES]) == 1

    asyncio.run(scene())


@pytest.mark.parametrize("limit", ["_UNIT_RECORDS", "_UNIT_BYTES", "_UNIT_S"])
def test_a_unit_ends_at_its_limits(limit: str, monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        log = Log()
        agent = agent_of(log)
        await agent.prepare(0)
        batches = [Batch(day(f"e{number}", number)) for number in range(3)]
        monkeypatch.setattr(partition_runner, limit, 0)
        await backlog(agent, *batches)
        assert all(batch.is_done for batch in batches)
        rows = [record for record in log.records["daily-summary"] if record.key != CLAIM_KEY]
        assert len(rows) == 3

    asyncio.run(scene())


def test_of_a_unit_whose_partition_is_revoked_nothing_is_appended_and_nothing_done():
    async def scene() -> None:
        log = Log()
        agent = agent_of(log)
        await agent.prepare(0)
        before = {topic: len(records) for topic, records in log.records.items()}
        batches = [Batch(day(f"e{number}", number)) for number in range(2)]
        step = agent.intake.step

        def revoked(*batch: object) -> None:
            step(*batch)  # type: ignore[arg-type]
            agent.revoked()
            agent.assigned(set())

        agent.intake.step = revoked  # type: ignore[method-assign]
        await backlog(agent, *batches)
        assert not any(batch.is_done for batch in batches)
        assert {topic: len(records) for topic, records in log.records.items()} == before

    asyncio.run(scene())


@pytest.mark.parametrize("position", [2, 3])
def test_a_unit_ends_at_a_record_of_a_later_release(position: int):
    async def scene() -> None:
        log = Log()
        agent = agent_of(log)
        await agent.prepare(0)
        records = [day(f"{number:032x}", number) for number in range(6)]
        records[position] = incoming(WEBHOOKS, b"f" * 32, LATER, position)
        batches = [Batch(*records[start : start + 2]) for start in (0, 2, 4)]
        await backlog(agent, *batches)
        assert [batch.up_to for batch in batches] == [2, position if position > 2 else 0, 0]
        outcomes = {key for topic, key in log.newest() if topic == OUTCOMES}
        assert outcomes == {record.key for record in records[:position]}

    asyncio.run(scene())


def test_batches_of_a_unit_that_failed_are_not_done():
    async def scene() -> None:
        log = Log()
        agent = agent_of(log)
        await agent.prepare(0)
        log.before_append = [die, die, die]
        batches = [Batch(day(f"e{number}", number)) for number in range(2)]
        results = await backlog(agent, *batches)
        assert [type(result) for result in results] == [Died, Died]
        assert not any(batch.is_done for batch in batches)

    asyncio.run(scene())
