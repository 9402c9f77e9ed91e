"""Is it alive, is it ready, and what has it counted."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec
from litestar import Response, Router, get
from litestar.openapi import ResponseSpec

from headwater.gateway.http.metrics import MEDIA_TYPE, Metrics
from headwater.gateway.http.ports import DeliveryLog
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.errors import StoreUnavailable

#: Whoever asks wants to know soon; a part that needs longer is as good as away.
_ANSWER_WITHIN_S: Final = 1.0
#: For how long a result is remembered; monitors ask every 5 to 30 s.
REMEMBERED_S: Final = 5.0

T = TypeVar("T")


class Liveness(msgspec.Struct, frozen=True):
    """The process answers."""

    alive: bool


class Readiness(msgspec.Struct, frozen=True):
    """Whether deliveries are taken, and the state of each part behind the gateway."""

    ready: bool
    parts: dict[str, str]


def health_routes(log: DeliveryLog, reader: PooledReader, metrics: Metrics) -> Router:
    """The routes that monitors ask, without a key.

    Args:
        log: Says whether Kafka is connected.
        reader: Has connections of its own: no request for a key may wait for these routes.
        metrics: What `/metrics` renders.
    """
    postgres = Remembered(lambda: _answers(reader))
    slots = Remembered(lambda: _slots(Workflows(reader)))

    @get("/health/live", summary="Does the process answer")
    async def live() -> Liveness:
        return Liveness(alive=True)

    @get(
        "/health/ready",
        summary="Are deliveries taken",
        description="503 while Kafka is away. Postgres is reported, as of some seconds ago, and "
        "does not count: without it deliveries are taken all the same, only reads fail.",
        responses={503: ResponseSpec(Readiness, False, "Kafka is away.")},
    )
    async def ready() -> Response[Readiness]:
        parts = {
            "kafka": "ok" if log.ready else "not connected",
            "postgres": "ok" if await postgres.get() else "not connected",
        }
        return Response(Readiness(log.ready, parts), status_code=200 if log.ready else 503)

    @get("/metrics", media_type=MEDIA_TYPE, summary="Counters in Prometheus' text format")
    async def counters() -> bytes:
        return metrics.render(log.ready, await slots.get())

    return Router("/", route_handlers=[live, ready, counters], tags=["watch"])


class Remembered(Generic[T]):
    """The result of a query, kept for `for_s` seconds. One query at a time serves all callers.

    The routes ask for no key, so asking often must cost no queries.
    """

    def __init__(self, query: Callable[[], Awaitable[T]], *, for_s: float = REMEMBERED_S) -> None:
        self._query = query
        self._for_s = for_s
        self._running: asyncio.Task[T] | None = None
        self._until_s = 0.0

    async def get(self) -> T:
        """Return a result that is no older than that."""
        loop = asyncio.get_running_loop()
        if self._running is None or (self._running.done() and loop.time() >= self._until_s):
            self._until_s = loop.time() + self._for_s
            self._running = asyncio.ensure_future(self._query())
        # A caller that goes away must not cancel what the others wait for.
        return await asyncio.shield(self._running)


async def _answers(reader: PooledReader) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S), reader.connection() as connection:
            await connection.execute("select 1")
    except (StoreUnavailable, TimeoutError):
        return False
    return True


async def _slots(workflows: Workflows) -> Mapping[str, tuple[int, int]]:
    """How many have a slot and how many wait, by workflow; none while Postgres is away."""
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            return await workflows.slots()
    except (StoreUnavailable, TimeoutError):
        return {}
