"""Counters, gauges and histograms, and their text for Prometheus."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as classic_families

from headwater.monitoring.exposition import Collected, Joined, render
from headwater.monitoring.metrics import OTHER, SERIES_MAX, Counter, Gauge, Histogram

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def test_a_counter_adds_by_labels():
    counter = Counter("headwater_things", "Things.", ("kind",))
    counter.add(("a",))
    counter.add(("a",), 4)
    counter.add(("b",))
    assert counter.values() == {("a",): 5, ("b",): 1}


def test_a_gauge_is_set_and_replaced():
    gauge = Gauge("headwater_size_bytes", "Size.", ("partition",))
    gauge.set(3, ("0",))
    gauge.set(4, ("0",))
    assert gauge.values() == {("0",): 4}
    gauge.replace({("1",): 5})
    assert gauge.values() == {("1",): 5}


def test_a_histogram_counts_a_batch_at_once_and_keeps_the_latest_trace_of_a_bucket():
    histogram = Histogram("headwater_x_seconds", "Seconds.", (), (0.1, 1))
    histogram.observe(0.05, count=3)
    histogram.observe(0.5, trace_id="first")
    histogram.observe(0.6, trace_id="second")
    histogram.observe(1)  # A bound belongs to its bucket.
    histogram.observe(7)
    (distribution,) = histogram.distributions().values()
    assert [(bound, count) for bound, count, _ in distribution.buckets] == [
        ("0.1", 3),
        ("1.0", 6),
        ("+Inf", 7),
    ]
    assert distribution.buckets[1][2] == ("second", 0.6)
    assert distribution.total == pytest.approx(0.15 + 0.5 + 0.6 + 1 + 7)


def test_further_series_share_one_so_that_a_mistake_fills_no_monitor():
    counter = Counter("headwater_things", "Things.", ("id",))
    gauge = Gauge("headwater_size_bytes", "Size.", ("id",))
    for number in range(SERIES_MAX + 10):
        counter.add((str(number),))
    gauge.replace({(str(number),): 1 for number in range(SERIES_MAX + 10)})
    assert len(counter.values()) == SERIES_MAX + 1
    assert counter.values()[OTHER,] == 10
    assert len(gauge.values()) == SERIES_MAX + 1


def test_labels_without_a_value_are_a_mistake():
    with pytest.raises(ValueError, match="expected values of"):
        Counter("headwater_things", "Things.", ("kind",)).add()


def some() -> Joined:
    counter = Counter("headwater_things", "Things.", ("kind",))
    counter.add(("a",), 2)
    histogram = Histogram("headwater_x_seconds", "Seconds.", (), (1,))
    histogram.observe(0.5, trace_id="abc")
    silent = Gauge("headwater_silent", "Never set.")
    return Joined((Collected((counter, histogram)), Collected((silent,))))


def test_the_classic_format_is_the_default():
    body, media_type = render("", some())
    assert media_type.startswith("text/plain; version=0.0.4")
    assert b'headwater_things_total{kind="a"} 2.0\n' in body
    assert b"silent" not in body, "what never had a value is left out"
    families = {family.name: family for family in classic_families(body.decode())}
    assert families["headwater_things"].type == "counter"
    assert families["headwater_x_seconds"].type == "histogram"


def test_open_metrics_has_the_trace_of_a_measurement():
    body, media_type = render(OPEN_METRICS, some())
    assert media_type.startswith("application/openmetrics-text; version=1.0.0")
    (family,) = [
        family
        for family in text_string_to_metric_families(body.decode())
        if family.name == "headwater_x_seconds"
    ]
    (exemplar,) = [sample.exemplar for sample in family.samples if sample.exemplar]
    assert (exemplar.labels, exemplar.value) == ({"trace_id": "abc"}, 0.5)
