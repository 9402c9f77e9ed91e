"""The two minimal servers that the gateway is compared with; both use the gateway's HTTP server.

`python -m benchmarks.servers nothing PORT` answers 200 and does nothing else: the ceiling.
`python -m benchmarks.servers bare PORT BOOTSTRAP SECRET` verifies Terra's signature with the
standard library, appends the body to a topic with aiokafka (`acks=all`, idempotent), and answers.
"""

import hmac
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import uvloop
from aiokafka import AIOKafkaProducer
from litestar import Litestar, asgi
from litestar.datastructures import State
from litestar.types import ASGIApp, Receive, Scope, Send

from headwater.gateway.api.front import front_of
from headwater.gateway.api.listening import listen
from headwater.gateway.api.server import serve

PATH: Final = "/webhooks/terra"
TOPIC: Final = "bench-bare"

_HEADERS: Final = [(b"content-type", b"application/json"), (b"content-length", b"11")]
_OK: Final = b'{"ok":true}'
_TOLERANCE_S: Final = 300


async def _answer(send: Send, status: Any = 200) -> None:  # noqa: ANN401 (Litestar's own type)
    await send({"type": "http.response.start", "status": status, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _OK, "more_body": False})


async def nothing(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer 200."""
    await _answer(send)


class Bare:
    """Verify and produce."""

    def __init__(self, bootstrap: str, secret: str) -> None:
        self._secret = secret.encode()
        self._bootstrap = bootstrap
        self._producer: AIOKafkaProducer | None = None

    @asynccontextmanager
    async def connected(self, _app: Litestar) -> AsyncIterator[None]:
        """Connect while the server runs."""
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True
        )
        await self._producer.start()
        try:
            yield
        finally:
            await self._producer.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        message: Any = await receive()
        body: bytes = message["body"]
        signature, length = b"", 0
        for name, value in scope["headers"]:
            if name == b"terra-signature":
                signature = value
            elif name == b"content-length":
                length = int(value)
        # As in the gateway: the server announces more even after the last byte.
        while len(body) < length:
            message = await receive()
            body += message["body"]
        if not self._signed(signature, body):
            await _answer(send, 401)
            return
        assert self._producer is not None
        await self._producer.send_and_wait(TOPIC, body)
        await _answer(send)

    def _signed(self, signature: bytes, body: bytes) -> bool:
        pairs = dict(part.split(b"=", 1) for part in signature.split(b","))
        if abs(time.time() - int(pairs[b"t"])) > _TOLERANCE_S:
            return False
        expected = hmac.digest(self._secret, pairs[b"t"] + b"." + body, "sha256").hex()
        return hmac.compare_digest(expected.encode(), pairs[b"v1"])


def _app(
    answer: ASGIApp,
    *lifespan: Callable[[Litestar], AbstractAsyncContextManager[None]],
) -> Litestar:
    @asgi(PATH, copy_scope=False)
    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(scope, receive, send)

    # The gateway's server bypasses Litestar's routing for these paths, as for its own route.
    state = State({"receivers": {PATH: answer}, "host_known": lambda _: True})
    return Litestar(
        [route], lifespan=list(lifespan), state=state, openapi_config=None, logging_config=None
    )


def _main(kind: str, port: str, *rest: str) -> None:
    if kind == "nothing":
        app = _app(nothing)
    else:
        bare = Bare(*rest)
        app = _app(bare, bare.connected)
    uvloop.run(serve(front_of(app), listen("127.0.0.1", int(port)), end_streams=lambda: None))


if __name__ == "__main__":
    _main(*sys.argv[1:])
