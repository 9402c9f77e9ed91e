"""What a workflow worker counts, for Prometheus, where its settings ask for that."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

_HELD: Final = "headwater_step_threads_held"
_MEANING: Final = "Threads held by callbacks of steps that were given up and have not returned."


class _Held(Collector):
    """The threads that are held, by app."""

    def __init__(self, held: Callable[[], Mapping[str, int]]) -> None:
        self._held = held

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(_HELD, _MEANING, labels=["app"])
        for app, number in self._held().items():
            family.add_metric([app], number)
        yield family


@contextmanager
def counted(port: int, held: Callable[[], Mapping[str, int]]) -> Iterator[int]:
    """Answers GET /metrics on loopback while it is open; gives the port.

    Shape:  port 0 takes a free one.
    """
    registry = CollectorRegistry()
    registry.register(_Held(held))
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
