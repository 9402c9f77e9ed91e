"""Idempotency keys in a real Postgres: of several who reserve one at once, one does."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import psycopg
import pytest

from headwater.processors.idempotency_keys import (
    REMEMBERED_MS,
    Answered,
    IdempotencyKey,
    Pending,
    StoredRequest,
    key_result,
    reservation,
)
from headwater.projections.gateway_state import IdempotencyKeys
from headwater.projections.postgres.connections import PooledReader

MINUTE_MS = 60_000
KEY = IdempotencyKey("default", "key-1", "POST /v1/runs")


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


def age(database: str, by_ms: int, key: str = "") -> None:
    """Makes keys older, by the clock of Postgres; one of them, or all."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "update idempotency set created_at = created_at - %s where idempotency_key ~ %s",
            [by_ms, f"^{key}"],
        )


async def at_once(
    one: IdempotencyKeys, two: IdempotencyKeys, run: str = "r", request_hash: str = "h"
) -> list[StoredRequest]:
    return await asyncio.gather(
        *(
            (one, two)[number % 2].reserve(KEY, reservation(f"{run}-{number}", request_hash))
            for number in range(16)
        )
    )


def test_of_many_at_once_one_reserves_it_and_all_are_told_its_run(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        result = await at_once(one, two)
        assert len(set(result)) == 1
        assert await two.find(KEY) == result[0]
        assert key_result(result[0], "h") == Pending(result[0].response_run_id)

    asking(module_migrated, act)


def test_the_first_answer_stays(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        await one.reserve(KEY, reservation("run", "h"))
        answers = await asyncio.gather(
            *((one, two)[n % 2].complete(KEY, "run", 201, f"answer {n}") for n in range(10))
        )
        (answer,) = set(answers)
        assert answer is not None
        assert key_result(answer, "h") == Answered("run", 201, answer.body)
        # Who reserves it again is told the answer.
        assert await two.reserve(KEY, reservation("another", "h")) == answer

    asking(module_migrated, act)


def test_a_key_is_forgotten_after_a_day_and_reserved_anew_by_one(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        await one.reserve(KEY, reservation("old", "h"))
        await one.complete(KEY, "old", 201, "answer")
        age(module_migrated, REMEMBERED_MS - MINUTE_MS)
        assert {item.response_run_id for item in await at_once(one, two)} == {"old"}
        age(module_migrated, MINUTE_MS)
        result = await at_once(one, two)
        assert len(set(result)) == 1
        assert key_result(result[0], "h") == Pending(result[0].response_run_id)
        # Who still comes with the answer of the day before changes nothing.
        assert await two.complete(KEY, "old", 201, "late") is None
        assert await two.find(KEY) == result[0]

    asking(module_migrated, act)


def test_the_same_key_means_another_thing_elsewhere(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, _: IdempotencyKeys) -> None:
        others = [
            KEY,
            msgspec.structs.replace(KEY, project_id="other"),
            msgspec.structs.replace(KEY, endpoint="world.queue.publish"),
        ]
        for number, key in enumerate(others):
            result = await one.reserve(key, reservation(f"run-{number}", "h"))
            assert result.response_run_id == f"run-{number}"

    asking(module_migrated, act)


def test_what_is_forgotten_is_swept_out_by_those_who_come_later(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, _: IdempotencyKeys) -> None:
        for number in range(25):
            key = msgspec.structs.replace(KEY, idempotency_key=f"old-{number}")
            await one.reserve(key, reservation(f"run-{number}", "h"))
        age(module_migrated, REMEMBERED_MS - MINUTE_MS)
        for number in range(24):
            age(module_migrated, MINUTE_MS, f"old-{number}$")
        for number in range(3):
            key = msgspec.structs.replace(KEY, idempotency_key=f"new-{number}")
            await one.reserve(key, reservation(f"run-{number}", "h"))
        assert keys_left(module_migrated) == {"old-24", "new-0", "new-1", "new-2"}

    asking(module_migrated, act)


def test_a_sweep_deletes_what_is_expired_and_nothing_else(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        for number in range(5):
            key = msgspec.structs.replace(KEY, idempotency_key=f"old-{number}")
            await one.reserve(key, reservation(f"run-{number}", "h"))
        age(module_migrated, REMEMBERED_MS - MINUTE_MS)
        for number in range(3):
            age(module_migrated, MINUTE_MS, f"old-{number}$")
        assert sum(await asyncio.gather(one.sweep(), two.sweep())) == 3
        assert keys_left(module_migrated) == {"old-3", "old-4"}

    asking(module_migrated, act)


def test_what_is_refused_frees_its_key_for_another_request(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        await one.reserve(KEY, reservation("run", "wrong"))
        await one.refuse(KEY, "run")
        # The same request makes the same run: it may have been refused by one worker alone.
        again = await two.reserve(KEY, reservation("another", "wrong"))
        assert key_result(again, "wrong") == Pending("run")
        result = await at_once(one, two, "corrected", "right")
        assert len(set(result)) == 1
        assert key_result(result[0], "right") == Pending(result[0].response_run_id)
        # Who still comes with the refusal of the other request changes nothing.
        await one.refuse(KEY, "run")
        assert await two.find(KEY) == result[0]

    asking(module_migrated, act)


def test_a_refusal_does_not_free_what_was_made_meanwhile(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        await one.reserve(KEY, reservation("run", "h"))
        await two.complete(KEY, "run", 201, "answer")
        await one.refuse(KEY, "run")
        result = await one.reserve(KEY, reservation("another", "other"))
        assert key_result(result, "h") == Answered("run", 201, "answer")

    asking(module_migrated, act)


def test_what_was_refused_and_then_made_keeps_its_answer(module_migrated: str) -> None:
    async def act(one: IdempotencyKeys, two: IdempotencyKeys) -> None:
        await one.reserve(KEY, reservation("run", "h"))
        await one.refuse(KEY, "run")
        await two.reserve(KEY, reservation("another", "h"))
        kept = await two.complete(KEY, "run", 202, "answer")
        assert kept is not None
        assert key_result(kept, "h") == Answered("run", 202, "answer")

    asking(module_migrated, act)
