"""Metrics of the gateway for Prometheus. No label contains an id.

Deliveries are counted in plain integers on the event loop, and copied into Prometheus metrics on
each scrape. The counters of the Prometheus client take locks, which costs ten times as much.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

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

#: Litestar adds the charset to text types.
MEDIA_TYPE: Final = "text/plain; version=0.0.4"

#: Seconds. An acknowledged append takes 1.5 to 3 ms here; 5 s is the default time limit.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

# Otherwise each counter would have a second series with its creation time.
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


class Metrics:
    """Metrics of one gateway since it started."""

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
            "Audited operations by result; lost if the entry could not be stored.",
            ("result",),
            registry=self._registry,
        )
        self._unaudited = Counter(
            "headwater_unaudited_requests_total",
            "Requests for an audited action without a valid key, which get no audit entry.",
            ("action",),
            registry=self._registry,
        )
        self._slots = Gauge(
            "headwater_concurrency_runs",
            "Runs of workflows with a concurrency limit: running with a slot, or waiting.",
            ("workflow", "state"),
            registry=self._registry,
        )
        self._connected = Gauge(
            "headwater_kafka_connected",
            "Whether the gateway is connected to Kafka.",
            registry=self._registry,
        )

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
        """Count an audit entry by result: success, failure or lost."""
        self._audited.labels(result).inc()

    def unaudited(self, action: str) -> None:
        """Count a request for an audited action without a valid key."""
        self._unaudited.labels(action).inc()

    def render(self, ready: bool, slots: Mapping[str, tuple[int, int]]) -> bytes:
        """Render all metrics in Prometheus' text format.

        Args:
            ready: Whether Kafka is connected.
            slots: By workflow, runs with a slot and waiting runs.
        """
        self._connected.set(ready)
        self._slots.clear()
        for workflow, (running, waiting) in slots.items():
            self._slots.labels(workflow, "running").set(running)
            self._slots.labels(workflow, "waiting").set(waiting)
        for labels, count in self._answered.items():
            self._received.labels(*labels).inc(count)
        self._answered.clear()
        return generate_latest(self._registry)
