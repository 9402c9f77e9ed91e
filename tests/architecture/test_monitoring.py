"""Metrics, their page, alert rules and dashboards name the same things.

The rules are tested by promtool, which Debian has in the package prometheus; without it these tests
are skipped.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headwater.gateway.api.monitoring import Metrics
from headwater.monitoring.catalog import METRICS
from headwater.monitoring.metrics import Histogram, Metric

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
#: Names of metrics in expressions, also those that Prometheus' client has.
NAME = re.compile(r"\b(?:headwater|process|python)_[a-z_]+\b")


def all_metrics() -> dict[str, Metric]:
    return {metric.name: metric for metric in (*METRICS, *Metrics().own())}


def sample_names() -> set[str]:
    """Return the names that samples have."""
    names = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
    for name, metric in all_metrics().items():
        if isinstance(metric, Histogram):
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        else:
            names.add(f"{name}_total" if metric.kind == "counter" else name)
    return names


def row_of(metric: Metric) -> str:
    """Return the row of a metric in the page."""
    name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{name}` | {metric.kind} | {labels} | {metric.meaning} |"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_metrics_are_named_as_prometheus_recommends():
    for name, metric in all_metrics().items():
        assert re.fullmatch(r"headwater_[a-z][a-z_]*[a-z]", name)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_milliseconds", "_ms"))
        assert isinstance(metric, Histogram) == (
            name.endswith("_seconds") and metric.kind == "histogram"
        )
        assert metric.meaning.endswith(".")


def test_no_label_has_an_unlimited_number_of_values():
    unlimited = {
        "id",
        "instance_id",
        "user",
        "user_id",
        "subject",
        "run",
        "delivery",
        "path",
        "url",
    }
    assert not {name for name, metric in all_metrics().items() if unlimited & set(metric.labels)}


def test_the_page_has_every_metric_and_no_other():
    lines = PAGE.read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `headwater_")]
    expected = [row_of(metric) for metric in all_metrics().values()]
    assert sorted(rows) == sorted(expected)


def test_the_page_says_what_to_do_about_every_alert():
    page = PAGE.read_text("utf-8")
    assert set(re.findall(r"^\| `(Headwater\w+)` \|", page, re.MULTILINE)) == {
        rule["alert"] for rule in rules()
    }


def test_alerts_use_metrics_that_exist_and_say_what_they_mean():
    names = sample_names()
    for rule in rules():
        assert set(NAME.findall(rule["expr"])) <= names, rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_every_alert_has_a_unit_test():
    tests = (PROMETHEUS / "alerts_test.yml").read_text()
    assert {rule["alert"] for rule in rules()} == set(re.findall(r'alertname="(\w+)"', tests))


def test_dashboards_use_metrics_that_exist_and_all_of_them():
    used: set[str] = set()
    for file in DASHBOARDS:
        panels = json.loads(file.read_text())["panels"]
        expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
        used |= {name for expression in expressions for name in NAME.findall(expression)}
    assert used <= sample_names()
    shown = {re.sub("_(bucket|count|total)$", "", name) for name in used}
    left_out = {"headwater_connections_counted_timestamp_seconds"}
    assert all_metrics().keys() - shown == left_out


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    result = subprocess.run(
        [program, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_configuration_and_rules(arguments: tuple[str, ...]):
    promtool(*arguments)
