"""The real application over a verified fake of Kafka and a Postgres that is away."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import httpx2
import pytest
from litestar.testing import TestClient

from headwater.gateway.api import authentication
from headwater.gateway.local.demo_day import terra_signature
from headwater.gateway.settings.settings import Settings
from tests.fakes.delivery_log import MemoryAnswers, MemoryLog
from tests.unit.gateway.memory_app import memory_app

NOW_MS = 1_782_900_000_000


Post: TypeAlias = Callable[..., httpx2.Response]


@pytest.fixture(autouse=True)
def wrong_keys_cost_nothing(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold no address for wrong keys, but where that is tested: others bring them by the dozen."""
    if not request.path.name.startswith("test_wrong_keys"):
        monkeypatch.setattr(authentication, "_FREE", 10**9)


class Clock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class Running(NamedTuple):
    """A gateway, and what it stands on."""

    client: TestClient[Any]
    log: MemoryLog
    answers: MemoryAnswers
    clock: Clock
    requests: list[str]


@contextmanager
def started() -> Iterator[Running]:
    """A gateway of its own."""
    log, answers, clock = MemoryLog(), MemoryAnswers(), Clock()
    settings = Settings(terra_secrets="current,previous", max_body_bytes=100_000)
    requests: list[str] = []

    def new_request_id() -> str:
        requests.append(f"request-{len(requests) + 1}")
        return requests[-1]

    app = memory_app(settings, log=log, answers=answers, clock=clock, new_request_id=new_request_id)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Running(client, log, answers, clock, requests)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """Made once for a module: to make an application takes longer than what most tests do."""
    with started() as running:
        yield running


@pytest.fixture
def log(running: Running) -> MemoryLog:
    running.log.deliveries.clear()
    running.log.ready, running.log.away, running.log.fault = True, False, None
    return running.log


@pytest.fixture
def answers(running: Running) -> MemoryAnswers:
    running.answers.recorded.clear()
    return running.answers


@pytest.fixture
def clock(running: Running) -> Clock:
    running.clock.now_ms = NOW_MS
    return running.clock


@pytest.fixture
def client(
    running: Running, log: MemoryLog, answers: MemoryAnswers, clock: Clock
) -> TestClient[Any]:
    """As if its first request were still to come."""
    running.requests.clear()
    return running.client


@pytest.fixture
def post(client: TestClient[Any], clock: Clock) -> Post:
    return posting(client, clock)


def posting(client: TestClient[Any], clock: Clock) -> Post:
    """Posts a body, signed unless told otherwise."""

    def send(body: bytes, path: str = "/webhooks/terra", **headers: str) -> httpx2.Response:
        signature = terra_signature("current", body, clock() // 1000)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post(path, content=body, headers={"terra-signature": signature, **named})

    return send
