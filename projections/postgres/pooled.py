"""Holding a pool of connections to Postgres for as long as something is open."""

from typing import Any, Generic, Self, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool

C = TypeVar("C", bound=psycopg.AsyncConnection[Any])


class Pooled(Generic[C]):
    """Base of what speaks to Postgres through a pool of its own.

    Shape:  `pool` is made with `open=False`; each object is opened once.
    """

    def __init__(self, pool: AsyncConnectionPool[C]) -> None:
        self._pool = pool

    async def open(self) -> Self:
        """Opens the pool; does not wait for Postgres, which may come later."""
        await self._pool.open(wait=False)
        return self

    async def close(self) -> None:
        """Closes the pool."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
