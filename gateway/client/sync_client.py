"""`SyncClient`: the client for code without an event loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from typing_extensions import override

from headwater.gateway.client.client import Client

if TYPE_CHECKING:
    from headwater.gateway.client.session import Session

T = TypeVar("T")


class SyncClient(Client):
    """Client of a server's workflows for code without an event loop, as in Django or Celery.

    It has the methods of `Client`, and so have its handles. `run` is used in place of `await`, and
    `iterate` in place of `async for`:

        with SyncClient("http://127.0.0.1:8080/api/workflows", key="…") as client:
            instance = client.run(client.workflow("order").create(params={"sku": "x"}))
            output = client.run(instance.result(timeout="1 minute"))
            for failed in client.iterate(client.instances("errored")): ...

    Any thread may use it. It connects at the first call, so it may be made before a server forks,
    but not be used before. `close` is optional at the end of a process.
    """

    # All requests run on one event loop, in a thread of its own. Methods that do not have to be
    # awaited would be a second set of handles, kept in step by hand; a loop for each call would
    # also connect for each call, and could not be shared by threads.
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, awaitable: Awaitable[T]) -> T:
        """Wait for the result of one of the client's methods; may raise what the method raises."""

        async def result() -> T:
            return await awaitable

        future = asyncio.run_coroutine_threadsafe(result(), self._opened_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # For example after Ctrl-C; a result is not affected.
            raise

    def iterate(self, items: AsyncGenerator[T, Any]) -> Generator[T, None, None]:
        """Yield the items of one of the client's methods that return many."""
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield self.run(anext(items))
        finally:
            self.run(items.aclose())

    def close(self) -> None:
        """Close connections; a later call opens them again."""
        with _OPENING:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self.__aexit__(None, None, None), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def _opened_loop(self) -> asyncio.AbstractEventLoop:
        with _OPENING:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="headwater client", daemon=True
                )
                self._thread.start()
                asyncio.run_coroutine_threadsafe(self.__aenter__(), self._loop).result()
            return self._loop

    @property
    @override
    def _entered(self) -> "Session":
        if self._session is None:
            self._opened_loop()
        return super()._entered


#: Held while a client is opened or closed: two threads may begin to use one at the same time.
_OPENING = threading.Lock()
