"""The real application over a verified fake of Kafka and a Postgres that is away."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

import httpx
import pytest
from litestar.testing import TestClient

from headwater.gateway.app import create_app
from headwater.gateway.local.demo_day import terra_signature
from headwater.gateway.settings import Settings
from headwater.gateway.sources import sources_with_secrets
from headwater.projections.deliveries.queries import Reader
from tests.fakes.delivery_log import MemoryAnswers, MemoryLog, MemoryReplays

NOW_MS = 1_782_900_000_000
#: The port of nobody: refused at once.
NO_POSTGRES = "postgresql://headwater@127.0.0.1:1/headwater"


Post: TypeAlias = Callable[..., httpx.Response]


class Clock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def answers() -> MemoryAnswers:
    return MemoryAnswers()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings() -> Settings:
    return Settings(terra_secrets="current,previous", max_body_bytes=100_000)


@pytest.fixture
def client(
    log: MemoryLog, answers: MemoryAnswers, clock: Clock, settings: Settings
) -> Iterator[TestClient[Any]]:
    numbers = count(1)
    app = create_app(
        settings,
        sources=sources_with_secrets(settings, {}),
        log=log,
        reader=Reader(NO_POSTGRES),
        answers=answers,
        replays=MemoryReplays(),
        clock=clock,
        new_request_id=lambda: f"request-{next(numbers)}",
    )
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def post(client: TestClient[Any], clock: Clock) -> Post:
    """Posts a body, signed unless told otherwise."""

    def send(body: bytes, path: str = "/webhooks/terra", **headers: str) -> httpx.Response:
        signature = terra_signature("current", body, clock() // 1000)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post(path, content=body, headers={"terra-signature": signature, **named})

    return send
