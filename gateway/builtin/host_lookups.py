"""Look-ups of the host names of endpoints, apart from those of the rest of the process.

A look-up cannot be canceled, and takes up to 40 s if no name server answers. In the few threads
that the event loop has for it, look-ups of one such name would delay those of all other endpoints,
and new connections to Kafka and Postgres.
"""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address
from typing import Any, TypeAlias

from headwater.processors.endpoint_urls import Address, literal_address

_Infos: TypeAlias = Sequence[tuple[Any, ...]]


class HostLookups:
    """Looks up host names, every name once at a time, in threads of its own.

    Args:
        threads_max: Names that can be looked up at the same time.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads = ThreadPoolExecutor(threads_max, "endpoint-names")
        self._running: dict[str, asyncio.Future[_Infos]] = {}

    def close(self) -> None:
        """Begin no more look-ups; those that run are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses of a host.

        Raises:
            OSError: It has none.
            ValueError: It is no host name.
        """
        address = literal_address(host)
        if address is not None:
            return [address]
        running = self._running.get(host)
        if running is None:
            running = self._begin(host, port)
        # One that stops waiting must not end it for the others.
        infos = await asyncio.shield(running)
        texts = dict.fromkeys(str(info[4][0]).partition("%")[0] for info in infos)
        return [ip_address(text) for text in texts]

    def _begin(self, host: str, port: int) -> asyncio.Future[_Infos]:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        loop = asyncio.get_running_loop()
        running: asyncio.Future[_Infos] = loop.run_in_executor(self._threads, look_up)
        self._running[host] = running

        def end(done: asyncio.Future[_Infos]) -> None:
            del self._running[host]
            # Reads the exception: those that waited for it may have stopped.
            _ = done.cancelled() or done.exception()

        running.add_done_callback(end)
        return running
