"""The HTTP endpoint for monitors: `/metrics`, `/health/live` and `/health/ready`.

It has a thread of its own, so it answers from the start of the process, before Kafka is connected,
and while the event loop is busy. Needs the extra `server`.
"""

import contextlib
import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

from typing_extensions import override

from headwater.monitoring.address import Address
from headwater.monitoring.catalog import BUILD_INFO
from headwater.monitoring.exposition import PROCESS_METRICS, render
from headwater.monitoring.monitor import Monitor, is_ready
from headwater.schemas.errors import ProcessUnavailable

log = logging.getLogger(__name__)

#: Seconds that a monitor may take to send a request or to read a response.
_REQUEST_S: Final = 10.0
#: Requests at the same time: a thread each. Further connections are closed without an answer.
_REQUESTS_MAX: Final = 32
#: Seconds until connections are accepted again after an error.
_RETRY_S: Final = 1.0


@contextlib.contextmanager
def monitoring(address: Address | None, process: str, version: str) -> Iterator[Monitor]:
    """Answer monitors while the context is open.

    Args:
        address: Where; None answers nowhere.
        process: Kind of the process, such as `projector`.
        version: Release of Headwater.

    Raises:
        ProcessUnavailable: The port is taken, or the address is not available.
    """
    BUILD_INFO.replace({(process, version): 1})
    monitor = Monitor()
    if address is None:
        yield monitor
        return
    with _server(address, monitor) as server:
        monitor.address = Address(address.host, server.server_port)
        log.info("metrics and health of this process: http://%s", monitor.address)
        thread = threading.Thread(target=server.serve, name="headwater-monitoring", daemon=True)
        thread.start()
        try:
            yield monitor
        finally:
            server.stop()
            thread.join(_REQUEST_S)


def _server(address: Address, monitor: Monitor) -> "_Server":
    try:
        return _Server(address, monitor)
    except OSError as error:
        raise ProcessUnavailable(
            f"expected to listen for monitors on {address}, found: {error.strerror}. Usual cause: "
            "another process listens there; choose a port with HEADWATER_METRICS_ADDRESS"
        ) from error


_Connection: TypeAlias = socket.socket | tuple[bytes, socket.socket]


class _Server(ThreadingHTTPServer):
    """Answers every connection in a thread of its own."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Address, monitor: Monitor) -> None:
        super().__init__((address.host, address.port), _Handler, bind_and_activate=False)
        # Not `server_bind`, which looks up the name of the address.
        self.socket.close()
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.socket = socket.create_server((address.host, address.port), family=family)
        self.server_port = self.socket.getsockname()[1]
        self.monitor = monitor
        self._stopped = threading.Event()
        self._free = threading.BoundedSemaphore(_REQUESTS_MAX)

    def serve(self) -> None:
        """Accept connections until the server is stopped; an idle server does not wake up."""
        while not self._stopped.is_set():
            try:
                self.process_request(*self.get_request())
            # It was stopped, or the process has no file descriptor or thread to spare.
            except (OSError, RuntimeError):
                self._stopped.wait(_RETRY_S)

    def stop(self) -> None:
        """Accept no further connection."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    @override
    def process_request(self, request: _Connection, client_address: Any) -> None:
        """Answer a request in a thread, if one is free."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._free.release()
            self.shutdown_request(request)
            raise

    @override
    def process_request_thread(self, request: _Connection, client_address: Any) -> None:
        """Answer a request in this thread.

        A client that sends or reads a byte now and then is cut off, too.
        """
        deadline = threading.Timer(_REQUEST_S, self.shutdown_request, (request,))
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._free.release()

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Log a failed request, unless the monitor has disconnected."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("a request of a monitor failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, and closes its connection."""

    server: _Server
    timeout = _REQUEST_S
    server_version = "headwater"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request."""
        monitor = self.server.monitor
        match self.path.partition("?")[0]:
            case "/metrics":
                monitor.take_measures()
                accept = self.headers.get("Accept", "")
                self._answer(HTTPStatus.OK, *render(accept, PROCESS_METRICS))
            case "/health/live":
                alive = monitor.is_alive()
                self._answer_json(alive, {"alive": alive})
            case "/health/ready":
                parts = monitor.parts()
                ready = is_ready(parts)
                self._answer_json(ready, {"ready": ready, "parts": parts})
            case _:
                self._answer(HTTPStatus.NOT_FOUND, b"", "text/plain")

    def do_HEAD(self) -> None:
        """Answer a request without the body."""
        self.do_GET()

    def _answer_json(self, well: bool, answer: Mapping[str, object]) -> None:
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, json.dumps(answer).encode(), "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, media_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: monitors send several requests a minute."""
