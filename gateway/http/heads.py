"""HEAD is answered wherever GET is: by the same head, without a body (RFC 9110, 9.3.2).

GET's handler answers it, so there is nothing to declare for a route, and no other request is
looked at.
"""

import asyncio
from http import HTTPMethod
from typing import Any, cast

from litestar.types import ASGIApp, Message, Receive, Scope, Send


async def answer_head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers HEAD by what the app would answer to GET."""
    sent = asyncio.Event()

    async def head_alone(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            sent.set()

    asked = False

    async def gone_then() -> Any:  # noqa: ANN401 (what ASGI says)
        # A stream ends when its reader goes, and one of heads has all that it wanted.
        nonlocal asked
        if not asked:
            asked = True
            return await receive()
        await sent.wait()
        return {"type": "http.disconnect"}

    await app(cast("Scope", {**scope, "method": HTTPMethod.GET.value}), gone_then, head_alone)


def naming_head(header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """A header of an answer; where it names methods, HEAD beside GET."""
    name, value = header
    if name.lower() != b"allow":
        return header
    methods = value.decode().split(", ")
    also = [] if HTTPMethod.HEAD in methods or HTTPMethod.GET not in methods else ["HEAD"]
    return name, ", ".join(sorted([*methods, *also])).encode()
