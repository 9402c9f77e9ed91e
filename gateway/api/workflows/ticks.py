"""Ticks: requests that drive workers started with --tick, and the server in such a worker."""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import httpx2
import msgspec
from litestar import Litestar, Response, post
from litestar.datastructures import State

from headwater.gateway.api.listening import listen
from headwater.gateway.api.problems import HANDLERS, Problem
from headwater.gateway.api.request_scope import STATE_NAME, AnyRequest
from headwater.gateway.api.server import server_of
from headwater.gateway.api.workflows import bodies
from headwater.gateway.api.workflows.bodies import Tick, WorkerTick
from headwater.schemas.answers import Ticked, WorkerTicked
from headwater.schemas.errors import PARSE_ERRORS, ProcessUnavailable
from headwater.streams.workflows.manual_ticks import TickResult

#: Seconds that a tick waits for a worker, which continues if it needs longer.
_TIMEOUT_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 2.0


class Ticks:
    """Sends ticks to workers. Concurrent ticks are safe: a worker handles one at a time."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = deque(urls)
        self._http: httpx2.AsyncClient | None = None

    async def start(self) -> None:
        """Create the HTTP client; the workers need not be running."""
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S), trust_env=False
        )

    async def stop(self) -> None:
        """Close the HTTP client."""
        if self._http is not None:
            await self._http.aclose()

    def require(self) -> None:
        """Refuse ticks when they are disabled.

        Raises:
            Problem: They are disabled.
        """
        if not self._urls:
            raise Problem(
                "tick_disabled",
                "Ticks are off. To enable them, start a worker with --tick, set HEADWATER_TICK_URL "
                "to its address and HEADWATER_TICK_KEY to a key of your own.",
            )

    async def tick(self, request: Tick) -> Ticked:
        """Make the workers execute what is due.

        Limits of the request apply to all workers together. Without limits the workers are called
        at the same time. With limits they are called one after the other, with what is left,
        and every tick begins with another worker.

        Raises:
            Problem: No worker listens, or a worker did not return a result. Without limits all
                workers were called all the same; with limits none after that one.
        """
        self._urls.rotate(-1)
        results: list[WorkerTicked | Problem | None]
        if request.max_instances is None and request.max_steps is None:
            results = await asyncio.gather(*(self._tick_worker(url, request) for url in self._urls))
        else:
            results = await self._tick_in_turn(request)
        problems = [result for result in results if isinstance(result, Problem)]
        if problems:
            raise problems[0]
        done = [result for result in results if isinstance(result, WorkerTicked)]
        if not done and any(result is None for result in results):
            raise _unavailable(", ".join(self._urls), "no worker")
        return Ticked(processed=sum(result.processed for result in done))

    async def _tick_in_turn(self, request: Tick) -> list[WorkerTicked | Problem | None]:
        results: list[WorkerTicked | Problem | None] = []
        instances, steps = request.max_instances, request.max_steps
        # All workers continue their instances before any of them begins new ones.
        for continuing in (True, False) if len(self._urls) > 1 else (False,):
            for url in self._urls:
                if 0 in (instances, steps):
                    return results
                remaining = WorkerTick(
                    max_instances=instances, max_steps=steps, continuing=continuing
                )
                result = await self._tick_worker(url, remaining)
                results.append(result)
                if isinstance(result, Problem):
                    return results  # What is left of the limits is unknown.
                if result is not None:
                    instances = _subtract(instances, result.processed)
                    steps = _subtract(steps, result.steps)
        return results

    async def _tick_worker(self, url: str, request: Tick) -> WorkerTicked | Problem | None:
        """Call one worker; return None if none listens at the URL."""
        assert self._http is not None  # noqa: S101 (the application started it)
        try:
            response = await self._http.post(url, content=msgspec.json.encode(request))
            response.raise_for_status()
            return msgspec.json.decode(response.content, type=WorkerTicked)
        except httpx2.ConnectError:
            return None
        except (httpx2.HTTPError, *PARSE_ERRORS) as error:
            return _unavailable(url, str(error) or type(error).__name__)


def _subtract(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)


def _unavailable(url: str, error: str) -> Problem:
    return Problem(
        "worker_unavailable",
        f"expected the worker at {url} to return how much it did, found {error}; it may continue "
        "what it began",
    )


# -- server in a worker, on loopback

#: Executes what is due in a worker, of at most some instances and steps; see `ManualTicks.tick`.
_Tick: TypeAlias = Callable[[int | None, int | None, bool], Awaitable[TickResult]]


@asynccontextmanager
async def serve_ticks(
    urls: Sequence[str], tick: _Tick, new_id: Callable[[], str]
) -> AsyncIterator[None]:
    """Serve ticks while the context is open.

    Args:
        urls: Addresses such as http://127.0.0.1:8090; the first one with a free port is used.
        tick: Executes a tick.
        new_id: Returns ids for requests.

    Raises:
        ProcessUnavailable: All ports are in use.
    """
    server = server_of(tick_app(tick, new_id), _first_free(urls))
    serving = asyncio.ensure_future(server.serve())
    try:
        yield
    finally:
        server.stop()  # type: ignore[no-untyped-call]
        await serving


def _first_free(urls: Sequence[str]) -> socket.socket:
    *candidates, last = [urlsplit(url) for url in urls]
    for candidate in candidates:
        with suppress(ProcessUnavailable):
            return listen(candidate.hostname or "", candidate.port or 80)
    return listen(last.hostname or "", last.port or 80)


def tick_app(tick: _Tick, new_id: Callable[[], str]) -> Litestar:
    """Return the application: POST / with `{maxInstances?, maxSteps?}` returns `{processed}`."""

    @post("/", status_code=200)
    async def run_ready(request: AnyRequest) -> Response[bytes]:
        limits = bodies.read(bodies.WorkerTick, await request.body())
        done = await tick(limits.max_instances, limits.max_steps, limits.continuing)
        body = msgspec.json.encode(WorkerTicked(processed=done.processed, steps=done.steps))
        return Response(body, media_type="application/json")

    return Litestar(
        [run_ready],
        exception_handlers=HANDLERS,
        logging_config=None,
        openapi_config=None,
        state=State({STATE_NAME: new_id}),
    )
