"""Serve the application with granian in this process, until SIGTERM or Ctrl-C."""

import asyncio
import logging
import os
import resource  # POSIX only, like uvloop
import signal
import socket
import sys
from collections.abc import Callable

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.net import SocketSpec  # type: ignore[attr-defined]
from granian.server.embed import Server
from litestar.types import ASGIApp
from typing_extensions import override

from headwater.schemas.errors import ProcessUnavailable
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
#: Connections that wait to be accepted; on Linux at most net.core.somaxconn.
_BACKLOG = 1024
#: Milliseconds after which the kernel ends a connection when the client reads nothing of a
#: response. A slow client, or one that follows a stream, reads something from time to time.
_UNREAD_TIMEOUT_MS = 20_000
#: Open files for everything else: Kafka, Postgres, logs.
_OTHER_FILES = 256


async def serve(app: ASGIApp, *, host: str, port: int, end_streams: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish the current requests and stop the ports.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on.
        end_streams: Ends the streaming responses, which would otherwise never finish.
    """
    server = listener(app, host=host, port=port)

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
    """Granian's server with a timeout for clients that do not read their response."""

    @override
    def _init_shared_socket(self) -> None:
        # Granian has no such timeout. Accepted connections inherit the options of the socket.
        holder = SocketSpec(self.bind_addr, self.bind_port, self.backlog).build()
        if sys.platform == "linux":
            with socket.socket(fileno=os.dup(holder.get_fd())) as copy:
                copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_TIMEOUT_MS)
        self._shd = holder  # type: ignore[assignment]


def listener(app: ASGIApp, *, host: str, port: int) -> Server:
    """Return a server that serves until it is stopped."""
    # Granian warns that its embedded server is experimental; it runs one worker and one protocol.
    logging.getLogger("_granian").setLevel(logging.ERROR)
    return _Server(
        app,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=_BACKLOG,
        # Granian's name for the maximum number of connections.
        backpressure=_connections(),
        http1_settings=HTTP1Settings(
            header_read_timeout=_HEAD_TIMEOUT_MS, max_buffer_size=_HEAD_BYTES_MAX
        ),
        log_enabled=False,
    )


def _connections() -> int:
    """Return how many connections this process can have; raise its limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = _CONNECTIONS_MAX + _OTHER_FILES
    if soft < required:
        soft = min(required, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(_CONNECTIONS_MAX, soft - _OTHER_FILES))


def refuse_taken_port(host: str, port: int) -> None:
    """Fail early if the port cannot be listened on.

    Granian sets SO_REUSEPORT, so two servers would silently share the requests.

    Raises:
        PartUnavailable: The port is taken, or the address is not available.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = (error.strerror or "").partition(" (while ")[0]  # repeats the address
        raise ProcessUnavailable(
            f"The gateway cannot listen on {host}:{port}: {reason}. Usual cause: another "
            "program or another Headwater listens there. Stop it, or choose a port with --port or "
            "HEADWATER_PORT."
        ) from error
