"""Monitoring of the gateway: metrics for Prometheus, and routes for liveness and readiness."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
from litestar import MediaType, Request, Response, Router, get
from litestar.openapi import ResponseSpec
from prometheus_client import generate_latest

from headwater.gateway.api.group_metrics import Counts, MetricsFolder, WithOthers
from headwater.gateway.api.key_ring import KeyRing
from headwater.monitoring.catalog import KAFKA_CONNECTED, READY
from headwater.monitoring.exposition import PROCESS_METRICS, Collected, Joined, render
from headwater.monitoring.metrics import Counter, Histogram, Metric
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.errors import StoreUnavailable
from headwater.streams.pipeline.webhook_log import WebhookLog

#: Seconds. An acknowledged append takes 1.5 to 3 ms here; 5 s is the default time limit.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Metrics of one gateway since it started."""

    def __init__(self) -> None:
        self._received = Counter(
            "headwater_webhook_received",
            "Deliveries by source and response.",
            ("source", "outcome"),
        )
        self._refused = Counter(
            "headwater_webhook_verify_failures",
            "Deliveries with an invalid signature, by reason.",
            ("source", "reason"),
        )
        self._suppressed = Counter(
            "headwater_dedupe_suppressed",
            "Duplicate deliveries that the gateway did not append.",
            ("source",),
        )
        self._append_seconds = Histogram(
            "headwater_webhook_append_seconds",
            "Seconds from append to Kafka's acknowledgement.",
            bounds=_BUCKETS,
        )
        self._loop_late = Histogram(
            "headwater_event_loop_late_seconds",
            "How late the event loop ran a timer, ten times a second.",
            bounds=_BUCKETS,
        )
        self._loop_blocked = Counter(
            "headwater_event_loop_blocked",
            "How often the event loop was blocked for a quarter of a second or longer.",
        )
        self._audited = Counter(
            "headwater_audit_entries",
            "Audit entries by result; lost if the entry could not be stored.",
            ("result",),
        )
        self._unaudited = Counter(
            "headwater_unaudited_requests",
            "Requests for an audited action without a valid key, which get no audit entry.",
            ("action",),
        )
        # They exist before the first measurement.
        self._append_seconds.observe(0, count=0)
        self._loop_late.observe(0, count=0)
        self._loop_blocked.add(amount=0)
        self._collected = Joined((Collected(self.own()), PROCESS_METRICS))

    def own(self) -> list[Metric]:
        """Return the metrics that only a gateway has."""
        return [metric for metric in vars(self).values() if isinstance(metric, Metric)]

    def answered(self, source: str, outcome: str) -> None:
        """Count a delivery by its outcome: accepted, duplicate, handshake, or a problem's code."""
        self._received.add((source, outcome))

    def refused(self, source: str, reason: str) -> None:
        """Count a delivery with an invalid signature, by reason."""
        self._refused.add((source, reason))

    def suppressed(self, source: str) -> None:
        """Count a duplicate that was not appended."""
        self._suppressed.add((source,))

    def appended(self, seconds: float, trace_id: str = "") -> None:
        """Count an append and the time until its acknowledgment, with the trace of the delivery."""
        self._append_seconds.observe(seconds, trace_id=trace_id)

    def loop_late(self, seconds: float) -> None:
        """Count how late the event loop ran a timer."""
        self._loop_late.observe(seconds)

    def loop_blocked(self) -> None:
        """Count a blocked event loop."""
        self._loop_blocked.add()

    def audited(self, result: str) -> None:
        """Count an audit entry by result: attempted, success, failure or lost."""
        self._audited.add((result,))

    def unaudited(self, action: str) -> None:
        """Count a request for an audited action without a valid key."""
        self._unaudited.add((action,))

    def render(
        self, ready: bool, others: Counts | None = None, accept: str = ""
    ) -> tuple[bytes, str]:
        """Render all metrics in Prometheus' text format, or as OpenMetrics; with its media type.

        Args:
            ready: Whether Kafka is connected.
            others: Counts of the other processes of this gateway, which are added.
            accept: Formats that the monitor accepts, as its header Accept.
        """
        READY.set(ready)
        KAFKA_CONNECTED.set(ready)
        return render(accept, WithOthers(self._collected, others or {}))

    def render_own(self) -> bytes:
        """Render the metrics of this process, for the other processes of this gateway."""
        return generate_latest(self._collected)


# -- routes

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


def health_routes(
    log: WebhookLog,
    reader: PooledReader,
    metrics: Metrics,
    folder: MetricsFolder | None,
    measure: Callable[[], Awaitable[None]],
    keys: KeyRing,
) -> Router:
    """Return the monitoring routes; they need no key.

    Args:
        log: Reports whether Kafka is connected.
        reader: A Postgres reader with its own connections, so that these unauthenticated routes
            never delay authenticated ones.
        metrics: Rendered by `/metrics`.
        folder: Has the metrics of the other processes of this gateway, if there are any.
        measure: Sets the metrics of the whole system within seconds.
        keys: Reports whether the API keys were read.
    """
    postgres = CachedQuery(lambda: _answers(reader))
    others = CachedQuery(lambda: _others(folder))

    @get("/health/live", summary="Check that the process responds")
    async def live() -> Liveness:
        return Liveness(alive=True)

    @get(
        "/health/ready",
        summary="Check that deliveries are accepted",
        description="503 while Kafka is not connected. Postgres is reported as of a few seconds "
        "ago, and does not affect readiness: without it deliveries are accepted, only reads fail. "
        "Nor do the API keys, which are read from Kafka: deliveries need none.",
        responses={503: ResponseSpec(Readiness, False, "Kafka is not connected.")},
    )
    async def ready() -> Response[Readiness]:
        parts = {
            "kafka": "ok" if log.ready else "not connected",
            "postgres": "ok" if await postgres.get() else "not connected",
            "keys": keys.state,
        }
        return Response(Readiness(log.ready, parts), status_code=200 if log.ready else 503)

    @get(
        "/metrics",
        media_type=MediaType.TEXT,
        summary="Metrics for Prometheus",
        description="In Prometheus' text format, or as OpenMetrics with exemplars if the header "
        "Accept requests that. docs/metrics.md lists them.",
    )
    async def counters(request: Request[Any, Any, Any]) -> Response[bytes]:
        await measure()
        accept = request.headers.get("accept", "")
        body, media_type = metrics.render(log.ready, await others.get(), accept)
        # Litestar adds the charset to text types a second time.
        return Response(body, headers={"content-type": media_type})

    return Router("/", route_handlers=[live, ready, counters], tags=["watch"])


class CachedQuery(Generic[T]):
    """A query with a cached result, valid for `for_s` seconds and shared by all callers.

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


async def _others(folder: MetricsFolder | None) -> Counts:
    """Return the counts of the other processes of this gateway, read outside of the loop."""
    return await asyncio.to_thread(folder.others) if folder else {}
