"""Base class of objects with a pool of connections to Postgres."""

from typing import Any, Generic, Self, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool

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
