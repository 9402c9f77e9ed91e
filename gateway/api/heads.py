"""Answer HEAD on every route with GET: the same headers, no body (RFC 9110, 9.3.2).

The handler of GET answers it, so routes declare nothing.
"""

import asyncio
from http import HTTPMethod
from typing import Any, cast

from litestar.types import ASGIApp, Message, Receive, Scope, Send


async def answer_head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a HEAD request with the headers of the app's response to GET."""
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
