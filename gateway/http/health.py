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

    workflows = Workflows(reader)

    @get("/metrics", media_type=MEDIA_TYPE, summary="Counters in Prometheus' text format")
    async def counters() -> bytes:
        return metrics.render(log.ready, await _slots(workflows))

    return Router("/", route_handlers=[live, ready, counters], tags=["watch"])


async def _answers(reader: Reader) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S), reader.connection() as connection:
            await connection.execute("select 1")
    except (StoreUnavailable, TimeoutError):
        return False
    return True


async def _slots(workflows: Workflows) -> Mapping[str, tuple[int, int]]:
    """Those of limits of concurrency; none while Postgres does not answer."""
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            return await workflows.slots()
    except (StoreUnavailable, TimeoutError):
        return {}
