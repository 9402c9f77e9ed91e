"""Counters, gauges and histograms of a process, as plain numbers.

`exposition` renders them for Prometheus. The types of Prometheus' own client take a lock for every
change, which costs ten times as much, and belong to the extra `server`, which programs and tests of
authors do not install.

A change is one change of a dictionary, which no other thread interrupts. Readers copy the
dictionary, so they may run in any thread.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar, Final, NamedTuple, TypeAlias

#: Values of a metric's labels, in the order of their names.
Labels: TypeAlias = tuple[str, ...]

#: Series of a metric. All labels have few values; a mistake must not fill the memory of a monitor.
SERIES_MAX: Final = 10_000
#: The value of all labels of further series.
OTHER: Final = "other"
#: Upper bounds of durations, in seconds: from one append to half an hour of lag.
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class Metric:
    """A metric: its name, its meaning, and a number for every combination of label values.

    Args:
        name: Name without the suffixes that Prometheus adds, such as `_total`.
        meaning: What is counted or measured, in one sentence.
        labels: Names of its labels. None of them may have an unlimited number of values.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, meaning: str, labels: Labels = ()) -> None:
        self.name = name
        self.meaning = meaning
        self.labels = labels

    def _admitted(self, labels: Labels, known: Mapping[Labels, object]) -> Labels:
        """Return the labels of a new series, or those that all further series share."""
        if len(labels) != len(self.labels):
            raise ValueError(f"expected values of {self.labels} for {self.name}, found {labels}")
        return labels if len(known) < SERIES_MAX else (OTHER,) * len(labels)


class Counter(Metric):
    """A number that only grows."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, labels: Labels = ()) -> None:
        super().__init__(name, meaning, labels)
        self._values: dict[Labels, float] = {}

    def add(self, labels: Labels = (), amount: float = 1) -> None:
        """Add an amount, which is not negative."""
        values = self._values
        if labels not in values:
            labels = self._admitted(labels, values)
            values.setdefault(labels, 0)
        values[labels] += amount

    def values(self) -> dict[Labels, float]:
        """Return the values, by labels."""
        return self._values.copy()


class Gauge(Metric):
    """A number that grows and shrinks."""

    kind = "gauge"

    def __init__(self, name: str, meaning: str, labels: Labels = ()) -> None:
        super().__init__(name, meaning, labels)
        self._values: dict[Labels, float] = {}

    def set(self, value: float, labels: Labels = ()) -> None:
        """Set the value of a series."""
        values = self._values
        if labels not in values:
            labels = self._admitted(labels, values)
        values[labels] = value

    def replace(self, values: Mapping[Labels, float]) -> None:
        """Replace all series."""
        replaced: dict[Labels, float] = {}
        for labels, value in values.items():
            replaced[self._admitted(labels, replaced)] = value
        self._values = replaced

    def values(self) -> dict[Labels, float]:
        """Return the values, by labels."""
        return self._values.copy()


class Exemplar(NamedTuple):
    """The trace of a measurement, for the bucket that counts it."""

    trace_id: str
    value: float


@dataclass(slots=True)
class _Series:
    """One series of a histogram.

    Attributes:
        counts: Number of measurements in every bucket, not cumulative.
        exemplars: The latest measurement with a trace, by the index of its bucket.
    """

    counts: list[int]
    total: float = 0.0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)


class Distribution(NamedTuple):
    """The state of a series of a histogram.

    Attributes:
        buckets: Upper bound of every bucket as text, number of measurements up to it, and exemplar.
        total: Sum of all measurements.
    """

    buckets: list[tuple[str, int, Exemplar | None]]
    total: float


class Histogram(Metric):
    """A distribution, by default of durations in seconds.

    Args:
        bounds: Upper bounds of the buckets; the last bucket has none.
    """

    kind = "histogram"

    def __init__(
        self, name: str, meaning: str, labels: Labels = (), bounds: tuple[float, ...] = SECONDS
    ) -> None:
        super().__init__(name, meaning, labels)
        self._bounds = bounds
        self._series: dict[Labels, _Series] = {}

    def observe(
        self, value: float, labels: Labels = (), count: int = 1, trace_id: str = ""
    ) -> None:
        """Add a measurement.

        Args:
            value: The measurement.
            labels: Its labels.
            count: How often it was made: that of a batch stands for all its records.
            trace_id: Its trace, if that is known.
        """
        try:
            series = self._series[labels]
        except KeyError:
            series = self._begun(labels)
        bucket = bisect_left(self._bounds, value)
        series.counts[bucket] += count
        series.total += value * count
        if trace_id:
            series.exemplars[bucket] = Exemplar(trace_id, value)

    def _begun(self, labels: Labels) -> _Series:
        """Return the series of labels that are new."""
        new = _Series([0] * (len(self._bounds) + 1))
        return self._series.setdefault(self._admitted(labels, self._series), new)

    def distributions(self) -> dict[Labels, Distribution]:
        """Return the distributions, by labels."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        distributions = {}
        for labels, series in self._series.copy().items():
            counts, exemplars = accumulate(series.counts.copy()), series.exemplars.copy()
            buckets = [
                (bound, count, exemplars.get(index))
                for index, (bound, count) in enumerate(zip(bounds, counts, strict=True))
            ]
            distributions[labels] = Distribution(buckets, series.total)
        return distributions
