"""The worker's end of a tick, as the gateway sees it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override


class Ticked(ThreadingHTTPServer):
    """Keeps what it heard, and has processed three, with some steps."""

    def __init__(self, steps: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.steps = steps
        self.heard: list[dict[str, int]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Ticked

    def do_POST(self) -> None:
        self.server.heard.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        body = b'{"processed":3,"steps":%d}' % self.server.steps
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(steps: int = 0) -> Iterator[Ticked]:
    """The server, while it serves."""
    with Ticked(steps) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
