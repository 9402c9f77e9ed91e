"""Prometheus metrics of a workflow worker, where its settings enable them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

_HELD: Final = "headwater_step_threads_held"
_MEANING: Final = "Threads that callbacks of abandoned steps still occupy."
_ERRORS: Final = "headwater_workflow_errors_contained"
_ERRORS_MEANING: Final = "Errors inside the worker; each affected only one command or run."
_QUARANTINED: Final = "headwater_workflow_instances_quarantined"
_QUARANTINED_MEANING: Final = "Instances that the worker cannot decide anything for."


class WorkerCounts(Protocol):
    """Counts of a worker."""

    def threads_held(self) -> Mapping[str, int]:
        """Return the threads that are held, by app."""

    def errors_contained(self) -> Mapping[str, int]:
        """Return the contained errors, which affected only one command or run, by their kind."""

    def quarantined(self) -> int:
        """Return the number of quarantined instances."""


class _Families(Collector):
    """Collects a worker's counts as metrics."""

    def __init__(self, counts: WorkerCounts) -> None:
        self._counts = counts

    @override
    def collect(self) -> Iterator[Metric]:
        held = GaugeMetricFamily(_HELD, _MEANING, labels=["app"])
        for app, number in self._counts.threads_held().items():
            held.add_metric([app], number)
        errors = CounterMetricFamily(_ERRORS, _ERRORS_MEANING, labels=["kind"])
        for kind, number in self._counts.errors_contained().items():
            errors.add_metric([kind], number)
        count = self._counts.quarantined()
        yield from (held, errors, GaugeMetricFamily(_QUARANTINED, _QUARANTINED_MEANING, count))


@contextmanager
def metrics_server(port: int, counts: WorkerCounts) -> Iterator[int]:
    """Serve GET /metrics on loopback while the context is open.

    Args:
        port: Port; 0 takes a free one.
        counts: The counts.

    Yields:
        The port.
    """
    registry = CollectorRegistry()
    registry.register(_Families(counts))
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
