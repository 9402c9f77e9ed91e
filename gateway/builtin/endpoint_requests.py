"""Requests to endpoints: to the addresses that were checked, without redirects, and bounded.

The host name is resolved here, and the connection goes to the address that was checked. Otherwise
the name could resolve to another address between check and connection (DNS rebinding).
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Final

import httpx2
import msgspec

from headwater.gateway.builtin.host_lookups import HostLookups
from headwater.processors.endpoint_urls import (
    Address,
    Network,
    Target,
    address_problem,
    is_local,
    target_of,
)
from headwater.streams.clock import monotonic

#: Seconds of a whole request. Receivers are expected to accept first and work later.
_WITHIN_S: Final = 15.0
#: Requests at a time, to one endpoint and to all together, of a process: a slow endpoint takes no
#: more than its own.
_OF_ENDPOINT_MAX: Final = 10
_ALL_MAX: Final = 100
#: Of a response: enough to see why a receiver refused.
_RESPONSE_CHARS: Final = 256
_ERROR_CHARS: Final = 256
_DIGITS_MAX: Final = 10
_IPV6: Final = 6
_MS: Final = 1_000
#: Longest pause that a receiver can ask for.
_RETRY_AFTER_MAX_S: Final = 24 * 60 * 60
_HEADERS: Final = {
    "content-type": "application/json",
    "accept-encoding": "identity",
    "user-agent": f"headwater/{version('headwater')}",
}


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a request.

    Attributes:
        status: Status of the response; None without one.
        error: Why there was no response; empty if there was.
        response: The beginning of the response's body.
        ms: How long it took, in milliseconds.
        retry_after_ms: Pause that the receiver asked for; 0 if none.
    """

    status: int | None
    error: str = ""
    response: str = ""
    ms: int = 0
    retry_after_ms: int = 0

    @property
    def is_accepted(self) -> bool:
        """Whether the receiver accepted the notification."""
        return self.status is not None and HTTPStatus(200) <= self.status < HTTPStatus(300)

    @property
    def is_gone(self) -> bool:
        """Whether the receiver wants no more notifications, as Standard Webhooks defines it."""
        return self.status == HTTPStatus.GONE


class EndpointRequests:
    """Posts to endpoints.

    Args:
        allowed: Networks that are allowed although they are not public.
        transport: Replaces the network in tests.
        loopback: Whether URLs may name this machine.
    """

    def __init__(
        self,
        allowed: Sequence[Network],
        transport: httpx2.AsyncBaseTransport | None = None,
        *,
        loopback: bool = True,
    ) -> None:
        self._allowed = allowed
        self._loopback = loopback
        self._all = asyncio.Semaphore(_ALL_MAX)
        self._of_endpoint: dict[str, asyncio.Semaphore] = {}
        # As many as there may be endpoints, so that slow names delay no others.
        self._lookups = HostLookups(_ALL_MAX)
        # Connections are not kept: one to an address would be used for other hosts there. Proxies
        # of the environment would resolve names on their own.
        self._http = httpx2.AsyncClient(
            transport=transport,
            timeout=_WITHIN_S,
            limits=httpx2.Limits(max_connections=_ALL_MAX, max_keepalive_connections=0),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        self._lookups.close()
        await self._http.aclose()

    async def post(
        self, endpoint: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> Attempt:
        """Post a body; return the result, whatever it is."""
        one = self._of_endpoint.setdefault(endpoint, asyncio.Semaphore(_OF_ENDPOINT_MAX))
        async with one, self._all:
            began = monotonic()
            try:
                async with asyncio.timeout(_WITHIN_S):
                    attempt = await self._post(url, headers, body)
            except TimeoutError:
                attempt = Attempt(status=None, error=f"no response within {_WITHIN_S:.0f} s")
            # A ValueError is about the URL, such as a host name that cannot be looked up. It has to
            # be a result: what is raised would be repeated without end.
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
                attempt = Attempt(status=None, error=_described(error))
            return msgspec.structs.replace(attempt, ms=round((monotonic() - began) * _MS))

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        target = target_of(url)
        if isinstance(target, str):
            return Attempt(status=None, error=target)
        addresses = await self._lookups.addresses(target.host, target.port)
        local = self._loopback and is_local(target.host)
        for address in addresses:
            problem = address_problem(address, self._allowed, loopback=local)
            if problem is not None:
                return Attempt(status=None, error=f"{target.host}: {problem}")
        for address in addresses[:-1]:
            with contextlib.suppress(httpx2.ConnectError):
                return await self._send(target, address, headers, body)
        return await self._send(target, addresses[-1], headers, body)

    async def _send(
        self, target: Target, address: Address, headers: Mapping[str, str], body: bytes
    ) -> Attempt:
        host = f"[{address}]" if address.version == _IPV6 else str(address)
        request = self._http.build_request(
            "POST",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            headers={**headers, **_HEADERS, "host": target.authority},
            content=body,
            # TLS verifies the certificate of the name.
            extensions={"sni_hostname": target.host},
        )
        response = await self._http.send(request, stream=True)
        try:
            return Attempt(
                status=response.status_code,
                response=await _beginning(response),
                retry_after_ms=_retry_after_ms(response.headers.get("retry-after", "")),
            )
        finally:
            await response.aclose()
            self._http.cookies.clear()


async def _beginning(response: httpx2.Response) -> str:
    """Return the beginning of a body as text. The rest is not received."""
    received = b""
    async for part in response.aiter_raw():
        received += part
        if len(received) >= _RESPONSE_CHARS:
            break
    return received[:_RESPONSE_CHARS].decode(errors="replace").replace("\0", "\ufffd")


def _retry_after_ms(text: str) -> int:
    """Return a pause in seconds that a receiver asked for; dates are ignored."""
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX else 0
    return min(seconds, _RETRY_AFTER_MAX_S) * _MS


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_ERROR_CHARS]
