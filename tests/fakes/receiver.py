"""A receiver of webhooks in this process."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import httpx2
from typing_extensions import override


def response(
    status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> httpx2.Response:
    """A response for `httpx2.MockTransport` that is received piece by piece, as from a network."""
    return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))


class Received(NamedTuple):
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes


@contextmanager
def receiving(status_of: Callable[[Received], int]) -> Iterator[tuple[str, list[Received]]]:
    """Run a receiver; yield its address and the list of its requests."""
    requests: list[Received] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            received = Received(self.path, headers, self.rfile.read(length))
            requests.append(received)
            self.send_response(status_of(received))
            self.send_header("content-length", "0")
            self.end_headers()

        @override
        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()
