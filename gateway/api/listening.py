"""Sockets that servers listen on, alone or with others on one port."""

import contextlib
import socket
import sys
from collections.abc import Iterator
from typing import Final

from headwater.schemas.errors import ProcessUnavailable

#: Connections that wait to be accepted; on Linux at most net.core.somaxconn.
BACKLOG: Final = 1024
#: Milliseconds after which the kernel ends a connection when the client reads nothing of a
#: response. A slow client, or one that follows a stream, reads something from time to time.
_UNREAD_TIMEOUT_MS: Final = 20_000


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket that listens. Granian's own would always share its port.

    Args:
        host: Address to listen on.
        port: Port; 0 takes a free one.
        shared: Whether other processes of this user may listen on the port, too. The kernel
            distributes new connections.

    Raises:
        ProcessUnavailable: The port is taken, or the address is not available.
    """
    with _readable_errors(host, port):
        listener = socket.create_server(
            (host, port),
            family=_family(host),
            backlog=BACKLOG,
            reuse_port=shared,
            dualstack_ipv6=":" in host and socket.has_dualstack_ipv6(),
        )
    # Accepted connections inherit the options of the socket.
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_TIMEOUT_MS)
    listener.setblocking(False)
    return listener


def reserve(host: str, port: int) -> socket.socket:
    """Return a socket with a port on which only our child processes listen, as `shared`.

    It does not listen itself. While it is open, other programs cannot take the port, and another
    Headwater gets an error: the port is bound alone, and shared only after that.

    Raises:
        ProcessUnavailable: The port is taken, or the address is not available.
    """
    holder = socket.socket(_family(host), socket.SOCK_STREAM)
    with contextlib.ExitStack() as exits:
        exits.enter_context(_readable_errors(host, port))
        exits.callback(holder.close)
        # As for any server: old connections of an earlier one do not matter.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
        # With this option, another program could bind the port until the first process listens.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        exits.pop_all()
    return holder


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@contextlib.contextmanager
def _readable_errors(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = (error.strerror or "").partition(" (while ")[0]  # repeats the address
        raise ProcessUnavailable(
            f"The gateway cannot listen on {host}:{port}: {reason}. Usual cause: another "
            "program or another Headwater listens there. Stop it, or choose a port with --port or "
            "HEADWATER_PORT."
        ) from error
