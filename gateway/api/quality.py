"""Quality of the data: its route, and the states of connections, which are counted meanwhile."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery, QueryParameter

from headwater.gateway.api.json_bodies import check_texts
from headwater.gateway.api.openapi import problem_responses
from headwater.processors.api_keys import Scope
from headwater.projections.deliveries.quality import (
    WEEKS_MAX,
    ConnectionStates,
    Quality,
    connection_states,
    quality,
    store_silence_limits,
)
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.errors import StoreUnavailable

log = logging.getLogger(__name__)

#: Seconds for which a result is current: states change with days.
_CURRENT_S: Final = 300.0
#: Counting takes at most this share of the time, so that a slow Postgres is not busy with it.
_SHARE: Final = 1 / 20
#: After a failure.
_AGAIN_S: Final = 30.0
#: Seconds that a caller waits for a result that is not there yet.
_WITHIN_S: Final = 4.0
#: Seconds for each statement about deliveries of weeks; analysts have as many.
_STATEMENT_S: Final = 60.0
#: Weeks without a parameter.
_WEEKS: Final = 4
_SOURCE_CHARS: Final = 64


class CountedConnections:
    """States of all connections, counted in the background while they are requested.

    Each connection costs Postgres some 100 µs, so 200,000 of them take 20 seconds: callers get the
    latest result, also while they cannot be counted.
    """

    def __init__(self, count: Callable[[], Awaitable[ConnectionStates]]) -> None:
        self._count = count
        self._latest = ConnectionStates()
        self._counting: asyncio.Task[None] | None = None
        self._due_s = 0.0
        self._failed = False

    async def latest(self, within_s: float = _WITHIN_S) -> ConnectionStates:
        """Return the latest result; wait a moment for a new one if it is due."""
        loop = asyncio.get_running_loop()
        if self._counting is None or (self._counting.done() and loop.time() >= self._due_s):
            self._counting = loop.create_task(self._renew(), name="count connections")
        if not self._counting.done():
            await asyncio.wait([self._counting], timeout=within_s)
        return self._latest

    async def stop(self) -> None:
        """Stop counting."""
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait([self._counting])

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        began_s, pause_s = loop.time(), _AGAIN_S
        try:
            self._latest = await self._count()
            pause_s = max(_CURRENT_S, (loop.time() - began_s) / _SHARE)
            self._failed = False
        except StoreUnavailable as error:
            if not self._failed:
                log.warning("connections are not counted, the last numbers stay: %s", error)
            self._failed = True
        finally:
            self._due_s = loop.time() + pause_s


def quality_route(reader: PooledReader, connections: CountedConnections) -> HTTPRouteHandler:
    """Return the route of the quality of the data.

    Args:
        reader: Reads Postgres over its own connection, for as long as weeks of deliveries take.
        connections: States of connections.
    """
    one_at_a_time = asyncio.Lock()

    @get(
        "/quality",
        scope=Scope.DELIVERIES_READ,
        summary="Quality of the data by week",
        description="By week, source and provider: deliveries by outcome, duplicates, rows, values "
        "that were dropped, deliveries that were skipped, late days, and days without data of "
        "active connections. Then active connections by state, and those that receive no data, as "
        "of some minutes ago; `connections_counted_at` is null while they are counted for the "
        "first time. One request is answered at a time; with millions of deliveries a week it may "
        "take a minute.",
        responses=problem_responses("invalid_parameter", "store_unavailable"),
    )
    async def data_quality(
        weeks: Annotated[
            int,
            QueryParameter(ge=1, le=WEEKS_MAX, description="Number of weeks, this one included."),
        ] = _WEEKS,
        source: FromQuery[str | None] = None,
    ) -> Quality:
        check_texts(_SOURCE_CHARS, source=source)
        states = await connections.latest()
        async with one_at_a_time:
            return await quality(reader, states, weeks=weeks, source=source)

    return data_quality


class DataQuality:
    """The quality of the data, read over connections of its own.

    Args:
        reader: Names the database.
        limits: After how many days connections are silent, by source and maker.
    """

    def __init__(self, reader: PooledReader, limits: Mapping[str, Mapping[str, int]]) -> None:
        self._limits = limits
        self._counting = reader.with_own_pool()
        self._analyzing = reader.with_own_pool(_STATEMENT_S)
        self._connections = CountedConnections(partial(connection_states, self._counting))
        self.route = quality_route(self._analyzing, self._connections)
        #: Returns the latest states of connections.
        self.counted = self._connections.latest

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the connections, and store the limits as soon as Postgres is there."""
        async with self._counting, self._analyzing:
            storing = asyncio.create_task(self._store_limits(), name="store limits of silence")
            try:
                yield
            finally:
                storing.cancel()
                await asyncio.wait([storing])
                await self._connections.stop()

    async def _store_limits(self) -> None:
        while True:
            try:
                await store_silence_limits(self._counting, self._limits)
            except StoreUnavailable:
                await asyncio.sleep(_AGAIN_S)
            else:
                return
