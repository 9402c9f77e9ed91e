"""What a workflow worker counts."""

import httpx2

from headwater.gateway.cli.work import metrics_server


class Counts:
    """The counts of a worker."""

    def __init__(self) -> None:
        self.held = {"shop.workflows": 2, "headwater": 0}
        self.errors = {"command": 3}

    def threads_held(self) -> dict[str, int]:
        return self.held

    def errors_contained(self) -> dict[str, int]:
        return self.errors

    def quarantined(self) -> int:
        return 1


def test_threads_that_are_held_are_a_metric_by_app() -> None:
    counts = Counts()
    with metrics_server(0, counts) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        assert 'headwater_step_threads_held{app="shop.workflows"} 2.0' in httpx2.get(url).text
        counts.held["shop.workflows"] = 0
        assert 'headwater_step_threads_held{app="shop.workflows"} 0.0' in httpx2.get(url).text


def test_errors_that_were_contained_and_instances_that_are_quarantined_are_metrics() -> None:
    with metrics_server(0, Counts()) as port:
        result = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
    assert 'headwater_workflow_errors_contained_total{kind="command"} 3.0' in result
    assert "headwater_workflow_instances_quarantined 1.0" in result
