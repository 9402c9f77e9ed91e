"""Metrics as text for Prometheus: the classic format, or OpenMetrics with exemplars if requested.

Needs the extra `server`.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from typing_extensions import override

from headwater.monitoring import metrics
from headwater.monitoring.catalog import METRICS


def _process_collectors() -> CollectorRegistry:
    """Return the metrics that Prometheus' client has for any Python process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


_PROCESS: Final = _process_collectors()


class Collected(Collector):
    """Metrics of this process, those that have a value."""

    def __init__(self, collected: Iterable[metrics.Metric]) -> None:
        self._collected = tuple(collected)

    @override
    def collect(self) -> Iterator[Metric]:
        yield from filter(None, map(_family, self._collected))


class Joined(Collector):
    """The metrics of several collectors, which have no name in common."""

    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._collectors = tuple(collectors)

    @override
    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            yield from collector.collect()


#: All metrics of this process, and those of any Python process.
PROCESS_METRICS: Final = Joined((Collected(METRICS), _PROCESS))


def render(accept: str, collector: Collector) -> tuple[bytes, str]:
    """Render metrics in the format that a monitor requests.

    Args:
        accept: The header Accept of its request.
        collector: The metrics.

    Returns:
        The text, and its media type.
    """
    encode, media_type = choose_encoder(accept)
    return encode(collector), media_type


def _family(metric: metrics.Metric) -> Metric | None:
    """Return a metric in the form of Prometheus' client; None if it has no value here."""
    match metric:
        case metrics.Histogram():
            return _histogram(metric)
        case metrics.Counter() | metrics.Gauge():
            values = metric.values()
            if not values:
                return None
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.meaning, labels=metric.labels)
            for labels, value in values.items():
                family.add_metric(labels, value)
            return family
        case _:
            return None


def _histogram(metric: metrics.Histogram) -> Metric | None:
    distributions = metric.distributions()
    if not distributions:
        return None
    family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for labels, (buckets, total) in distributions.items():
        counts = [
            (bound, count)
            if exemplar is None
            else (bound, count, Exemplar({"trace_id": exemplar.trace_id}, exemplar.value))
            for bound, count, exemplar in buckets
        ]
        family.add_metric(labels, counts, total)
    return family
