"""A key makes so many requests a minute and no more; every answer says how many are left."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient

from headwater.gateway.api.authentication import Caller
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.rate_limits import RateLimits, rate_fields
from headwater.gateway.settings.settings import Settings
from tests.fakes.api_keys import MemoryApiKeys
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_key_matrix import created, key


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def caller(name: str = "key_a", limit: int = 0) -> Caller:
    return Caller(name, frozenset(), rate_limit=limit)


def count(limits: RateLimits, caller: Caller) -> tuple[str, str]:
    """Remaining requests and seconds, or `refused` and the seconds to wait."""
    scope: Any = {}
    try:
        limits.count(scope, caller)
    except Problem as problem:
        return "refused", problem.headers["retry-after"]
    _, remaining, seconds = rate_fields(scope)["ratelimit"].split(";")
    return remaining.removeprefix("r="), seconds.removeprefix("t=")


def test_a_key_makes_so_many_requests_in_a_minute(clock: Clock):
    limits = RateLimits(2, clock)
    assert count(limits, caller()) == ("1", "60")
    clock.now_ms += 30_500
    assert count(limits, caller()) == ("0", "30")
    assert count(limits, caller()) == ("refused", "30")
    assert count(limits, caller("key_b")) == ("1", "60")
    clock.now_ms += 29_500
    assert count(limits, caller()) == ("1", "60")


def test_a_key_may_have_a_limit_of_its_own(clock: Clock):
    limits = RateLimits(1, clock)
    assert [count(limits, caller(limit=3))[0] for _ in range(4)] == ["2", "1", "0", "refused"]


def test_without_a_limit_nothing_is_counted(clock: Clock):
    limits, scope = RateLimits(0, clock), {}
    limits.count(scope, caller())  # type: ignore[arg-type] (a scope)
    assert (scope, limits.remembered) == ({}, 0)


def test_a_clock_that_is_set_back_begins_a_new_minute(clock: Clock):
    limits = RateLimits(1, clock)
    count(limits, caller())
    clock.now_ms -= 500_000
    assert count(limits, caller()) == ("0", "60")


def test_of_many_keys_so_many_are_remembered_and_no_more(clock: Clock):
    limits = RateLimits(1, clock)
    for number in range(12_000):
        count(limits, caller(f"key_{number}"))
    assert limits.remembered == 10_000


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient[Any]]:
    log = MemoryApiKeys(
        [created(1, ("audit:read",), rate_limit=2), created(2, ("keys:read",), rate_limit=1)]
    )
    clock = Clock()
    app = memory_app(Settings(key_rate_limit=500), api_keys=log, clock=clock)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def ask(client: TestClient[Any], text: str) -> httpx2.Response:
    return client.get("/v1/audit?lmit=1", headers={"authorization": f"Bearer {text}"})


def test_every_answer_has_the_fields_of_the_draft(client: TestClient[Any]):
    answer = ask(client, "dev-admin-key")
    assert answer.headers["ratelimit-policy"] == '"key";q=500;w=60'
    assert answer.headers["ratelimit"] == '"key";r=499;t=60'
    assert "ratelimit" not in client.get("/health/live").headers


def test_a_request_above_the_limit_is_answered_429(client: TestClient[Any]):
    assert [ask(client, key(1)).status_code for _ in range(2)] == [400, 400]
    refused = ask(client, key(1))
    assert_problem(refused, 429, "too_many_requests")
    assert refused.headers["retry-after"] == "60"
    assert refused.headers["ratelimit"] == '"key";r=0;t=60'


def test_requests_without_the_scope_count_too(client: TestClient[Any]):
    assert [ask(client, key(2)).status_code for _ in range(2)] == [403, 429]
