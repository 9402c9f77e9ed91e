"""A connection for requests whose responses call back, without a task or a future for each.

aiokafka connects and authenticates. Then its reader is replaced: a response is passed on in the
same iteration of the event loop in which it arrives.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Final, Self

from aiokafka.conn import AIOKafkaConnection, CloseReason, create_conn
from aiokafka.errors import KafkaConnectionError, KafkaError
from typing_extensions import override

from headwater.streams.kafka.cluster import Cluster

#: aiokafka's own limits: for each step of connecting, and after which an idle connection is closed,
#: a minute before brokers close it, so that no request meets that.
_CONNECT_MS: Final = 30_000
_IDLE_MS: Final = 540_000

_SIZE: Final = struct.Struct(">i")


class LeaderConnection(asyncio.Protocol):
    """An authenticated connection to a broker.

    Args:
        connection: A new connection of aiokafka, which this one takes over.
        received: Called with every response, without its size.
        lost: Called once, if the connection is lost.
    """

    def __init__(
        self,
        connection: AIOKafkaConnection,
        received: Callable[[bytes], None],
        lost: Callable[[KafkaError], None],
    ) -> None:
        self._connection = connection
        self._received, self._lost = received, lost
        self._partial = bytearray()
        # aiokafka has no public names for these.
        streams: Any = connection._protocol  # noqa: SLF001
        writer: Any = connection._writer  # noqa: SLF001
        reading: Any = connection._read_task  # noqa: SLF001
        reading.cancel()
        self._streams, self._transport = streams, writer.transport
        self._transport.set_protocol(self)

    @classmethod
    async def open(
        cls,
        cluster: Cluster,
        address: tuple[str, int],
        client_id: str,
        received: Callable[[bytes], None],
        lost: Callable[[KafkaError], None],
    ) -> Self:
        """Connect to a broker.

        Raises:
            KafkaError: The broker refuses the connection.
            OSError: The broker cannot be reached.
        """
        host, port = address
        connection = await create_conn(
            host,
            port,
            client_id=client_id,
            request_timeout_ms=_CONNECT_MS,
            max_idle_ms=_IDLE_MS,
            **cluster.connection_options(),
        )
        if not connection.connected():
            raise KafkaConnectionError(f"{host}:{port} closed the new connection")
        return cls(connection, received, lost)

    @property
    def is_open(self) -> bool:
        """Whether requests may be written."""
        return not self._transport.is_closing()

    def write(self, request: bytes) -> None:
        """Write a request at once."""
        self._was_used()
        self._transport.write(request)

    def _was_used(self) -> None:
        # aiokafka closes connections that were idle since this time.
        self._connection._last_action = self._connection._loop.time()  # noqa: SLF001

    def close(self) -> "asyncio.Future[None]":
        """Close the connection without calling back. The future is done when it is closed."""
        self._received = self._lost = _ignore
        closed: asyncio.Future[None] = self._connection.close(reason=CloseReason.SHUTDOWN)
        return closed

    # -- asyncio's protocol

    @override
    def data_received(self, data: bytes) -> None:
        """Pass on complete responses."""
        self._was_used()
        self._partial += data
        while len(self._partial) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._partial)
            end = _SIZE.size + size
            if len(self._partial) < end:
                return
            response = bytes(self._partial[_SIZE.size : end])
            del self._partial[:end]
            self._received(response)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss, and let aiokafka clean up."""
        self._streams.connection_lost(exc)
        lost = self._lost
        self.close()
        host, port = self._connection.host, self._connection.port
        reason = "by the broker" if exc is None else f": {exc!r}"
        lost(KafkaConnectionError(f"connection to {host}:{port} closed {reason}"))


def _ignore(_: object) -> None:
    """Ignore what arrives after the end."""
