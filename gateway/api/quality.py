"""Quality of the data: its route, and the states of connections, which are counted meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery, QueryParameter

from headwater.gateway.api.background_query import BackgroundQuery
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

#: Seconds for which a result is current: states change with days.
_CURRENT_S: Final = 300.0
#: After a failure to store the limits of silence.
_AGAIN_S: Final = 30.0
#: Seconds for each statement about deliveries of weeks; analysts have as many.
_STATEMENT_S: Final = 60.0
#: Weeks without a parameter.
_WEEKS: Final = 4
_SOURCE_CHARS: Final = 64


def quality_route(
    reader: PooledReader, connections: BackgroundQuery[ConnectionStates]
) -> HTTPRouteHandler:
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
        # Each connection costs Postgres some 100 µs, so 200,000 of them take 20 seconds.
        self._connections = BackgroundQuery(
            partial(connection_states, self._counting),
            ConnectionStates(),
            what="connections",
            current_s=_CURRENT_S,
        )
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
