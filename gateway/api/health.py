"""Routes for monitoring: liveness, readiness and metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec
from litestar import Response, Router, get
from litestar.openapi import ResponseSpec

from headwater.gateway.api.metrics import MEDIA_TYPE, Metrics
from headwater.gateway.api.ports import DeliveryLog
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.errors import StoreUnavailable

#: Timeout of a check: a component that needs longer is reported as not connected.
_ANSWER_WITHIN_S: Final = 1.0
#: Seconds for which a result is cached; monitors poll every 5 to 30 s.
CACHED_S: Final = 5.0

T = TypeVar("T")


class Liveness(msgspec.Struct, frozen=True):
    """Liveness of the process."""

    alive: bool


class Readiness(msgspec.Struct, frozen=True):
    """Whether deliveries are accepted, and the state of Kafka and Postgres."""

    ready: bool
    parts: dict[str, str]


def health_routes(log: DeliveryLog, reader: PooledReader, metrics: Metrics) -> Router:
    """Return the monitoring routes; they need no key.

    Args:
        log: Reports whether Kafka is connected.
        reader: A Postgres reader with its own connections, so that these unauthenticated routes
            never delay authenticated ones.
        metrics: Rendered by `/metrics`.
    """
    postgres = CachedQuery(lambda: _answers(reader))
    slots = CachedQuery(lambda: _slots(Workflows(reader)))

    @get("/health/live", summary="Check that the process responds")
    async def live() -> Liveness:
        return Liveness(alive=True)

    @get(
        "/health/ready",
        summary="Check that deliveries are accepted",
        description="503 while Kafka is not connected. Postgres is reported as of a few seconds "
        "ago, and does not affect readiness: without it deliveries are accepted, only reads fail.",
        responses={503: ResponseSpec(Readiness, False, "Kafka is not connected.")},
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


class CachedQuery(Generic[T]):
    """A query whose result is cached for `for_s` seconds and shared by all callers.

    The routes need no key, so frequent requests must not cause frequent queries.
    """

    def __init__(self, query: Callable[[], Awaitable[T]], *, for_s: float = CACHED_S) -> None:
        self._query = query
        self._for_s = for_s
        self._running: asyncio.Task[T] | None = None
        self._until_s = 0.0

    async def get(self) -> T:
        """Return a result that is no older than `for_s` seconds."""
        loop = asyncio.get_running_loop()
        if self._running is None or (self._running.done() and loop.time() >= self._until_s):
            self._until_s = loop.time() + self._for_s
            self._running = asyncio.ensure_future(self._query())
        # A cancelled caller must not cancel the query of the others.
        return await asyncio.shield(self._running)


async def _answers(reader: PooledReader) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S), reader.connection() as connection:
            await connection.execute("select 1")
    except (StoreUnavailable, TimeoutError):
        return False
    return True


async def _slots(workflows: Workflows) -> Mapping[str, tuple[int, int]]:
    """Return runs with a slot and waiting runs by workflow; empty while Postgres is down."""
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            return await workflows.slots()
    except (StoreUnavailable, TimeoutError):
        return {}
