"""An HTTP connection on a bare socket: a client library costs several times what is measured."""

import asyncio
from typing import Final, Self, cast

from typing_extensions import override

_LENGTH: Final = b"content-length: "


class Connection(asyncio.Protocol):
    """A persistent connection: a request, its response, the next request."""

    def __init__(self, port: int, key: str) -> None:
        self._head = f"host: 127.0.0.1:{port}\r\nx-api-key: {key}\r\n"
        self._transport: asyncio.Transport | None = None
        self._status: asyncio.Future[int] | None = None
        self._rest = b""

    @classmethod
    async def open(cls, port: int, key: str) -> Self:
        """Connect to this machine."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(port, key), "127.0.0.1", port)
        return connection

    async def request(
        self, method: str, path: str, body: bytes = b"", *, prefer: str = "", key: str = ""
    ) -> int:
        """Send a request; return the status of its response, which is read completely.

        Args:
            method: Method.
            path: Path.
            body: JSON.
            prefer: The header Prefer.
            key: The header Idempotency-Key.

        Raises:
            ConnectionError: The connection is closed.
        """
        if self._transport is None:
            raise ConnectionError("expected a connection, found it closed")
        lines = [f"{method} {path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n"]
        if body:
            lines.append("content-type: application/json\r\n")
        if prefer:
            lines.append(f"prefer: {prefer}\r\n")
        if key:
            lines.append(f"idempotency-key: {key}\r\n")
        self._status = asyncio.get_running_loop().create_future()
        self._transport.write("".join([*lines, "\r\n"]).encode() + body)
        return await self._status

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is an asyncio.Transport in all but its type.
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._status is not None and not self._status.done():
            self._status.set_exception(exc or ConnectionError("expected a response, found none"))

    @override
    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        head = data.find(b"\r\n\r\n")
        if head < 0 or len(data) < head + 4 + _length(data, head):
            self._rest = data
            return
        self._rest = b""
        if self._status is not None:
            self._status.set_result(int(data[9:12]))


def _length(data: bytes, head: int) -> int:
    at = data.find(_LENGTH, 0, head) + len(_LENGTH)
    return int(data[at : data.find(b"\r", at)])
