"""Where a worker that was started with --tick is told to: one route, on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from litestar import Litestar, Request, Response, post
from litestar.datastructures import State

from headwater.gateway.http.problems import HANDLERS
from headwater.gateway.http.request_scope import STATE_NAME
from headwater.gateway.http.server import listener, refuse_taken_port
from headwater.gateway.workflows import bodies
from headwater.schemas.answers import Ticked

#: Gives how many instances were given out, of at most so many, with about so many steps.
Tick: TypeAlias = Callable[[int | None, int | None], Awaitable[int]]


@asynccontextmanager
async def ticks_heard(url: str, tick: Tick, new_id: Callable[[], str]) -> AsyncIterator[None]:
    """Listens for ticks.

    Shape:  a URL such as http://127.0.0.1:8090.
    Errors: PartUnavailable when the address is taken.
    """
    place = urlsplit(url)
    host, port = place.hostname or "", place.port or 80
    refuse_taken_port(host, port)
    server = listener(tick_app(tick, new_id), host=host, port=port)
    serving = asyncio.ensure_future(server.serve())
    try:
        yield
    finally:
        server.stop()  # type: ignore[no-untyped-call]
        await serving


def tick_app(tick: Tick, new_id: Callable[[], str]) -> Litestar:
    """The application: POST / with `{maxInstances?, maxSteps?}` answers `{processed}`."""

    @post("/", status_code=200)
    async def run_ready(request: Request[Any, Any, Any]) -> Response[bytes]:
        asked = bodies.read(bodies.Tick, await request.body())
        processed = await tick(asked.max_instances, asked.max_steps)
        body = msgspec.json.encode(Ticked(processed=processed))
        return Response(body, media_type="application/json")

    return Litestar(
        [run_ready],
        exception_handlers=HANDLERS,
        logging_config=None,
        openapi_config=None,
        state=State({STATE_NAME: new_id}),
    )
