"""What a workflow worker counts."""

import httpx

from headwater.gateway.commands.worker_metrics import counted


def test_threads_that_are_held_are_a_metric_by_app() -> None:
    held = {"shop.workflows": 2, "headwater": 0}
    with counted(0, lambda: held) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        assert 'headwater_step_threads_held{app="shop.workflows"} 2.0' in httpx.get(url).text
        held["shop.workflows"] = 0
        assert 'headwater_step_threads_held{app="shop.workflows"} 0.0' in httpx.get(url).text
