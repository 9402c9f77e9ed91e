"""Data of a request in its ASGI scope: id, problem code, path segments, client address."""

from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache, partial
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import unquote

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from headwater.gateway.client.requests import usable
from headwater.processors.log_fields import set_log_fields
from headwater.processors.trace_context import (
    CURRENT,
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    context_of,
    context_of_headers,
)

AnyRequest: TypeAlias = Request[Any, Any, Any]
AnyConnection: TypeAlias = ASGIConnection[Any, Any, Any, Any]
#: A guard of Litestar that awaits. Litestar would run one that does not in a thread.
AsyncGuard: TypeAlias = Callable[[AnyConnection, BaseRouteHandler], Awaitable[None]]

_KEY: Final = "headwater.request_id"
_CLAIMED: Final = "headwater.claimed_request_id"
_CODE: Final = "headwater.problem_code"
#: Key of the app's state under which the source of request ids is stored.
STATE_NAME: Final = "new_request_id"


def request_id_of(scope: Scope) -> str:
    """Return the request's id: the caller's if it is valid, else a new one.

    Every call for a scope returns the same id.
    """
    # The scope is a plain dict to which servers and frameworks add keys that its type lacks.
    state = cast("dict[str, Any]", scope)
    if _KEY not in state:
        new = state["litestar_app"].state[STATE_NAME]
        keep_request_id(scope, _offered_id(scope) or new())
    return str(state[_KEY])


def _offered_id(scope: Scope) -> str | None:
    """Return the id that the caller has chosen, if it is valid."""
    offered = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
    return usable(offered)


def own_request_id(scope: Scope) -> str:
    """Return an id that the gateway chose, and use it for the request from now on.

    Records about an unauthenticated caller, or one of many users, get an id of the gateway, because
    the caller could choose the id of another client's request.
    """
    state = cast("dict[str, Any]", scope)
    if _CLAIMED not in state:
        state[_CLAIMED] = _offered_id(scope) or ""
        if state[_CLAIMED]:
            keep_request_id(scope, state["litestar_app"].state[STATE_NAME]())
    return request_id_of(scope)


def claimed_request_id(scope: Scope) -> str:
    """Return the caller's id if the gateway replaced it; else ""."""
    return str(cast("dict[str, Any]", scope).get(_CLAIMED, ""))


def keep_request_id(scope: Scope, request_id: str) -> None:
    """Store the id of a request, also for its log lines: the server has a task for each request."""
    cast("dict[str, Any]", scope)[_KEY] = request_id
    set_log_fields(request_id=request_id)


# -- trace context

#: Headers of W3C Trace Context in a scope.
_PARENT: Final = TRACEPARENT.encode()
TRACE_HEADERS: Final = frozenset({_PARENT, TRACESTATE.encode()})


