"""Reading from Postgres: a pool of connections, and a time limit on every answer.

A reader never waits long for a Postgres that is away: it answers StoreUnavailable within about two
seconds, or within eight where Postgres froze meanwhile, and works again by itself when Postgres
does. When a limit is reached the connection is cut: to cancel a query politely, as psycopg does,
takes a server that listens.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeAlias

from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from headwater.projections.errors import store_edge
from headwater.projections.postgres.pooled import Pooled
from headwater.projections.postgres.schemas import own_dsn
from headwater.projections.postgres.statements import statement

__all__ = ["PAGE_MAX", "PooledReader", "Row", "bounded"]

#: A page of anything; more would hold a whole answer in memory twice.
PAGE_MAX: Final = 10_000
#: Requests that read at the same time; the embedded server takes 50 connections in all.
_CONNECTIONS_MAX: Final = 8
#: How long a request waits for a connection, and so how soon it says that Postgres is away.
_CONNECT_TIMEOUT_S: Final = 2.0
#: After this the pool gives up connecting until somebody asks again; its pauses would grow.
_RECONNECT_TIMEOUT_S: Final = 3.0
#: A frozen server does not even refuse; statement_timeout ends slow queries at 5 s.
_ANSWER_TIMEOUT_S: Final = 8.0

Row: TypeAlias = dict[str, Any]


class PooledReader(Pooled[AsyncConnection[DictRow]]):
    """Answers queries through a pool of connections.

    Errors: StoreUnavailable from every method but `open` and `close`.
    """

    def __init__(
        self,
        dsn: str,
        *,
        connect_timeout_s: float = _CONNECT_TIMEOUT_S,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
        connections_max: int = _CONNECTIONS_MAX,
    ) -> None:
        self._dsn = dsn
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        super().__init__(
            AsyncConnectionPool(
                own_dsn(dsn),
                connection_class=AsyncConnection[DictRow],
                kwargs={
                    "autocommit": True,
                    "row_factory": dict_row,
                    "connect_timeout": int(_CONNECT_TIMEOUT_S),
                    "application_name": "headwater-reader",
                },
                min_size=1,
                max_size=connections_max,
                timeout=connect_timeout_s,
                reconnect_timeout=_RECONNECT_TIMEOUT_S,
                configure=_configure,
                check=_check,
                open=False,
            )
        )

    def apart(self) -> "PooledReader":
        """Return a reader of the same database that has one connection, and a pool of its own."""
        return PooledReader(
            self._dsn,
            connect_timeout_s=self._connect_timeout_s,
            answer_timeout_s=self._answer_timeout_s,
            connections_max=1,
        )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        """A connection for several queries, its errors translated."""
        began_s = asyncio.get_running_loop().time()
        with store_edge("answer a query"):
            async with self._pool.connection() as connection:
                waited_s = asyncio.get_running_loop().time() - began_s
                with _limited(connection, self._answer_timeout_s - waited_s):
                    yield connection

    async def answers(self, query: bytes, **parameters: object) -> list[Row]:
        """The rows of a query; none where a parameter is nothing that Postgres could hold."""
        if not all(_storable(value) for value in parameters.values()):
            return []
        async with self.connection() as connection:
            cursor = await connection.execute(query, parameters)
            return await cursor.fetchall()

    async def writes(
        self, query: bytes, parameters: Mapping[str, object], *, durable: bool = True
    ) -> list[Row]:
        """The rows of a statement that writes, which readers else cannot.

        Shape:  what need not be durable is not waited for until it is on the disk.
        """
        async with (
            self.connection() as connection,
            connection.pipeline() as pipeline,
            connection.transaction(),
        ):
            # All that comes before the statement is sent with it.
            await connection.execute("set transaction read write")
            if not durable:
                await connection.execute("set local synchronous_commit to off")
            cursor = await connection.execute(query, parameters)
            await pipeline.sync()
            return await cursor.fetchall() if cursor.description else []


def bounded(limit: int) -> int:
    """A number of rows to ask for.

    Errors: ValueError beyond 1 to PAGE_MAX.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"expected a limit of 1 to {PAGE_MAX}, found {limit}")
    return limit


def _storable(value: object) -> bool:
    """Tells whether Postgres could hold a value at all; what it cannot hold, nothing equals."""
    if not isinstance(value, str):
        return True
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


@contextmanager
def _limited(connection: AsyncConnection[DictRow], seconds: float) -> Iterator[None]:
    """Cuts a connection that is still in use after some seconds: its query fails at once."""
    cutting = asyncio.get_running_loop().call_later(seconds, _cut, connection)
    try:
        yield
    finally:
        cutting.cancel()


def _cut(connection: AsyncConnection[DictRow]) -> None:
    # The descriptor is libpq's, and stays open; whoever waits for it finds the end of the stream.
    with socket.socket(fileno=os.dup(connection.fileno())) as mine, suppress(OSError):
        mine.shutdown(socket.SHUT_RDWR)


async def _check(connection: AsyncConnection[DictRow]) -> None:
    with _limited(connection, _CONNECT_TIMEOUT_S):
        await AsyncConnectionPool.check_connection(connection)


async def _configure(connection: AsyncConnection[DictRow]) -> None:
    await connection.execute(statement("reader_session"))
