"""HEAD is answered wherever GET is, by the same head and no body; streams end with it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
from litestar import Litestar, get
from litestar.routes import HTTPRoute
from litestar.testing import TestClient
from litestar.types import Receive, Scope, Send

from headwater.gateway.api.body_limits import Streamed
from headwater.gateway.api.front import answer_head, front_of
from tests.unit.gateway.problem_contract import assert_problem

ADMIN = {"x-admin-key": "dev-admin-key"}


def ask(client: TestClient[Any], *asked: tuple[str, str]) -> list[httpx2.Response]:
    """Asks what is served, of which the front is a part."""

    async def answers() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app=front_of(client.app))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", headers=ADMIN
        ) as asking:
            return await asyncio.gather(*(asking.request(*item) for item in asked))

    result: list[httpx2.Response] = client.blocking_portal.call(answers)
    return result


def without_ids(answer: httpx2.Response) -> dict[str, str]:
    """Its headers, without what differs from one request to the next."""
    length = {} if answer.is_success else {"content-length": "that of another id"}
    return {**answer.headers, "x-request-id": "", **length}


def test_every_route_that_takes_get_takes_head(client: TestClient[Any]):
    routes = [route for route in client.app.routes if isinstance(route, HTTPRoute)]
    gets = [route.path for route in routes if "GET" in route.methods and "{" not in route.path]
    assert len(gets) > 15
    both = [*(("GET", path) for path in gets), *(("HEAD", path) for path in gets)]
    answers = ask(client, *both)
    for got, head in zip(answers[: len(gets)], answers[len(gets) :], strict=True):
        assert head.status_code == got.status_code, got.url
        assert head.content == b""
        if got.url.path != "/metrics":  # they count
            assert without_ids(head) == without_ids(got)


def test_the_page_is_one_of_them_and_nothing_else_changes(client: TestClient[Any]):
    page, posted, nowhere = ask(client, ("HEAD", "/"), ("HEAD", "/webhooks/terra"), ("HEAD", "/no"))
    assert (page.status_code, page.content) == (200, b"")
    assert int(page.headers["content-length"]) > 100
    assert posted.status_code == 405
    assert nowhere.status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/admin/dlq", "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/admin/dlq", "GET, HEAD, OPTIONS"),
        ("GET", "/admin/drain", "OPTIONS, POST"),
    ],
)
def test_it_is_among_the_methods_that_a_path_names(
    client: TestClient[Any], method: str, path: str, allowed: str
):
    (answer,) = ask(client, (method, path))
    assert answer.headers["allow"] == allowed
    if method != "OPTIONS":
        assert_problem(answer, 405, "method_not_allowed")


def test_a_stream_ends_when_its_head_is_sent():
    ended = []

    async def lines() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"line\n"
                await asyncio.sleep(0)
        finally:
            ended.append(True)

    @get("/tail")
    async def tail() -> Streamed:
        return Streamed(iterator=lines(), media_type="text/plain")

    app = Litestar([tail], openapi_config=None)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await answer_head(app, scope, receive, send)

    async def asked() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=served)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as asking:
            async with asyncio.timeout(20):
                return await asking.head("/tail")

    answer = asyncio.run(asked())
    assert (answer.status_code, answer.content) == (200, b"")
    assert ended == [True]
