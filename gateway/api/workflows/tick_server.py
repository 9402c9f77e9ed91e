"""HTTP server in a worker started with --tick: one route, on loopback, that receives ticks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from litestar import Litestar, Response, post
from litestar.datastructures import State

from headwater.gateway.api.problems import HANDLERS
from headwater.gateway.api.request_scope import STATE_NAME, AnyRequest
from headwater.gateway.api.server import listener, refuse_taken_port
from headwater.gateway.api.workflows import bodies
from headwater.schemas.answers import WorkerTicked
from headwater.schemas.errors import ProcessUnavailable
from headwater.streams.workflows.manual_ticks import TickResult


class Tick(Protocol):
    """Executes what is due in a worker; see `WorkflowWorker.tick`."""

    def __call__(
        self, max_instances: int | None, max_steps: int | None, *, continuing: bool
    ) -> Awaitable[TickResult]:
        """Execute it."""


@asynccontextmanager
async def serve_ticks(
    urls: Sequence[str], tick: Tick, new_id: Callable[[], str]
) -> AsyncIterator[None]:
    """Serve ticks while the context is open.

    Args:
        urls: Addresses such as http://127.0.0.1:8090; the first one whose port is free is used.
        tick: Executes a tick.
        new_id: Returns ids for requests.

    Raises:
        PartUnavailable: All ports are in use.
    """
    host, port = _free_address(urls)
    server = listener(tick_app(tick, new_id), host=host, port=port)
    serving = asyncio.ensure_future(server.serve())
    try:
        yield
    finally:
        server.stop()  # type: ignore[no-untyped-call]
        await serving


def _free_address(urls: Sequence[str]) -> tuple[str, int]:
    *candidates, last = [urlsplit(url) for url in urls]
    for candidate in candidates:
        address = candidate.hostname or "", candidate.port or 80
        with suppress(ProcessUnavailable):
            refuse_taken_port(*address)
            return address
    address = last.hostname or "", last.port or 80
    refuse_taken_port(*address)
    return address


def tick_app(tick: Tick, new_id: Callable[[], str]) -> Litestar:
    """Return the application: POST / with `{maxInstances?, maxSteps?}` returns `{processed}`."""

    @post("/", status_code=200)
    async def run_ready(request: AnyRequest) -> Response[bytes]:
        limits = bodies.read(bodies.WorkerTick, await request.body())
        done = await tick(limits.max_instances, limits.max_steps, continuing=limits.continuing)
        body = msgspec.json.encode(WorkerTicked(processed=done.processed, steps=done.steps))
        return Response(body, media_type="application/json")

    return Litestar(
        [run_ready],
        exception_handlers=HANDLERS,
        logging_config=None,
        openapi_config=None,
        state=State({STATE_NAME: new_id}),
    )
