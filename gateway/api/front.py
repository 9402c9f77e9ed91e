"""The outermost ASGI application: checks the Host header and routes deliveries."""

from collections.abc import Callable, Mapping
from http import HTTPMethod
from typing import Final

from litestar import Litestar
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from headwater.gateway.api.heads import allow_head, answer_head
from headwater.gateway.api.pages import SECURITY_HEADERS
from headwater.gateway.api.problems import MEDIA_TYPE, document
from headwater.gateway.api.request_scope import STATE_NAME, request_id_of
from headwater.gateway.api.segments import split_as_sent

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
        elif not host_known(scope):
            await _refuse_host(scope, send, app.state[STATE_NAME])
        elif scope["method"] == HTTPMethod.HEAD:
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
    """Add the request id and the security headers to a response."""
    if message["type"] != "http.response.start" or scope["type"] != ScopeType.HTTP:
        return
    headers = list(message.get("headers", []))
    if message["status"] in _WITH_ALLOW:
        headers = [allow_head(header) for header in headers]
    if all(name.lower() != b"x-request-id" for name, _ in headers):
        headers.append((b"x-request-id", request_id_of(scope).encode()))
    # A page may set its own policy. Browsers would enforce both.
    present = {name.lower() for name, _ in headers}
    message["headers"] = [*headers, *(header for header in _SECURITY if header[0] not in present)]
