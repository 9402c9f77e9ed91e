"""A server in this process whose answers are JSON, for commands that ask a gateway."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

from typing_extensions import override


class Asked(NamedTuple):
    """A request: its path with its query, the key that came with it, and its body."""

    path: str
    key: str | None
    body: object = None


@contextmanager
def answering(answer_of: Callable[[str], object]) -> Iterator[tuple[str, list[Asked]]]:
    """Run a server; yield its address and the list of its requests.

    Args:
        answer_of: Returns the answer for a path: bytes are sent unchanged, None is a 404, anything
            else is sent as JSON.
    """
    requested: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            key = self.headers.get("authorization") or self.headers.get("x-admin-key")
            sent = self.rfile.read(int(self.headers.get("content-length") or 0))
            requested.append(Asked(self.path, key, json.loads(sent) if sent else None))
            answer = answer_of(self.path.partition("?")[0])
            said = {} if answer is None else answer
            body = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        @override
        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requested
        finally:
            server.shutdown()
            thread.join()
