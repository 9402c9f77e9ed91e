"""Is it alive, is it ready, and what has it counted."""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from litestar import Response, Router, get
from litestar.openapi import ResponseSpec

from headwater.gateway.http.metrics import MEDIA_TYPE, Metrics
from headwater.gateway.http.ports import DeliveryLog
from headwater.projections.deliveries.queries import Reader
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.errors import StoreUnavailable

#: Whoever asks wants to know soon; a part that needs longer is as good as away.
_ANSWER_WITHIN_S: Final = 1.0
_LOOK_EVERY_S: Final = 5.0


class Liveness(msgspec.Struct, frozen=True):
    """The process answers."""

    alive: bool


class Readiness(msgspec.Struct, frozen=True):
    """Whether deliveries are taken, and the state of each part behind the gateway."""

    ready: bool
    parts: dict[str, str]


def health_routes(log: DeliveryLog, reader: Reader, metrics: Metrics) -> Router:
    """The routes that monitors ask."""

    @get("/health/live", summary="Does the process answer")
    async def live() -> Liveness:
        return Liveness(alive=True)

    @get(
        "/health/ready",
        summary="Are deliveries taken",
        description="503 while Kafka is away. Postgres is reported and does not count: without it "
        "deliveries are taken all the same, only reads fail.",
        responses={503: ResponseSpec(Readiness, False, "Kafka is away.")},
    )
    async def ready() -> Response[Readiness]:
        parts = {
            "kafka": "ok" if log.ready else "not connected",
            "postgres": "ok" if await _answers(reader) else "not connected",
        }
        return Response(Readiness(log.ready, parts), status_code=200 if log.ready else 503)

    slots = _Slots(Workflows(reader))

    @get("/metrics", media_type=MEDIA_TYPE, summary="Counters in Prometheus' text format")
    async def counters() -> bytes:
        return metrics.render(log.ready, await slots.look())

    return Router("/", route_handlers=[live, ready, counters], tags=["watch"])


async def _answers(reader: Reader) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S), reader.connection() as connection:
            await connection.execute("select 1")
    except (StoreUnavailable, TimeoutError):
        return False
    return True


class _Slots:
    """Those of limits of concurrency, as Postgres had them some seconds ago at most.

    Nobody needs a key to ask for metrics, so asking often must cost no queries.
    """

    def __init__(self, workflows: Workflows) -> None:
        self._workflows = workflows
        self._known: Mapping[str, tuple[int, int]] = {}
        self._again_at_s = 0.0

    async def look(self) -> Mapping[str, tuple[int, int]]:
        """How many have one and how many wait, by workflow; none while Postgres is away."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._again_at_s:
            self._again_at_s = now_s + _LOOK_EVERY_S
            try:
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    self._known = await self._workflows.slots()
            except (StoreUnavailable, TimeoutError):
                self._known = {}
        return self._known
