"""Serve the application with granian in this process, until SIGTERM or Ctrl-C."""

import asyncio
import logging
import resource  # POSIX only, like uvloop
import signal
import socket
from collections.abc import Callable

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.net import SocketHolder  # type: ignore[attr-defined]
from granian.server.embed import Server
from litestar.types import ASGIApp
from typing_extensions import override

from headwater.gateway.api.listening import BACKLOG
from headwater.streams.process_tuning import collect_seldom

#: Bytes of a request's headers: real ones need a fraction of it; larger ones are answered 431.
_HEAD_BYTES_MAX = 64 * 1024
#: Milliseconds for the headers of a request, from the connection or the previous response. Slower
#: senders occupy a connection and nothing else.
_HEAD_TIMEOUT_MS = 10_000
#: Concurrent connections; one takes about 10 KiB; more wait in the backlog of the socket. Requests
#: with complete headers are limited by `body_limits`, so this bounds clients that send nothing at
#: all.
_CONNECTIONS_MAX = 8_192
#: Open files for everything else: Kafka, Postgres, logs.
_OTHER_FILES = 256


async def serve(app: ASGIApp, listening: socket.socket, *, end_streams: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish the current requests and stop the ports.

    Args:
        app: The application.
        listening: Listening socket, which is closed at the end.
        end_streams: Ends the streaming responses, which would otherwise never finish.
    """
    server = server_of(app, listening)

    def stop() -> None:
        # Before the server stops, because it waits for its connections.
        end_streams()
        server.stop()  # type: ignore[no-untyped-call]

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    collect_seldom()
    await server.serve()


class _Server(Server):
    """Granian's server on a socket that listens already; granian's own has other options."""

    #: Set before it serves.
    listening: socket.socket

    @override
    def _init_shared_socket(self) -> None:
        held = SocketHolder(self.listening.detach(), False, BACKLOG)  # type: ignore[call-arg]
        self._shd = held  # type: ignore[assignment]


def server_of(app: ASGIApp, listening: socket.socket) -> Server:
    """Return a server on a listening socket, which serves until it is stopped."""
    # Granian warns that its embedded server is experimental; it runs one worker and one protocol.
    logging.getLogger("_granian").setLevel(logging.ERROR)
    host, port = listening.getsockname()[:2]
    server = _Server(
        app,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=BACKLOG,
        # Granian's name for the maximum number of connections.
        backpressure=_connections(),
        http1_settings=HTTP1Settings(
            header_read_timeout=_HEAD_TIMEOUT_MS, max_buffer_size=_HEAD_BYTES_MAX
        ),
        log_enabled=False,
    )
    server.listening = listening
    return server


def _connections() -> int:
    """Return how many connections this process can have; raise its limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = _CONNECTIONS_MAX + _OTHER_FILES
    if soft < required:
        soft = min(required, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(_CONNECTIONS_MAX, soft - _OTHER_FILES))