def trace_text(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the trace context of a request's headers as text; empty without a valid one."""
    parents: list[str] = []
    states: list[str] = []
    for name, value in headers:
        if name in TRACE_HEADERS:
            values = parents if name == _PARENT else states
            # Latin-1 decodes any bytes; other characters than ASCII are invalid there.
            values.append(value.decode("latin-1"))
    context = context_of_headers(parents, states) if parents else None
    return "" if context is None else context.text


def request_trace(scope: Scope) -> TraceContext | None:
    """Return the trace context of a request, which becomes the current one of its task."""
    context = context_of(trace_text(scope["headers"]))
    if context is not None:
        CURRENT.set(lambda: context)
    return context


# -- problem


def problem_code_of(scope: Scope) -> str | None:
    """Return the code of the problem that a request was answered with, if any."""
    return cast("dict[str, Any]", scope).get(_CODE)


def keep_problem_code(scope: Scope, code: str) -> None:
    """Store the code of the problem that is about to be sent."""
    cast("dict[str, Any]", scope)[_CODE] = code


# -- path segments

#: Represents a slash within a segment while Litestar splits the path. It is a lone surrogate, which
#: no decoded path contains.
_SLASH: Final = "\udc2f"
_ESCAPED: Final = "%2F"
#: Paths that end with the token of a hook, which is a permission.
_HOOK: Final = "/v1/hooks/"


def split_as_sent(scope: Scope) -> Scope:
    """Return the scope with the segments of the raw path as its path.

    `/admin/user/a%2Fb` is about the user `a/b`. Servers decode the whole path, so that this slash
    looks like a separator. So the raw path is split first, and then decoded.
    """
    if b"%2" not in scope["raw_path"]:
        return scope
    path = "/".join(part.replace("/", _SLASH) for part in sent_segments(scope))
    return cast("Scope", {**scope, "path": path})


def sent_segments(scope: Scope) -> list[str]:
    """Return the segments of the raw path, decoded."""
    sent = scope["raw_path"].partition(b"?")[0].decode("latin-1")
    return [unquote(part) for part in sent.split("/")]


def whole_parameters(app: ASGIApp) -> ASGIApp:
    """Middleware that restores slashes in path parameters for handlers."""

    async def restored(scope: Scope, receive: Receive, send: Send) -> None:
        if _SLASH in scope["path"]:
            # Litestar caches this mapping, so it is copied. Some parameters are numbers.
            params = cast("dict[str, object]", scope["path_params"])
            decoded = {
                name: decode_segment(value) if isinstance(value, str) else value
                for name, value in params.items()
            }
            scope["path_params"] = cast("dict[str, str]", decoded)
        await app(scope, receive, send)

    return restored


def decode_segment(segment: str) -> str:
    """Restore the slashes in a segment of a scope's path."""
    return segment.replace(_SLASH, "/")


def logged_path(path: str) -> str:
    """Return the path of a scope for logs: as displayed, without the token of a hook."""
    shown = displayable_path(path)
    return _HOOK + "(token)" if shown.startswith(_HOOK) else shown


def displayable_path(path: str) -> str:
    """Return the path of a scope with escaped slashes, for logs and responses."""
    return path.replace(_SLASH, _ESCAPED)


# -- client address

Network: TypeAlias = IPv4Network | IPv6Network

_FORWARDED: Final = b"x-forwarded-for"
_NETWORK_BITS: Final = 64
#: Size of the cache of parsed addresses.
_CACHED: Final = 4096
#: The peer of a request over a transport without addresses.
_UNKNOWN: Final = "unknown"


class _Address(NamedTuple):
    peer: str
    trusted: bool


def peer_resolver(proxies: Iterable[Network]) -> Callable[[Scope], str]:
    """Return a function that determines the client address of a request.

    Limits apply per address, and refusals name it. A client is one IPv4 address or one IPv6 /64.

    The function returns the address of the connection. If that is a trusted proxy, it returns the
    last address in X-Forwarded-For that is not a trusted proxy. The header is ignored on
    connections from other addresses.

    Args:
        proxies: Networks of trusted proxies.
    """
    parse = lru_cache(_CACHED)(partial(_parse, tuple(proxies)))

    def peer_of(scope: Scope) -> str:
        client = scope.get("client")
        address = parse(client[0]) if client else None
        if address is None:
            return _UNKNOWN
        if not address.trusted:
            return address.peer
        for text in reversed(_forwarded(scope)):
            previous = parse(text.strip())
            address = previous or address
            if previous is None or not address.trusted:
                break
        return address.peer

    return peer_of


def _parse(proxies: tuple[Network, ...], text: str) -> _Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    trusted = any(address in network for network in proxies)
    if isinstance(address, IPv6Address) and not address.is_loopback:
        return _Address(str(IPv6Network((address, _NETWORK_BITS), strict=False)), trusted)
    return _Address(str(address), trusted)


def _forwarded(scope: Scope) -> list[str]:
    values = [value for name, value in scope["headers"] if name == _FORWARDED]
    return b",".join(values).decode("latin-1").split(",")
