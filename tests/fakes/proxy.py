"""A network that can be made bad: a TCP proxy between a part and its server.

Real sockets on both sides, in a thread of its own. What is held is not read, so that the sender's
kernel keeps it and sends it on when the network is whole again, as after a real outage: nothing is
lost within a connection, and nobody is told. `drop` ends connections; with `half_open` the client
is not told, like behind a firewall that forgot them.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self

_CHUNK: Final = 64 * 1024


class _Pipe:
    """One direction of all connections."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.delay_s = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self.open.wait()
            data = await reader.read(_CHUNK)
            # What arrives while it is held is not passed on either.
            await self.open.wait()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


class Proxy:
    """A proxy to one address; `address` is where it listens once it is entered."""

    def __init__(self, target: Callable[[], str]) -> None:
        """Takes the target as a function: a broker's port is known only when it has started."""
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        #: Connections by their client's end, each with what carries its bytes.
        self._connections: dict[asyncio.StreamWriter, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self.address = self._ask(self._listen())
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self._ask(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- what a test does to the network

    def hold(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Lets nothing pass, in one direction or both; connections stay, and new ones wait."""
        self._ask(self._set(to_server=not to_server, to_client=not to_client))

    def heal(self) -> None:
        """Lets everything pass again, at once."""
        self._ask(self._set(to_server=True, to_client=True))
        self.delay(0.0)

    def delay(self, seconds: float) -> None:
        """Lets everything arrive later, each way."""
        self._ask(self._delay(seconds))

    def drop(self, *, half_open: bool = False) -> None:
        """Ends all connections: for both sides, or without the client's knowing."""
        self._ask(self._drop(half_open=half_open))

    # -- inside

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _ask(self, what: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 (whatever it gives)
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _listen(self) -> str:
        self._to_server, self._to_client = _Pipe(), _Pipe()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._connect(reader, writer)
        writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A network that is cut lets nobody reach the server, and tells nobody.
        await self._to_server.open.wait()
        host, port = self._target().rsplit(":", 1)
        from_server, to_server = await asyncio.open_connection(host, int(port))
        self._connections[writer] = asyncio.gather(
            self._to_server.carry(reader, to_server), self._to_client.carry(from_server, writer)
        )
        try:
            await self._connections[writer]
        finally:
            half_open = self._connections.pop(writer, None) is None
            to_server.transport.abort()
            if half_open:
                await asyncio.Event().wait()  # The client's end stays, until all ends.

    async def _set(self, *, to_server: bool, to_client: bool) -> None:
        for pipe, passes in ((self._to_server, to_server), (self._to_client, to_client)):
            pipe.open.set() if passes else pipe.open.clear()

    async def _delay(self, seconds: float) -> None:
        self._to_server.delay_s = self._to_client.delay_s = seconds

    async def _drop(self, *, half_open: bool) -> None:
        for writer, carrying in list(self._connections.items()):
            if half_open:
                del self._connections[writer]
            carrying.cancel()

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
