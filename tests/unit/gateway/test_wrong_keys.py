"""Who brings wrong keys waits, longer each time; who brings right ones does not."""

import itertools
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient
from litestar.types import Receive, Scope, Send

from headwater.gateway.api.authentication import WrongKeys
from headwater.gateway.api.problems import Problem
from headwater.gateway.settings.settings import Settings
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.problem_contract import assert_problem

Client = TestClient[Any]


_NUMBERS = itertools.count(1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wrong_keys(clock: Clock) -> WrongKeys:
    return WrongKeys(lambda scope: scope["client"][0], clock)


def bring(wrong_keys: WrongKeys, peer: str, *, right: bool, kind: str = "admin") -> int:
    """Brings a key; returns the seconds that its address has to wait."""
    scope: Any = {"client": (peer, 1)}
    try:
        wrong_keys.check(scope, kind, right=right)
    except Problem as problem:
        return int(problem.headers["retry-after"])
    return 0


def test_the_pause_doubles_with_each_wrong_key_up_to_a_minute(wrong_keys: WrongKeys, clock: Clock):
    assert [bring(wrong_keys, "a", right=False) for _ in range(10)] == [0] * 10
    pauses = []
    for _ in range(8):
        pauses.append(bring(wrong_keys, "a", right=False))
        clock.now_s += pauses[-1]
        assert bring(wrong_keys, "a", right=False) == 0
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_key_that_is_refused_meanwhile_makes_the_pause_no_longer(
    wrong_keys: WrongKeys, clock: Clock
):
    for _ in range(11):
        bring(wrong_keys, "a", right=False)
    assert {bring(wrong_keys, "a", right=False) for _ in range(1_000)} == {1}
    clock.now_s += 1
    assert bring(wrong_keys, "a", right=True) == 0


def test_a_guess_tells_nothing_while_its_address_is_held(wrong_keys: WrongKeys):
    for _ in range(10):
        bring(wrong_keys, "a", right=False)
    assert bring(wrong_keys, "a", right=True) == bring(wrong_keys, "a", right=False) == 1


def test_who_had_a_right_key_before_is_not_locked_out_by_others_of_the_address(
    wrong_keys: WrongKeys,
):
    bring(wrong_keys, "a", right=True)
    for _ in range(100):
        bring(wrong_keys, "a", right=False)
    assert bring(wrong_keys, "a", right=True) == 0
    assert bring(wrong_keys, "a", right=True, kind="read") > 0
    assert bring(wrong_keys, "b", right=True) == bring(wrong_keys, "b", right=False) == 0


def test_wrong_keys_are_forgotten_after_a_quarter_of_an_hour(wrong_keys: WrongKeys, clock: Clock):
    for _ in range(10):
        bring(wrong_keys, "a", right=False)
    clock.now_s += 901
    assert [bring(wrong_keys, "a", right=False) for _ in range(10)] == [0] * 10


def test_a_clock_that_is_set_back_holds_nobody_for_longer(wrong_keys: WrongKeys, clock: Clock):
    for _ in range(10):
        bring(wrong_keys, "a", right=False)
    clock.now_s -= 100_000
    assert bring(wrong_keys, "a", right=False) <= 60


def test_of_many_addresses_so_many_are_remembered_and_no_more(wrong_keys: WrongKeys):
    for number in range(25_000):
        bring(wrong_keys, f"a-{number}", right=number % 2 == 0)
    assert wrong_keys.remembered <= 20_000


# --- over HTTP


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Client, Clock]]:
    clock = Clock()
    settings = Settings(trusted_proxies="127.0.0.0/8")
    app = memory_app(settings, clock=lambda: round(clock.now_s * 1000))

    async def behind_proxy(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["client"] = ("127.0.0.1", 1)
        await app(scope, receive, send)

    with TestClient(behind_proxy) as client:
        yield client, clock


def send(client: Client, path: str, peer: str, headers: dict[str, str]) -> httpx2.Response:
    return client.get(path, headers={"x-forwarded-for": peer, **headers})


@pytest.mark.parametrize(
    ("path", "header", "wrong", "right"),
    [
        ("/v1/audit", "x-admin-key", "guess", "dev-admin-key"),
        ("/v1/sync", "authorization", "Bearer guess", "Bearer dev-read-key"),
        ("/v1/sync", "x-api-key", "guess", "dev-read-key"),
        ("/api/workflows/workflows", "x-api-key", "guess", "dev-workflow-key"),
        ("/v1/world/deployment-id", "x-api-key", "guess", "dev-world-key"),
    ],
)
def test_every_key_is_guarded_and_by_the_address_that_a_proxy_names(
    served: tuple[Client, Clock], path: str, header: str, wrong: str, right: str
):
    client, clock = served
    clock.now_s += 10_000
    guesser, other = (f"203.0.113.{next(_NUMBERS)}" for _ in range(2))
    for _ in range(10):
        assert_problem(send(client, path, guesser, {header: wrong}), 401, "unauthorized")
    for key in (wrong, right):
        held = send(client, path, guesser, {header: key})
        assert_problem(held, 429, "too_many_requests")
        assert held.headers["retry-after"] == "1"
    assert_problem(send(client, path, guesser, {}), 401, "unauthorized")
    assert send(client, path, other, {header: right}).status_code not in (401, 429)
    clock.now_s += 1
    assert send(client, path, guesser, {header: right}).status_code not in (401, 429)


def test_signing_in_is_guarded_too(served: tuple[Client, Clock]):
    client, clock = served
    clock.now_s += 10_000
    here = {"x-forwarded-for": "203.0.113.201"}

    def sign_in(key: str) -> httpx2.Response:
        form = {"key": key}
        return client.post("/console/login", data=form, headers=here, follow_redirects=False)

    assert [sign_in("guess").status_code for _ in range(10)] == [401] * 10
    held = sign_in("dev-admin-key")
    assert (held.status_code, held.headers["retry-after"]) == (429, "1")
    clock.now_s += 1
    assert sign_in("dev-admin-key").status_code == 303


def test_tokens_of_users_are_no_guesses(served: tuple[Client, Clock]):
    client, clock = served
    clock.now_s += 10_000
    for _ in range(30):
        answer = send(client, "/v1/sync", "203.0.113.202", {"authorization": "Bearer a.b.c"})
        assert_problem(answer, 401, "unauthorized")
