"""Names that a gateway is called by: a page of somebody else's may not choose one."""

import asyncio
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient

from headwater.gateway.api.front import front_of, hosts_known
from headwater.gateway.local.demo_day import terra_signature
from tests.unit.gateway.conftest import Clock
from tests.unit.gateway.problem_contract import assert_problem


@pytest.mark.parametrize(
    ("listening", "allowed", "called", "known"),
    [
        ("127.0.0.1", [], "127.0.0.1:8080", True),
        ("127.0.0.1", [], "localhost:8080", True),
        ("127.0.0.1", [], "LOCALHOST", True),
        ("::1", [], "[::1]:8080", True),
        ("127.0.0.1", [], "evil.example", False),
        ("127.0.0.1", [], "localhost.evil.example:8080", False),
        ("127.0.0.1", [], "", False),
        ("127.0.0.1", [], "[", False),
        ("127.0.0.1", ["rows.example"], "rows.example", True),
        ("127.0.0.1", ["rows.example"], "Rows.Example:443", True),
        ("0.0.0.0", [], "anything.example", True),
        ("0.0.0.0", ["rows.example"], "rows.example", True),
        ("0.0.0.0", ["rows.example"], "localhost", True),
        ("0.0.0.0", ["rows.example"], "evil.example", False),
    ],
)
def test_a_name_is_known_or_not(
    listening: str, allowed: list[str], called: str, known: bool
) -> None:
    scope: Any = {"headers": [(b"host", called.encode())]}
    assert hosts_known(listening, allowed)(scope) is known


def ask(
    client: TestClient[Any],
    method: str,
    path: str,
    content: bytes = b"",
    headers: dict[str, str] | None = None,
) -> httpx2.Response:
    async def whole() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=front_of(client.app))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://evil.example"
        ) as asking:
            return await asking.request(method, path, content=content, headers=headers)

    return asyncio.run(whole())


@pytest.mark.parametrize("path", ["/", "/health/live", "/v1/sync", "/nowhere"])
def test_a_request_under_a_strange_name_is_refused(client: TestClient[Any], path: str) -> None:
    answer = ask(client, "GET", path)
    assert "HEADWATER_ALLOWED_HOSTS" in assert_problem(answer, 421, "unknown_host")["detail"]


def test_a_delivery_may_come_under_any_name(client: TestClient[Any], clock: Clock) -> None:
    body = b'{"type":"daily","user":{"user_id":"a"}}'
    signature = terra_signature("current", body, clock() // 1000)
    headers = {"terra-signature": signature}
    assert ask(client, "POST", "/webhooks/terra", content=body, headers=headers).is_success
    assert ask(client, "POST", "/", content=body, headers=headers).is_success
