"""What the gateway counts, in Prometheus' text format.

Counted by hand: a handful of numbers in one process needs no registry, no locks (there is one
event loop) and no dependency. No label ever holds an id.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds. An acknowledged append takes 1.5 to 3 ms here; 5 s is the default time limit.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """The counters of one gateway since it started."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        self.refusals: dict[tuple[str, str], int] = {}
        self.duplicates: dict[str, int] = {}
        self._appends = [0] * (len(_BUCKETS) + 1)
        self._append_seconds = 0.0

    def answered(self, source: str, outcome: str) -> None:
        """Counts a delivery by what it was answered: accepted, duplicate, or a problem's code."""
        key = (source, outcome)
        self.requests[key] = self.requests.get(key, 0) + 1

    def refused(self, source: str, reason: str) -> None:
        """Counts a delivery whose signature was refused, by reason."""
        key = (source, reason)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def suppressed(self, source: str) -> None:
        """Counts a delivery that the gateway knew already."""
        self.duplicates[source] = self.duplicates.get(source, 0) + 1

    def appended(self, seconds: float) -> None:
        """Counts an append and how long its acknowledgement took."""
        self._appends[bisect_left(_BUCKETS, seconds)] += 1
        self._append_seconds += seconds

    def render(self, ready: bool) -> str:
        """All of it in Prometheus' text format."""
        return "\n".join([*self._lines(ready), ""])

    def _lines(self, ready: bool) -> Iterator[str]:
        yield from _counter(
            "headwater_webhook_received_total",
            "Deliveries by source and by what they were answered.",
            (
                (f'source="{source}",outcome="{outcome}"', count)
                for (source, outcome), count in self.requests.items()
            ),
        )
        yield from _counter(
            "headwater_webhook_verify_failures_total",
            "Deliveries whose signature was refused, by reason.",
            (
                (f'source="{source}",reason="{reason}"', count)
                for (source, reason), count in self.refusals.items()
            ),
        )
        yield from _counter(
            "headwater_dedupe_suppressed_total",
            "Deliveries that the gateway knew already and did not append.",
            ((f'source="{source}"', count) for source, count in self.duplicates.items()),
        )
        yield from self._histogram("headwater_webhook_append_seconds")
        yield "# HELP headwater_kafka_connected Whether the gateway is connected to Kafka."
        yield "# TYPE headwater_kafka_connected gauge"
        yield f"headwater_kafka_connected {int(ready)}"

    def _histogram(self, name: str) -> Iterator[str]:
        yield f"# HELP {name} Seconds from append to Kafka's acknowledgement."
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip((*_BUCKETS, "+Inf"), self._appends, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._append_seconds:.6f}"
        yield f"{name}_count {total}"


def _counter(name: str, meaning: str, samples: Iterable[tuple[str, int]]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} counter"
    for labels, count in samples:
        yield f"{name}{{{labels}}} {count}"
