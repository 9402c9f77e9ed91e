"""The outermost ASGI application: Host header, HEAD, routing of deliveries, the page at /."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from html import escape
from http import HTTPMethod
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec
from litestar import Litestar
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from headwater.gateway.api.problems import MEDIA_TYPE, document
from headwater.gateway.api.rate_limits import rate_fields
from headwater.gateway.api.request_scope import (
    STATE_NAME,
    request_id_of,
    request_trace,
    split_as_sent,
)
from headwater.gateway.api.traced_requests import serve_traced
from headwater.gateway.settings.exposure import is_loopback
from headwater.streams.telemetry import telemetry


async def answer_head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a HEAD request with the headers of the app's response to GET.

    The handler of GET answers it, so routes declare nothing.
    """
    sent = asyncio.Event()

    async def send_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            sent.set()

    received = False

    async def disconnect_after_headers() -> Any:  # noqa: ANN401 (a message of ASGI)
        # A stream ends when its client disconnects, and a HEAD request is done with the headers.
        nonlocal received
        if not received:
            received = True
            return await receive()
        await sent.wait()
        return {"type": "http.disconnect"}

    get_scope = cast("Scope", {**scope, "method": HTTPMethod.GET.value})
    await app(get_scope, disconnect_after_headers, send_headers)


