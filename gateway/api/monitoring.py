"""Monitoring of the gateway: metrics for Prometheus, and routes for liveness and readiness."""

import asyncio
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import accumulate
from typing import Final, Generic, TypeVar

import msgspec
from litestar import Response, Router, get
from litestar.openapi import ResponseSpec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from headwater.gateway.api.group_metrics import Counts, MetricsFolder, WithOthers
from headwater.gateway.api.key_ring import KeyRing
from headwater.projections.deliveries.quality import ConnectionStates
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.errors import StoreUnavailable
from headwater.streams.pipeline.webhook_log import WebhookLog

#: Litestar adds the charset to text types.
MEDIA_TYPE: Final = "text/plain; version=0.0.4"

#: Seconds. An acknowledged append takes 1.5 to 3 ms here; 5 s is the default time limit.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

# Otherwise every counter would have a second series with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]


class _Seconds(Collector):
    """A histogram of durations in seconds."""

    def __init__(self, name: str, documentation: str) -> None:
        self._description = name, documentation
        self._in_bucket = [0] * (len(_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self._in_bucket[bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    @override
    def collect(self) -> Iterator[HistogramMetricFamily]:
        bounds = [*map(str, _BUCKETS), "+Inf"]
        buckets = [*zip(bounds, accumulate(self._in_bucket), strict=True)]
        family = HistogramMetricFamily(*self._description)
        family.add_metric([], buckets, self._sum)
        yield family


class _Gauges:
    """Metrics of the system, read when a monitor asks for them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._slots = Gauge(
            "headwater_concurrency_runs",
            "Runs of workflows with a concurrency limit: running with a slot, or waiting.",
            ("workflow", "state"),
            registry=registry,
        )
        self._connections = Gauge(
            "headwater_connections",
            "Active connections by provider and state: receiving, silent or failing.",
            ("provider", "state"),
            registry=registry,
        )
        self._counted = Gauge(
            "headwater_connections_counted_timestamp_seconds",
            "When active connections were counted, in Unix seconds; 0 if they never were.",
            registry=registry,
        )
        self._connected = Gauge(
            "headwater_kafka_connected",
            "Whether the gateway is connected to Kafka.",
            registry=registry,
        )

    def set(
        self,
        ready: bool,
        slots: Mapping[str, tuple[int, int]],
        connections: ConnectionStates,
    ) -> None:
        """Replace all values; see `Metrics.render`."""
        self._connected.set(ready)
        self._slots.clear()
        for workflow, (running, waiting) in slots.items():
            self._slots.labels(workflow, "running").set(running)
            self._slots.labels(workflow, "waiting").set(waiting)
        self._connections.clear()
        for count in connections.connections:
            self._connections.labels(count.provider, count.state).set(count.connections)
        counted_at = connections.counted_at
        self._counted.set(0 if counted_at is None else counted_at.timestamp())


class Metrics:
    """Metrics of one gateway since it started.

    Deliveries are counted in plain integers on the event loop, and copied into Prometheus metrics
    on every scrape. The counters of the Prometheus client take locks, which costs ten times as
    much.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._received = Counter(
            "headwater_webhook_received_total",
            "Deliveries by source and response.",
            ("source", "outcome"),
            registry=self._registry,
        )
        #: Responses since the last scrape, by source and outcome.
        self._answered: Tally[tuple[str, str]] = Tally()
        self._refused = Counter(
            "headwater_webhook_verify_failures_total",
            "Deliveries with an invalid signature, by reason.",
            ("source", "reason"),
            registry=self._registry,
        )
        self._suppressed = Counter(
            "headwater_dedupe_suppressed_total",
            "Duplicate deliveries that the gateway did not append.",
            ("source",),
            registry=self._registry,
        )
        self._append_seconds = _Seconds(
            "headwater_webhook_append_seconds",
            "Seconds from append to Kafka's acknowledgement.",
        )
        self._registry.register(self._append_seconds)
        self._loop_late = _Seconds(
            "headwater_event_loop_late_seconds",
            "How late the event loop ran a timer, ten times a second.",
        )
        self._registry.register(self._loop_late)
        self._loop_blocked = Counter(
            "headwater_event_loop_blocked_total",
            "How often the event loop was blocked for a quarter of a second or longer.",
            registry=self._registry,
        )
        self._audited = Counter(
            "headwater_audit_entries_total",
            "Audit entries by result; lost if the entry could not be stored.",
            ("result",),
            registry=self._registry,
        )
        self._unaudited = Counter(
            "headwater_unaudited_requests_total",
            "Requests for an audited action without a valid key, which get no audit entry.",
            ("action",),
            registry=self._registry,
        )
        self._gauges = _Gauges(self._registry)

    def answered(self, source: str, outcome: str) -> None:
        """Count a delivery by its outcome: accepted, duplicate, handshake, or a problem's code."""
        self._answered[source, outcome] += 1

    def refused(self, source: str, reason: str) -> None:
        """Count a delivery with an invalid signature, by reason."""
        self._refused.labels(source, reason).inc()

    def suppressed(self, source: str) -> None:
        """Count a duplicate that was not appended."""
        self._suppressed.labels(source).inc()

    def appended(self, seconds: float) -> None:
        """Count an append and the time until its acknowledgment."""
        self._append_seconds.observe(seconds)

    def loop_late(self, seconds: float) -> None:
        """Count how late the event loop ran a timer."""
        self._loop_late.observe(seconds)

    def loop_blocked(self) -> None:
        """Count a blocked event loop."""
        self._loop_blocked.inc()

    def audited(self, result: str) -> None:
        """Count an audit entry by result: attempted, success, failure or lost."""
        self._audited.labels(result).inc()

    def unaudited(self, action: str) -> None:
        """Count a request for an audited action without a valid key."""
        self._unaudited.labels(action).inc()

    def render(
        self,
        ready: bool,
        slots: Mapping[str, tuple[int, int]],
        others: Counts | None = None,
        connections: ConnectionStates | None = None,
    ) -> bytes:
        """Render all metrics in Prometheus' text format.

        Args:
            ready: Whether Kafka is connected.
            slots: By workflow, runs with a slot and waiting runs.
            others: Counts of the other processes of this gateway, which are added.
            connections: Active connections by provider and state.
        """
        self._gauges.set(ready, slots, connections or ConnectionStates())
        self._count_answered()
        return generate_latest(WithOthers(self._registry, others or {}))

    def render_own(self) -> bytes:
        """Render the metrics of this process, for the other processes of this gateway."""
        self._count_answered()
        return generate_latest(self._registry)

    def _count_answered(self) -> None:
        for labels, count in self._answered.items():
            self._received.labels(*labels).inc(count)
        self._answered.clear()


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
    connections: Callable[[], Awaitable[ConnectionStates]],
    keys: KeyRing,
) -> Router:
    """Return the monitoring routes; they need no key.

    Args:
        log: Reports whether Kafka is connected.
        reader: A Postgres reader with its own connections, so that these unauthenticated routes
            never delay authenticated ones.
        metrics: Rendered by `/metrics`.
        folder: Has the metrics of the other processes of this gateway, if there are any.
        connections: Returns the latest states of connections within seconds.
        keys: Reports whether the API keys were read.
    """
    postgres = CachedQuery(lambda: _answers(reader))
    slots = CachedQuery(lambda: _slots(Workflows(reader)))
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

    @get("/metrics", media_type=MEDIA_TYPE, summary="Counters in Prometheus' text format")
    async def counters() -> bytes:
        return metrics.render(log.ready, await slots.get(), await others.get(), await connections())

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


async def _slots(workflows: Workflows) -> Mapping[str, tuple[int, int]]:
    """Return runs with a slot and waiting runs by workflow; empty while Postgres is down."""
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            return await workflows.slots()
    except (StoreUnavailable, TimeoutError):
        return {}


async def _others(folder: MetricsFolder | None) -> Counts:
    """Return the counts of the other processes of this gateway, read outside of the loop."""
    return await asyncio.to_thread(folder.others) if folder else {}
