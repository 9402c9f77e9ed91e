"""What a workflow worker counts, for Prometheus, where its settings ask for that."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

_HELD: Final = "headwater_step_threads_held"
_MEANING: Final = "Threads held by callbacks of steps that were given up and have not returned."
_ERRORS: Final = "headwater_workflow_errors_contained"
_ERRORS_MEANING: Final = "Errors inside the worker that cost one command or one run each."
_QUARANTINED: Final = "headwater_workflow_instances_quarantined"
_QUARANTINED_MEANING: Final = "Instances of which the worker can decide nothing."


class Counted(Protocol):
    """What a worker counts."""

    def threads_held(self) -> Mapping[str, int]:
        """Return the threads that are held, by app."""

    def errors_contained(self) -> Mapping[str, int]:
        """Return the errors that have cost one command or run each, by what failed."""

    def quarantined(self) -> int:
        """Return how many instances are quarantined."""


class _Families(Collector):
    """What a worker counts, as metrics."""

    def __init__(self, counts: Counted) -> None:
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
def counted(port: int, counts: Counted) -> Iterator[int]:
    """Answer GET /metrics on loopback while it is open.

    Args:
        port: Where; 0 takes a free port.
        counts: What is counted.

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
