"""The endpoint of a process: metrics, liveness and readiness."""

import asyncio
import socket
import threading
from contextlib import ExitStack

import httpx2
import pytest

from headwater.monitoring import endpoint
from headwater.monitoring import monitor as module
from headwater.monitoring.address import Address
from headwater.monitoring.catalog import HOST_MESSAGES_WAITING
from headwater.monitoring.endpoint import monitoring
from headwater.monitoring.monitor import Monitor
from headwater.schemas.errors import ProcessUnavailable

ANYWHERE = Address("127.0.0.1", 0)


def url(monitor: Monitor, path: str) -> str:
    return f"http://{monitor.address}{path}"


def test_a_process_that_starts_lives_and_is_not_ready():
    with monitoring(ANYWHERE, "projector", "1.2.3") as monitor:
        live, ready = (httpx2.get(url(monitor, f"/health/{part}")) for part in ("live", "ready"))
        metrics = httpx2.get(url(monitor, "/metrics"))
        assert (live.status_code, live.json()) == (200, {"alive": True})
        assert ready.status_code == 503
        assert ready.json() == {"ready": False, "parts": {"process": "starting"}}
        assert 'headwater_build_info{process="projector",version="1.2.3"} 1.0' in metrics.text
        assert "headwater_ready 0.0" in metrics.text
        assert "process_resident_memory_bytes" in metrics.text
        assert "python_gc_collections_total" in metrics.text


def test_a_process_is_ready_when_all_its_parts_are():
    states = {"partitions": "3 acquiring", "code": "ok"}
    with monitoring(ANYWHERE, "workflows", "1") as monitor:
        monitor.ready_when(lambda: states)
        assert httpx2.get(url(monitor, "/health/ready")).json() == {"ready": False, "parts": states}
        states["partitions"] = "ok"
        ready = httpx2.get(url(monitor, "/health/ready"))
        assert (ready.status_code, ready.json()["ready"]) == (200, True)
        assert "headwater_ready 1.0" in httpx2.get(url(monitor, "/metrics")).text


def test_gauges_are_set_on_the_event_loop_which_may_be_busy():
    async def scenario() -> None:
        with monitoring(ANYWHERE, "workflows", "1") as monitor:
            threads = []

            def measure() -> None:
                threads.append(threading.get_ident())
                HOST_MESSAGES_WAITING.set(len(threads))

            monitor.measure(measure)
            monitor.follow_loop()
            monitor.follow_loop()
            page = await asyncio.to_thread(httpx2.get, url(monitor, "/metrics"))
            assert "headwater_workflow_host_messages_waiting 1.0" in page.text
            assert threads == [threading.get_ident()]

    asyncio.run(scenario())


def test_a_busy_event_loop_leaves_the_last_gauges_and_is_dead_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(module, "_MEASURED_S", 0.01)
    monkeypatch.setattr(module, "_DEAD_S", 0.0)

    async def scenario() -> None:
        with monitoring(ANYWHERE, "workflows", "1") as monitor:
            monitor.follow_loop()
            answers: list[httpx2.Response] = []
            paths = ("/metrics", "/health/live")
            asking = threading.Thread(
                target=lambda: answers.extend(httpx2.get(url(monitor, path)) for path in paths)
            )
            asking.start()
            asking.join()  # The loop is blocked meanwhile.
            metrics, live = answers
            assert metrics.status_code == 200
            assert (live.status_code, live.json()) == (503, {"alive": False})

    asyncio.run(scenario())


def test_heads_and_other_paths():
    with monitoring(ANYWHERE, "pipeline", "1") as monitor:
        head = httpx2.head(url(monitor, "/health/live"))
        assert (head.status_code, head.content) == (200, b"")
        assert httpx2.get(url(monitor, "/")).status_code == 404
        assert httpx2.post(url(monitor, "/metrics")).status_code == 501
        asked = httpx2.get(
            url(monitor, "/metrics"), headers={"accept": "application/openmetrics-text"}
        )
        assert asked.headers["content-type"].startswith("application/openmetrics-text")
        assert asked.text.endswith("# EOF\n")


def test_connections_that_send_nothing_cost_no_more_than_a_few_threads(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(endpoint, "_REQUESTS_MAX", 2)
    with monitoring(ANYWHERE, "projector", "1") as monitor, ExitStack() as idle:
        assert monitor.address is not None
        before = threading.active_count()
        connections = [
            idle.enter_context(socket.create_connection(tuple(monitor.address))) for _ in range(20)
        ]
        closed = [connection for connection in connections[2:] if connection.recv(1) == b""]
        assert len(closed) == 18
        assert threading.active_count() <= before + 4  # A request, and its deadline.


def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint, "_REQUEST_S", 0.3)
    monkeypatch.setattr(endpoint._Handler, "timeout", 60.0)
    with monitoring(ANYWHERE, "projector", "1") as monitor:
        assert monitor.address is not None
        with socket.create_connection(tuple(monitor.address), timeout=60) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nx-slow: ")
            assert connection.recv(1) == b""


def test_the_port_is_free_after_the_end_and_a_taken_one_is_named():
    with monitoring(ANYWHERE, "pipeline", "1") as monitor:
        assert monitor.address is not None
        with (
            pytest.raises(ProcessUnavailable, match="HEADWATER_METRICS_ADDRESS"),
            monitoring(monitor.address, "pipeline", "1"),
        ):
            pass
    socket.create_server(tuple(monitor.address)).close()


def test_without_an_address_nothing_listens():
    with monitoring(None, "pipeline", "1") as monitor:
        assert monitor.address is None


def test_an_address_is_written_as_urls_have_it():
    assert str(Address("0.0.0.0", 9600)) == "0.0.0.0:9600"
    assert str(Address("::1", 9600)) == "[::1]:9600"
