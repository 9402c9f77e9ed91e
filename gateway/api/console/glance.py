"""Metrics at a glance: what pages show of the gateway's `/metrics`."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

#: A sample in Prometheus' text format, without its time and its exemplar; and a label.
_SAMPLE: Final = re.compile(r"([a-z_]+)(?:\{(.*?)\})? ([^\s{}]+)(?: |$)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: Share of the measurements that are at most as long as the duration that is shown.
_SHARE: Final = 0.95


class Sample(NamedTuple):
    """A value of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


class Lag(NamedTuple):
    """How far a consumer group is behind in a topic.

    Attributes:
        group: The group.
        topic: The topic.
        records: Records of all partitions that are not committed.
        seconds: Greatest possible age of the oldest of them.
    """

    group: str
    topic: str
    records: int
    seconds: float


def samples_of(text: str) -> Iterator[Sample]:
    """Yield the samples of metrics in Prometheus' text format."""
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is not None:
            yield Sample(match[1], dict(_LABEL.findall(match[2] or "")), float(match[3]))


def lags_of(samples: Sequence[Sample]) -> list[Lag]:
    """Return how far consumer groups are behind, by group and topic: the latest first."""
    records, seconds = Counter[tuple[str, str]](), dict[tuple[str, str], float]()
    for sample in samples:
        key = (sample.labels.get("group", ""), sample.labels.get("topic", ""))
        if sample.name == "headwater_lag_records":
            records[key] += int(sample.value)
        elif sample.name == "headwater_lag_seconds":
            seconds[key] = max(sample.value, seconds.get(key, 0.0))
    lags = [Lag(*key, number, seconds.get(key, 0.0)) for key, number in records.items()]
    return sorted(lags, key=lambda lag: (-lag.seconds, -lag.records, lag.group, lag.topic))


def furthest_behind(lags: Sequence[Lag]) -> list[Lag]:
    """Return a line for each group: its records of all topics, and the oldest of them."""
    groups: dict[str, Lag] = {}
    for lag in lags:
        before = groups.get(lag.group, Lag(lag.group, "", 0, 0.0))
        records, seconds = before.records + lag.records, max(before.seconds, lag.seconds)
        groups[lag.group] = before._replace(records=records, seconds=seconds)
    return list(groups.values())


def glance_of(samples: Sequence[Sample]) -> list[tuple[str, str]]:
    """Return the metrics of a gateway that an operator looks at first: name and value."""
    totals = Counter[str]()
    for sample in samples:
        totals[sample.name] += sample.value  # type: ignore[assignment]
    shown = [
        ("Requests to sources", f"{totals['headwater_webhook_received_total']:,.0f}"),
        ("Refused signatures", f"{totals['headwater_webhook_verify_failures_total']:,.0f}"),
        ("Duplicates", f"{totals['headwater_dedupe_suppressed_total']:,.0f}"),
        ("Append to Kafka, 95 %", _duration(samples, "headwater_webhook_append_seconds")),
        ("Event loop late, 95 %", _duration(samples, "headwater_event_loop_late_seconds")),
    ]
    return [(name, value) for name, value in shown if value]


def _duration(samples: Sequence[Sample], name: str) -> str:
    """Return the bound of the bucket of a histogram that has a share of all measurements."""
    histogram = Counter[float]()
    for sample in samples:
        if sample.name == f"{name}_bucket":
            histogram[float(sample.labels["le"])] += sample.value  # type: ignore[assignment]
    total = max(histogram.values(), default=0)
    if not total:
        return ""
    bound = min(bound for bound, count in histogram.items() if count >= _SHARE * total)
    return f"at most {bound * 1000:g} ms" if bound != float("inf") else "over the last bucket"
