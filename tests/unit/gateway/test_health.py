"""What monitors ask without a key: asking often costs no queries."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from litestar.testing import TestClient
from psycopg import AsyncConnection
from typing_extensions import override

from headwater.gateway.api.background_query import BackgroundQuery
from headwater.gateway.api.monitoring import CachedQuery
from headwater.projections.deliveries.quality import ConnectionCount, ConnectionStates
from headwater.projections.deliveries.queries import Reader
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.errors import StoreUnavailable
from tests.unit.gateway.memory_app import memory_app

NOWHERE = "postgresql://headwater@127.0.0.1:1/headwater"


class CountingReader(PooledReader):
    """Counts how often a connection is asked for; none ever comes."""

    asked = 0

    @override
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        self.asked += 1
        async with super().connection() as connection:
            yield connection


class WatchedReader(Reader):
    """A reader whose connection for monitors is counted by itself."""

    def __init__(self) -> None:
        super().__init__(NOWHERE, connect_timeout_s=0.1)
        self.for_monitors = CountingReader(NOWHERE, connect_timeout_s=0.1, connections_max=1)
        self.asked = 0

    @override
    def with_own_pool(self, statement_timeout_s: float = 0) -> PooledReader:
        return self.for_monitors

    @override
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        self.asked += 1
        async with super().connection() as connection:
            yield connection


@pytest.mark.parametrize("path", ["/health/ready", "/metrics"])
def test_many_requests_without_a_key_cost_one_query_and_none_of_the_readers(path: str) -> None:
    reader = WatchedReader()
    with TestClient(memory_app(reader=reader), raise_server_exceptions=False) as client:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: client.get(path).status_code, range(64)))
        assert set(answers) == {200}
        assert client.get(path).status_code == 200
    # The limits of silence were to be stored at the start.
    assert reader.for_monitors.asked == 1 + (3 if path == "/metrics" else 1)
    assert reader.asked == 0


def test_a_reader_apart_has_one_connection_to_the_same_database() -> None:
    reader = Reader(NOWHERE, connect_timeout_s=0.1)
    apart = reader.with_own_pool()
    assert apart._pool.conninfo == reader._pool.conninfo
    assert (apart._pool.max_size, apart is reader) == (1, False)


def test_a_result_is_asked_for_again_when_it_is_old() -> None:
    async def scenario() -> None:
        numbers = iter(range(100))

        async def query() -> int:
            return next(numbers)

        kept = CachedQuery(query, for_s=60)
        assert [await kept.get() for _ in range(3)] == [0, 0, 0]
        forgotten = CachedQuery(query, for_s=0)
        assert [await forgotten.get() for _ in range(3)] == [1, 2, 3]

    asyncio.run(scenario())


def test_a_caller_that_goes_away_does_not_end_the_query_of_the_others() -> None:
    async def scenario() -> None:
        ready, asked = asyncio.Event(), 0

        async def query() -> str:
            nonlocal asked
            asked += 1
            await ready.wait()
            return "here"

        kept = CachedQuery(query, for_s=0)
        callers = [asyncio.create_task(kept.get()) for _ in range(3)]
        await asyncio.sleep(0)
        callers[0].cancel()
        await asyncio.sleep(0)
        ready.set()
        assert await asyncio.gather(*callers[1:]) == ["here", "here"]
        assert asked == 1

    asyncio.run(scenario())


def counted_by(
    count: Callable[[], Awaitable[ConnectionStates]],
) -> BackgroundQuery[ConnectionStates]:
    return BackgroundQuery(count, ConnectionStates(), what="connections", current_s=0)


def states_at(number: int) -> ConnectionStates:
    return ConnectionStates(
        connections=[ConnectionCount(provider="garmin", state="silent", connections=number)],
        counted_at=datetime(2026, 7, 1, tzinfo=UTC),
    )


def test_the_last_numbers_of_connections_stay_while_postgres_is_away(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.gateway.api.background_query._SHARE", math.inf)
    monkeypatch.setattr("headwater.gateway.api.background_query._AGAIN_S", 0.0)

    async def scenario() -> None:
        answers: list[ConnectionStates | None] = [states_at(1), None, None, states_at(2)]

        async def count() -> ConnectionStates:
            answer = answers.pop(0)
            if answer is None:
                raise StoreUnavailable("expected Postgres, found none")
            return answer

        connections = counted_by(count)
        latest = [(await connections.latest()).connections[0].connections for _ in range(4)]
        assert latest == [1, 1, 1, 2]

    asyncio.run(scenario())
    assert [record.message for record in caplog.records if "counted" in record.message] == [
        "connections are not counted, the last numbers stay: expected Postgres, found none"
    ]


def test_who_asks_while_connections_are_counted_gets_the_last_numbers_at_once() -> None:
    async def scenario() -> None:
        counted, asked = asyncio.Event(), 0

        async def count() -> ConnectionStates:
            nonlocal asked
            asked += 1
            await counted.wait()
            return states_at(3)

        connections = counted_by(count)
        first = await asyncio.gather(*(connections.latest(0) for _ in range(5)))
        assert first == [ConnectionStates()] * 5
        counted.set()
        assert await connections.latest() == states_at(3)
        assert asked == 1

    asyncio.run(scenario())
