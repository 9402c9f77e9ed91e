"""`SyncClient`: the client for code without an event loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Generator
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from typing_extensions import override

from headwater.gateway.client.client import Client

if TYPE_CHECKING:
    from headwater.gateway.client.session import Session

T = TypeVar("T")

#: Longest time that a cancelled call may take to end.
_ENDS_WITHIN_S: Final = 5.0


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
        loop, ended = self._opened_loop(), threading.Event()
        tasks: list[asyncio.Task[T]] = []

        async def result() -> T:
            return await awaitable

        def begin() -> None:
            task = loop.create_task(result())
            task.add_done_callback(lambda _: ended.set())
            tasks.append(task)

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # The interrupt came before the task began.
                ended.set()

        try:
            loop.call_soon_threadsafe(begin)
            ended.wait()
        except BaseException:
            # For example Ctrl-C. Code that cleans up must find the task ended; a result stays.
            loop.call_soon_threadsafe(cancel)
            ended.wait(_ENDS_WITHIN_S)
            raise
        if tasks[0].cancelled():
            raise CancelledError("the client was closed")
        return tasks[0].result()

    def iterate(self, items: AsyncGenerator[T, Any]) -> Generator[T, None, None]:
        """Yield the items of one of the client's methods that return many."""
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield self.run(anext(items))
        finally:
            self.run(items.aclose())

    def close(self) -> None:
        """Close connections, and cancel calls of other threads; a later call opens them again."""
        with _OPENING:
            if self._loop is not None:
                asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
                self._stop(self._loop)

    async def _leave(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.__aexit__(None, None, None)

    def _opened_loop(self) -> asyncio.AbstractEventLoop:
        with _OPENING:
            if self._loop is None:
                self._loop = loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=loop.run_forever, name="headwater client", daemon=True
                )
                self._thread.start()
                try:
                    asyncio.run_coroutine_threadsafe(self.__aenter__(), loop).result()
                except BaseException:
                    self._stop(loop)
                    raise
            return self._loop

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    @property
    @override
    def _entered(self) -> "Session":
        if self._session is None:
            self._opened_loop()
        return super()._entered


#: Held while a client is opened or closed: two threads may begin to use one at the same time.
_OPENING = threading.Lock()
