"""Connections to Postgres: the schemas they search, pools, and reads with a time limit.

Headwater's tables are in a schema of their own, `headwater` unless a DSN states another one. Only
the migrating login can create objects there. Authors' tables are in `authors`, where the SQL of
steps can create objects, too. A function there could shadow one that Headwater calls without a
schema, so no connection of Headwater has `authors` or `public` in its search path.
"""

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from headwater.projections.errors import store_edge
from headwater.projections.postgres.statements import statement

HEADWATER: Final = "headwater"
AUTHORS: Final = "authors"
#: The setting of a session by which a DSN states the schema.
_SETTING: Final = "headwater.schema"
_STATED: Final = re.compile(rf"-c {re.escape(_SETTING)}=(\w+)")


@dataclass(frozen=True, slots=True)
class Schemas:
    """Schemas and roles of an installation, which shares the database with others.

    Attributes:
        tables: Schema of Headwater's tables; all other names derive from it.
    """

    tables: str = HEADWATER

    @property
    def authors(self) -> str:
        """Schema of authors' tables."""
        return AUTHORS if self.tables == HEADWATER else f"{self.tables}_{AUTHORS}"

    @property
    def steps(self) -> str:
        """Role of the SQL of steps, and schema of the functions that it may call."""
        return f"{self.tables}_steps"

    @property
    def rebuilt(self) -> str:
        """Schema of rebuilt tables."""
        return f"{self.tables}_rebuilt"

    def named_in(self, query: bytes) -> bytes:
        """Return SQL with the names for `{schema}` and `{authors}`."""
        return query.replace(b"{schema}", self.tables.encode()).replace(
            b"{authors}", self.authors.encode()
        )


def in_schema(dsn: str, schema: str) -> str:
    """Return a DSN that states the schema of Headwater's tables; `schemas_of` returns it."""
    return with_settings(dsn, **{_SETTING: schema})


def schemas_of(dsn: str) -> Schemas:
    """Return the schemas that a DSN states, or the default ones."""
    try:
        options = conninfo_to_dict(dsn).get("options") or ""
    except psycopg.ProgrammingError:
        return Schemas()  # Connecting reports it.
    return Schemas(*_STATED.findall(str(options))[-1:])


def own_dsn(dsn: str, *first: str) -> str:
    """Return a DSN whose sessions find only Headwater's objects.

    Postgres searches `pg_catalog` first implicitly; it must not be named, because if Headwater's
    schema is missing, a session would create objects there.

    Args:
        dsn: As operators write it; a search path in its options has no effect.
        first: Schemas of Headwater to search before that of its tables.
    """
    return with_search_path(dsn, *first, schemas_of(dsn).tables)


def with_search_path(dsn: str, *schemas: str) -> str:
    """Return a DSN whose sessions search these schemas."""
    return with_settings(dsn, search_path=",".join(schemas))


def with_settings(dsn: str, **settings: str) -> str:
    """Return a DSN whose sessions have these settings, also after `reset all`.

    Args:
        dsn: As operators write it. An invalid one comes back unchanged: connecting reports it.
        settings: Values without spaces. They win over those of the DSN, the role and the database.
    """
    try:
        options = conninfo_to_dict(dsn).get("options") or ""
    except psycopg.ProgrammingError:
        return dsn
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return make_conninfo(dsn, options=f"{options} {ours}".lstrip())


# -- pools

C = TypeVar("C", bound=psycopg.AsyncConnection[Any])


class Pooled(Generic[C]):
    """Base of objects that use Postgres through their own pool.

    `pool` must be created with `open=False`; each object is opened once.
    """

    def __init__(self, pool: AsyncConnectionPool[C]) -> None:
        self._pool = pool

    async def open(self) -> Self:
        """Open the pool without waiting for Postgres, which may start later."""
        await self._pool.open(wait=False)
        return self

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# -- reads

#: Maximum rows of a page, because a response is in memory twice.
PAGE_MAX: Final = 10_000
#: Concurrent queries; the embedded server allows 200 connections in total.
_CONNECTIONS_MAX: Final = 8
#: How long a request waits for a connection before it reports that Postgres is unavailable.
_CONNECT_TIMEOUT_S: Final = 2.0
#: After this the pool stops reconnecting until the next request; its backoff would grow.
_RECONNECT_TIMEOUT_S: Final = 3.0
#: The server cancels slower queries.
_STATEMENT_TIMEOUT_S: Final = 5.0
#: For a frozen server that does not answer.
_ANSWER_TIMEOUT_S: Final = 8.0

