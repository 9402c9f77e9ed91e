"""What the gateway counts, for Prometheus. No label ever holds an id."""

from functools import cache
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds. An acknowledged append takes 1.5 to 3 ms here; 5 s is the default time limit.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

# Otherwise each counter would be two series, one of them when it was first counted.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The counters of one gateway since it started."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._received = Counter(
            "headwater_webhook_received_total",
            "Deliveries by source and by what they were answered.",
            ("source", "outcome"),
            registry=self._registry,
        )
        # For every delivery: looking for a series costs four times as much as counting in it.
        self._received_by = cache(self._received.labels)
        self._refused = Counter(
            "headwater_webhook_verify_failures_total",
            "Deliveries whose signature was refused, by reason.",
            ("source", "reason"),
            registry=self._registry,
        )
        self._suppressed = Counter(
            "headwater_dedupe_suppressed_total",
            "Deliveries that the gateway knew already and did not append.",
            ("source",),
            registry=self._registry,
        )
        self._append_seconds = Histogram(
            "headwater_webhook_append_seconds",
            "Seconds from append to Kafka's acknowledgement.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._connected = Gauge(
            "headwater_kafka_connected",
            "Whether the gateway is connected to Kafka.",
            registry=self._registry,
        )

    def answered(self, source: str, outcome: str) -> None:
        """Counts a delivery by what it was answered: accepted, duplicate, or a problem's code."""
        self._received_by(source, outcome).inc()

    def refused(self, source: str, reason: str) -> None:
        """Counts a delivery whose signature was refused, by reason."""
        self._refused.labels(source, reason).inc()

    def suppressed(self, source: str) -> None:
        """Counts a delivery that the gateway knew already."""
        self._suppressed.labels(source).inc()

    def appended(self, seconds: float) -> None:
        """Counts an append and how long its acknowledgement took."""
        self._append_seconds.observe(seconds)

    def render(self, ready: bool) -> bytes:
        """All of it in Prometheus' text format."""
        self._connected.set(ready)
        return generate_latest(self._registry)
