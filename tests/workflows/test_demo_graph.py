"""The demo's graph compares the days that a gateway has."""

import asyncio

import pytest

from headwater import WorkflowTest
from headwater.gateway.local.demo.workflows import compare_steps, day_comparison, read_steps
from headwater.schemas.failures import WorkflowParamsInvalidError
from tests.fakes.json_server import answering

DAYS = [
    {"datetime": "2026-07-01T00:00:00+02:00", "steps": 11_894},
    {"datetime": "2026-07-02T00:00:00+02:00", "steps": 20_000},
]


async def says(url: str, users: list[str]) -> object:
    params = {"url": url, "date": "2026-07-01", "users": users}
    async with WorkflowTest([day_comparison], tasks=[read_steps, compare_steps]) as test:
        instance = await test.create("day-comparison", id="c", params=params)
        await test.run_until_idle()
        return (await instance.status()).output


def test_the_days_of_all_are_read_and_compared() -> None:
    with answering(lambda _: {"tables": {"daily_summary": DAYS}}) as (url, requested):
        assert asyncio.run(says(url, ["amara", "bo"])) == {
            "says": "bo went furthest, with 11894 steps"
        }
    assert sorted(item.path for item in requested) == [
        "/v1/sync?user_id=amara",
        "/v1/sync?user_id=bo",
    ]


def test_days_that_nobody_knows_are_no_steps() -> None:
    with answering(lambda _: {"tables": {"daily_summary": []}}) as (url, _):
        assert asyncio.run(says(url, ["bo"])) == {"says": "no steps are known"}


def test_somebody_has_to_be_compared() -> None:
    with pytest.raises(WorkflowParamsInvalidError, match="users"):
        asyncio.run(says("http://127.0.0.1:1", []))