def allow_head(header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return a response header; add HEAD to an Allow header with GET."""
    name, value = header
    if name.lower() != b"allow":
        return header
    methods = value.decode().split(", ")
    also = [] if HTTPMethod.HEAD in methods or HTTPMethod.GET not in methods else ["HEAD"]
    return name, ", ".join(sorted([*methods, *also])).encode()


# -- Host header


def hosts_known(listening: str, allowed: Iterable[str]) -> Callable[[Scope], bool]:
    """Return a predicate: does the Host header of a request name this gateway?

    A web page with a name that resolves to a loopback address (DNS rebinding) could call this
    gateway as its own server, and the keys of development are public. Its requests still carry its
    name in the Host header. Deliveries are exempt: they are signed, and arrive through tunnels of
    any name.

    Args:
        listening: Host that the gateway listens on.
        allowed: Further names, without ports. If the gateway does not listen on loopback and none
            is set, any name is accepted.
    """
    names = frozenset(name.lower() for name in (listening, *allowed))
    any_name = not is_loopback(listening) and len(names) == 1

    def is_known(scope: Scope) -> bool:
        name = _name(scope)
        return any_name or name in names or is_loopback(name)

    return is_known


def _name(scope: Scope) -> str:
    header = next((value for name, value in scope["headers"] if name == b"host"), b"")
    try:
        return urlsplit(f"//{header.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


# -- the page at /

#: Pages load only from this origin and cannot be framed. The API viewer sets inline styles.
SECURITY_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "content-security-policy": "default-src 'none'; script-src 'self'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
)

#: Links on the page at /.
LINKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "/console": "Inspect and operate the system: sign in with the operators' key.",
        "/schema/swagger": "Try the API: authorize with your keys, and send requests.",
        "/schema/openapi.json": "Description of the API, OpenAPI 3.1.",
        "/asyncapi.json": "The topics and their records, AsyncAPI 3.0.",
        "/health/ready": "Readiness: are deliveries accepted?",
        "/metrics": "Metrics for Prometheus.",
        "/registry/subjects": "The schemas of all records, for Kafka viewers.",
    }
)

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headwater</title>
<link rel="icon" href="data:,">
<style>body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; }}</style>
</head>
<body>
<h1>Headwater {version}</h1>
<p>Signed webhooks in, typed rows out; durable workflows.</p>
<ul>
{links}
</ul>
<p>Deliveries are posted to {sources}.</p>
</body>
</html>
"""


def wants_html(accept: str) -> bool:
    """Whether the client is a browser."""
    return "text/html" in accept


class Home:
    """The page at /: HTML for browsers, JSON for other clients."""

    def __init__(self, version: str, paths: tuple[str, ...]) -> None:
        links = "\n".join(
            f'<li><a href="{path}">{path}</a>: {escape(text)}</li>' for path, text in LINKS.items()
        )
        sources = ", ".join(f"<code>{escape(path)}</code>" for path in paths)
        self._html = _PAGE.format(version=version, links=links, sources=sources).encode()
        self._json = msgspec.json.encode(
            {"name": "Headwater", "version": version, "links": dict(LINKS), "sources": paths}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; Litestar's before_send adds the other headers."""
        del receive
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        html = wants_html(accept.decode("latin-1"))
        body = self._html if html else self._json
        media_type = b"text/html; charset=utf-8" if html else b"application/json"
        answer = [(b"content-type", media_type), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": answer})
        await send({"type": "http.response.body", "body": body, "more_body": False})


# -- the application

_RECEIVERS: Final = "receivers"
_HOST_KNOWN: Final = "host_known"
_SECURITY: Final = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]

#: Statuses of responses with an Allow header: to OPTIONS, and to an unsupported method.
_WITH_ALLOW: Final = frozenset({204, 405})


def state_of(
    *,
    receivers: Mapping[str, ASGIApp],
    host_known: Callable[[Scope], bool],
    new_request_id: Callable[[], str],
) -> State:
    """Return the application state that `front_of` uses.

    Args:
        receivers: Receivers of deliveries by path.
        host_known: Returns whether a request names a host of this gateway.
        new_request_id: Returns a new request id.
    """
    return State({_RECEIVERS: receivers, _HOST_KNOWN: host_known, STATE_NAME: new_request_id})


def front_of(app: Litestar) -> ASGIApp:
    """Wrap an application with the check of the Host header and the routing of deliveries.

    Deliveries bypass Litestar: its routing, scope state and exception layers cost about 11
    microseconds a request, and a delivery is posted to a fixed path.
    """
    receivers: Mapping[str, ASGIApp] = app.state[_RECEIVERS]
    host_known: Callable[[Scope], bool] = app.state[_HOST_KNOWN]

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        receiver = receivers.get(scope["path"]) if scope["method"] == HTTPMethod.POST else None
        if receiver is not None:
            await receiver(scope, receive, send)
            return
        if not host_known(scope):
            await _refuse_host(scope, send, app.state[STATE_NAME])
            return
        exporter = telemetry()
        if exporter is not None:
            await serve_traced(serve, scope, receive, send, exporter, app.state[STATE_NAME]())
            return
        request_trace(scope)
        await serve(scope, receive, send)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if cast("HTTPScope", scope)["method"] == HTTPMethod.HEAD:
            await answer_head(app, split_as_sent(scope), receive, send)
        else:
            await app(split_as_sent(scope), receive, send)

    return front


async def _refuse_host(scope: Scope, send: Send, new_request_id: Callable[[], str]) -> None:
    request_id = new_request_id()
    status, body = document(
        code="unknown_host",
        detail="expected a name of this gateway in the header Host, found another; if the name is "
        "correct, add it to HEADWATER_ALLOWED_HOSTS",
        instance=scope["path"],
        request_id=request_id,
    )
    headers = {"content-type": MEDIA_TYPE, "x-request-id": request_id, **SECURITY_HEADERS}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def add_headers(message: Message, scope: Scope) -> None:
    """Add the request id, the limit of the key and the security headers to a response."""
    if message["type"] != "http.response.start" or scope["type"] != ScopeType.HTTP:
        return
    headers = list(message.get("headers", []))
    if message["status"] in _WITH_ALLOW:
        headers = [allow_head(header) for header in headers]
    if all(name.lower() != b"x-request-id" for name, _ in headers):
        headers.append((b"x-request-id", request_id_of(scope).encode()))
    headers += [(name.encode(), value.encode()) for name, value in rate_fields(scope).items()]
    # A page may set its own policy. Browsers would enforce both.
    present = {name.lower() for name, _ in headers}
    message["headers"] = [*headers, *(header for header in _SECURITY if header[0] not in present)]
