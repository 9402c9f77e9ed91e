"""Metrics of a gateway of several processes: each publishes its own, and answers for all of them.

A monitor reaches one of the processes by their shared port, and keeps its connection. Without this,
it would see the counts of that process only. Files of processes that ended stay as long as the
parent runs, so a total never decreases.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from typing_extensions import override

#: Seconds between publications: the greatest age of the counts of the other processes.
PUBLISHED_EVERY_S: Final = 5.0
_SUFFIX: Final = ".metrics"
#: Types that are added up; a gauge is the value of the process that answers.
_COUNTED: Final = frozenset({"counter", "histogram"})

_Labels: TypeAlias = frozenset[tuple[str, str]]
#: Samples of one family, by name and labels.
_Samples: TypeAlias = dict[tuple[str, _Labels], Sample]
#: Counts of other processes, by family.
Counts: TypeAlias = Mapping[str, _Samples]


class MetricsFolder:
    """The folder that the processes of a gateway share; this process has one file there."""

    def __init__(self, folder: Path, process_id: int) -> None:
        self._folder = folder
        self._own = folder / f"{process_id}{_SUFFIX}"

    def publish(self, text: bytes) -> None:
        """Replace the published metrics of this process. A full disk makes them old."""
        new = self._own.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.write_bytes(text)
            new.replace(self._own)

    def others(self) -> Counts:
        """Return the counts of all other processes together, also of those that ended."""
        files = sorted(self._folder.glob(f"*{_SUFFIX}"))
        return total(file.read_text("utf-8") for file in files if file != self._own)

    @contextlib.asynccontextmanager
    async def publishing(self, render: Callable[[], bytes]) -> AsyncIterator[None]:
        """Publish every few seconds while the context is open, and at its end."""

        async def repeat() -> None:
            while True:
                self.publish(render())
                await asyncio.sleep(PUBLISHED_EVERY_S)

        task = asyncio.create_task(repeat(), name="publish metrics")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            self.publish(render())


def total(texts: Iterable[str]) -> Counts:
    """Add up counters and histograms in Prometheus' text format."""
    counts: dict[str, _Samples] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            if family.type in _COUNTED:
                _add(counts.setdefault(family.name, {}), family.samples)
    return counts


class WithOthers(Collector):
    """Metrics of this process, to which counts of other processes are added."""

    def __init__(self, own: Collector, others: Counts) -> None:
        self._own = own
        self._others = others

    @override
    def collect(self) -> Iterator[Metric]:
        for family in self._own.collect():
            if others := self._others.get(family.name):
                samples: _Samples = {}
                _add(samples, family.samples)
                _add(samples, others.values())
                family.samples = list(samples.values())
            yield family


def _add(totals: _Samples, samples: Iterable[Sample]) -> None:
    for sample in samples:
        key = sample.name, frozenset(sample.labels.items())
        known = totals.get(key)
        value = sample.value + (known.value if known else 0)
        totals[key] = sample._replace(value=value)