Row: TypeAlias = dict[str, Any]


class PooledReader(Pooled[AsyncConnection[DictRow]]):
    """Runs queries through a pool of connections.

    A reader does not wait long for an unavailable Postgres: a read fails within about two seconds,
    or eight if Postgres froze during the query, and the reader recovers by itself. At the limit the
    connection is cut, because canceling a query with psycopg requires a responsive server.

    All methods except `open` and `close` raise StoreUnavailable.
    """

    def __init__(
        self,
        dsn: str,
        *,
        connect_timeout_s: float = _CONNECT_TIMEOUT_S,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
        connections_max: int = _CONNECTIONS_MAX,
        statement_timeout_s: float = _STATEMENT_TIMEOUT_S,
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
                # Long statements are rare.
                min_size=0 if statement_timeout_s > _STATEMENT_TIMEOUT_S else 1,
                max_size=connections_max,
                timeout=connect_timeout_s,
                reconnect_timeout=_RECONNECT_TIMEOUT_S,
                configure=partial(_configure, statement_timeout_s),
                check=_check,
                open=False,
            )
        )

    def with_own_pool(self, statement_timeout_s: float = _STATEMENT_TIMEOUT_S) -> "PooledReader":
        """Return a reader of the same database with its own pool of one connection."""
        longer_s = max(0.0, statement_timeout_s - _STATEMENT_TIMEOUT_S)
        return PooledReader(
            self._dsn,
            connect_timeout_s=self._connect_timeout_s,
            answer_timeout_s=self._answer_timeout_s + longer_s,
            connections_max=1,
            statement_timeout_s=statement_timeout_s,
        )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        """Yield a connection for several queries, with translated errors."""
        began_s = asyncio.get_running_loop().time()
        with store_edge("answer a query"):
            async with self._pool.connection() as connection:
                waited_s = asyncio.get_running_loop().time() - began_s
                with _limited(connection, self._answer_timeout_s - waited_s):
                    yield connection

    async def answers(self, query: bytes, **parameters: object) -> list[Row]:
        """Return the rows of a query; none if a parameter is a value that Postgres cannot store."""
        if not all(_storable(value) for value in parameters.values()):
            return []
        async with self.connection() as connection:
            cursor = await connection.execute(query, parameters)
            return await cursor.fetchall()

    async def writes(
        self, query: bytes, parameters: Mapping[str, object], *, durable: bool = True
    ) -> list[Row]:
        """Run a statement that writes, which readers otherwise cannot, and return its rows.

        Without `durable`, the commit does not wait for the disk.
        """
        async with (
            self.connection() as connection,
            connection.pipeline() as pipeline,
            connection.transaction(),
        ):
            # The preceding statements are sent together with it.
            await connection.execute("set transaction read write")
            if not durable:
                await connection.execute("set local synchronous_commit to off")
            cursor = await connection.execute(query, parameters)
            await pipeline.sync()
            return await cursor.fetchall() if cursor.description else []


def bounded(limit: int) -> int:
    """Return a number of rows that is in range.

    Raises:
        ValueError: It is not within 1 to PAGE_MAX.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"expected a limit of 1 to {PAGE_MAX}, found {limit}")
    return limit


def _storable(value: object) -> bool:
    """Whether Postgres could store a value; one that it cannot store equals no row."""
    if not isinstance(value, str):
        return True
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


@contextmanager
def _limited(connection: AsyncConnection[DictRow], seconds: float) -> Iterator[None]:
    """Cut a connection that is still in use after some seconds: its query fails at once."""
    cutting = asyncio.get_running_loop().call_later(seconds, _cut, connection)
    try:
        yield
    finally:
        cutting.cancel()


def _cut(connection: AsyncConnection[DictRow]) -> None:
    # libpq owns the descriptor, which stays open; its reader sees the end of the stream.
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate, suppress(OSError):
        duplicate.shutdown(socket.SHUT_RDWR)


async def _check(connection: AsyncConnection[DictRow]) -> None:
    with _limited(connection, _CONNECT_TIMEOUT_S):
        await AsyncConnectionPool.check_connection(connection)


async def _configure(statement_timeout_s: float, connection: AsyncConnection[DictRow]) -> None:
    parameters = {"statement_timeout": f"{statement_timeout_s:g}s"}
    await connection.execute(statement("reader_session"), parameters)
