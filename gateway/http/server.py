"""Serving the application: granian inside this process, until SIGTERM or Ctrl-C."""

import asyncio
import logging
import os
import resource  # of POSIX alone, as uvloop is
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
from headwater.streams.garbage import collect_seldom

#: A request's head: all real ones fit in a fraction of it; a larger one is answered 431.
_HEAD_BYTES_MAX = 64 * 1024
#: Milliseconds for the head of a request, from the connection or the answer before it. Slower
#: senders hold connections and nothing else.
_HEAD_TIMEOUT_MS = 10_000
#: Connections at once, some 10 KiB each; more wait in the backlog of the socket. Those whose heads
#: have come are limited by `budget`, so these are what senders of nothing at all have to fill.
_CONNECTIONS_MAX = 8_192
#: Connections that wait to be accepted; Linux holds no more than net.core.somaxconn.
_BACKLOG = 1024
#: Milliseconds that an answer may wait for a reader who takes nothing of it: the kernel then ends
#: the connection. One who reads slowly, or follows a stream, takes a little now and then.
_UNREAD_TIMEOUT_MS = 20_000
#: Open files for everything else: Kafka, Postgres, logs.
_OTHER_FILES = 256


async def serve(app: ASGIApp, *, host: str, port: int, end_streams: Callable[[], None]) -> None:
    """Serves until SIGTERM or SIGINT, then finishes the requests at hand and stops the ports.

    `end_streams` ends the answers that would go on for as long as their readers stay.
    """
    server = listener(app, host=host, port=port)

    def stop() -> None:
        # First, because the server waits for its connections.
        end_streams()
        server.stop()  # type: ignore[no-untyped-call]

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    collect_seldom()
    await server.serve()


class _Server(Server):
    """Granian's server, whose connections end when nobody reads what they have to say."""

    @override
    def _init_shared_socket(self) -> None:
        # Granian has no such limit. Connections have the options of the socket that accepts them.
        holder = SocketSpec(self.bind_addr, self.bind_port, self.backlog).build()
        if sys.platform == "linux":
            with socket.socket(fileno=os.dup(holder.get_fd())) as ours:
                ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_TIMEOUT_MS)
        self._shd = holder  # type: ignore[assignment]


def listener(app: ASGIApp, *, host: str, port: int) -> Server:
    """A server that serves until it is stopped."""
    # Granian announces that its embedded server is young; here it runs one worker, one protocol.
    logging.getLogger("_granian").setLevel(logging.ERROR)
    return _Server(
        app,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=_BACKLOG,
        # Granian's word for the connections that it accepts.
        backpressure=_connections(),
        http1_settings=HTTP1Settings(
            header_read_timeout=_HEAD_TIMEOUT_MS, max_buffer_size=_HEAD_BYTES_MAX
        ),
        log_enabled=False,
    )


def _connections() -> int:
    """How many connections this process can have; asks for as many open files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS_MAX + _OTHER_FILES
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(_CONNECTIONS_MAX, soft - _OTHER_FILES))


def refuse_taken_port(host: str, port: int) -> None:
    """Says so now, in a line, if nobody can listen there.

    Granian shares its port with whoever asks for the same, so two servers would each get a part of
    the requests without a word.

    Errors: ProcessUnavailable.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        why = (error.strerror or "").partition(" (while ")[0]  # the address is said already
        raise ProcessUnavailable(
            f"The gateway cannot listen on {host}:{port}: {why}. Usual cause: another "
            "program or another Headwater listens there. Stop it, or choose a port with --port or "
            "HEADWATER_PORT."
        ) from error
