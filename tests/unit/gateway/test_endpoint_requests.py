"""Requests to endpoints: addresses that were checked, no redirects, bounded responses."""

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import httpx2
import pytest

from headwater.gateway.builtin import endpoint_requests
from headwater.gateway.builtin.endpoint_requests import Attempt, EndpointRequests
from tests.fakes.receiver import response


def posted(
    url: str,
    answer: Callable[[httpx2.Request], httpx2.Response],
    *,
    allowed: str = "",
    loopback: bool = True,
) -> Attempt:
    async def post() -> Attempt:
        networks = [ip_network(allowed)] if allowed else []
        requests = EndpointRequests(networks, httpx2.MockTransport(answer), loopback=loopback)
        try:
            return await requests.post("ep_1", url, {"webhook-id": "msg_1"}, b"{}")
        finally:
            await requests.close()

    return asyncio.run(post())


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:  # noqa: ANN401 (JSON)
        assert host == "example.com"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def unreachable(request: httpx2.Request) -> httpx2.Response:
    raise AssertionError(f"expected no request, found {request.url}")


def test_a_request_goes_to_the_checked_address_with_the_name_for_tls(
    monkeypatch: pytest.MonkeyPatch,
):
    resolving(monkeypatch, "93.184.216.34")
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return response(204)

    attempt = posted("https://example.com/hooks?x=1", answer)
    assert attempt.is_accepted
    (request,) = seen
    assert str(request.url) == "https://93.184.216.34/hooks?x=1"
    assert request.headers["host"] == "example.com"
    assert request.extensions["sni_hostname"] == "example.com"
    assert request.headers["webhook-id"] == "msg_1"
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("93.184.216.34", "127.0.0.1"), ("::1",)])
def test_a_name_that_resolves_to_a_private_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
):
    resolving(monkeypatch, *addresses)
    attempt = posted("https://example.com/", unreachable)
    assert attempt.status is None
    assert "expected a public address" in attempt.error


def test_a_network_can_be_allowed(monkeypatch: pytest.MonkeyPatch):
    resolving(monkeypatch, "10.0.0.1")
    attempt = posted("https://example.com/", lambda _: response(200), allowed="10.0.0.0/8")
    assert attempt.is_accepted


def test_redirects_are_not_followed():
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/hooks"
        return response(302, headers={"location": "http://169.254.169.254/"})

    attempt = posted("http://127.0.0.1:9/hooks", answer)
    assert attempt.status == 302
    assert not attempt.is_accepted


def test_only_the_beginning_of_a_response_is_kept():
    attempt = posted("http://127.0.0.1:9/", lambda _: response(500, b"x" * 10**6))
    assert attempt.status == 500
    assert attempt.response == "x" * 256


def test_a_receiver_may_ask_for_a_pause():
    def answer(_: httpx2.Request) -> httpx2.Response:
        return response(429, headers={"retry-after": "120"})

    assert posted("http://127.0.0.1:9/", answer).retry_after_ms == 120_000
    dated = response(429, headers={"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})
    assert posted("http://127.0.0.1:9/", lambda _: dated).retry_after_ms == 0


def test_an_error_of_the_network_is_a_result():
    def answer(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    attempt = posted("http://127.0.0.1:9/", answer)
    assert attempt.status is None
    assert attempt.error == "ConnectError: refused"


def test_a_host_name_that_cannot_be_looked_up_is_a_result(monkeypatch: pytest.MonkeyPatch):
    for url in ("https://a..example.com/", f"https://{'x' * 64}.example.com/"):
        attempt = posted(url, unreachable)
        assert attempt.status is None
        assert "1 to 63 characters between its dots" in attempt.error

    def refuse(text: str) -> None:
        raise UnicodeError(f"label empty or too long: {text}")

    monkeypatch.setattr(endpoint_requests, "target_of", refuse)
    attempt = posted("https://example.com/", unreachable)
    assert attempt.status is None
    assert "label empty or too long" in attempt.error


@pytest.mark.parametrize("host", ["127.0.0.1:9", "[::1]:9"])
def test_this_machine_is_refused_where_it_is_not_allowed(host: str):
    attempt = posted(f"http://{host}/", unreachable, loopback=False)
    assert "expected a public address, found loopback" in attempt.error
    assert posted(f"http://{host}/", lambda _: response(200)).is_accepted


def test_410_means_that_the_endpoint_is_gone():
    assert posted("http://127.0.0.1:9/", lambda _: response(410)).is_gone


def test_a_slow_endpoint_takes_no_connections_of_others():
    """Ten requests of one endpoint wait; another one's is answered meanwhile."""

    async def scene() -> None:
        held = asyncio.Event()

        async def answer(request: httpx2.Request) -> httpx2.Response:
            if request.url.path == "/slow":
                await held.wait()
            return response(200)

        requests = EndpointRequests([], httpx2.MockTransport(answer))
        slow = [
            asyncio.create_task(requests.post("slow", "http://127.0.0.1/slow", {}, b""))
            for _ in range(50)
        ]
        fast = await requests.post("fast", "http://127.0.0.1/fast", {}, b"")
        assert fast.is_accepted
        assert not any(task.done() for task in slow)
        held.set()
        assert all(attempt.is_accepted for attempt in await asyncio.gather(*slow))
        await requests.close()

    asyncio.run(scene())
