"""Idempotency keys in a real Postgres: of several who reserve one at once, one does."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import psycopg
import pytest

from headwater.processors.idempotency import (
    REMEMBERED_MS,
    Answered,
    Key,
    Pending,
    Remembered,
    met,
    reservation,
)
from headwater.projections.idempotency import IdempotencyKeys
from headwater.projections.postgres.reader import PooledReader

KEY = Key("default", "key-1", "POST /v1/runs")
NOW = 1_800_000_000_000


@pytest.fixture(autouse=True)
def emptied(module_migrated: str) -> None:
    with psycopg.connect(module_migrated, autocommit=True) as connection:
        connection.execute("truncate idempotency")


def asking(
    database: str, act: Callable[[IdempotencyKeys, IdempotencyKeys], Awaitable[None]]
) -> None:
    """Acts as two gateways."""

    async def acts() -> None:
        async with PooledReader(database) as one, PooledReader(database) as two:
            await act(IdempotencyKeys(one), IdempotencyKeys(two))

    asyncio.run(acts())


def keys_left(database: str) -> set[str]:
    with psycopg.connect(database) as connection:
        rows = connection.execute("select idempotency_key from idempotency").fetchall()
    return {key for (key,) in rows}


async def at_once(
    one: IdempotencyKeys, two: IdempotencyKeys, now_ms: int, count: int = 16
) -> list[Remembered]:
    return await asyncio.gather(
        *(
            (one, two)[number % 2].reserve(KEY, reservation(f"r-{now_ms}-{number}", "h", now_ms))
            for number in range(count)
        )
    )


def test_of_many_at_once_one_reserves_it_and_all_are_told_its_run(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        found = await at_once(one, two, NOW)
        assert len(set(found)) == 1
        assert await two.find(KEY) == found[0]
        assert met(found[0], "h", NOW) == Pending(found[0].response_run_id)

    asking(module_migrated, act)


def test_the_first_answer_stays(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        await one.reserve(KEY, reservation("run", "h", NOW))
        answers = await asyncio.gather(
            *((one, two)[n % 2].complete(KEY, "run", 201, f"answer {n}") for n in range(10))
        )
        (answer,) = set(answers)
        assert answer is not None
        assert met(answer, "h", NOW) == Answered("run", 201, answer.body)
        # Who reserves it again is told the answer.
        assert await two.reserve(KEY, reservation("another", "h", NOW)) == answer

    asking(module_migrated, act)


def test_a_key_is_forgotten_after_a_day_and_reserved_anew_by_one(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        await one.reserve(KEY, reservation("old", "h", NOW))
        await one.complete(KEY, "old", 201, "answer")
        almost = NOW + REMEMBERED_MS - 1
        assert {each.response_run_id for each in await at_once(one, two, almost)} == {"old"}
        found = await at_once(one, two, NOW + REMEMBERED_MS)
        assert len(set(found)) == 1
        assert met(found[0], "h", NOW + REMEMBERED_MS) == Pending(found[0].response_run_id)
        # Who still comes with the answer of the day before changes nothing.
        assert await two.complete(KEY, "old", 201, "late") is None
        assert await two.find(KEY) == found[0]

    asking(module_migrated, act)


def test_the_same_key_means_another_thing_elsewhere(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, _: IdempotencyKeys) -> None:
        others = [
            KEY,
            msgspec.structs.replace(KEY, project_id="other"),
            msgspec.structs.replace(KEY, endpoint="world.queue.publish"),
        ]
        for number, key in enumerate(others):
            found = await one.reserve(key, reservation(f"run-{number}", "h", NOW))
            assert found.response_run_id == f"run-{number}"

    asking(module_migrated, act)


def test_what_is_forgotten_is_swept_out_by_those_who_come_later(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, _: IdempotencyKeys) -> None:
        for number in range(25):
            key = msgspec.structs.replace(KEY, idempotency_key=f"old-{number}")
            await one.reserve(key, reservation(f"run-{number}", "h", NOW + number))
        later = NOW + REMEMBERED_MS + 23
        for number in range(3):
            key = msgspec.structs.replace(KEY, idempotency_key=f"new-{number}")
            await one.reserve(key, reservation(f"run-{number}", "h", later))
        assert keys_left(module_migrated) == {"old-24", "new-0", "new-1", "new-2"}

    asking(module_migrated, act)
