"""A client connects to a broker while its connection to another one is still being made."""

import asyncio

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import BrokerMetadata

from headwater.streams.kafka.aiokafka_patches import mend

ANSWERS, STANDS_STILL = 1, 2


class Connection:
    """As much of one as a client looks at."""

    def __init__(self) -> None:
        self.closed = False

    def connected(self) -> bool:
        return not self.closed

    async def close(self, reason: object) -> None:
        self.closed = True


def a_client() -> AIOKafkaClient:
    client = AIOKafkaClient()
    client.cluster._brokers = {
        ANSWERS: BrokerMetadata(ANSWERS, "answers", 9092, None),
        STANDS_STILL: BrokerMetadata(STANDS_STILL, "stands-still", 9092, None),
    }
    return client


def test_a_broker_that_stands_still_holds_up_no_connection_to_another_one(
    monkeypatch: pytest.MonkeyPatch,
):
    mend()

    async def scenario() -> None:
        made: list[str] = []
        goes_on = asyncio.Event()

        async def create_conn(host: str, *_: object, **__: object) -> Connection:
            if host == "stands-still":
                await goes_on.wait()
            made.append(host)
            return Connection()

        monkeypatch.setattr("aiokafka.client.create_conn", create_conn)
        client = a_client()
        async with asyncio.timeout(10):
            waiting = [asyncio.create_task(client._get_conn(STANDS_STILL)) for _ in range(2)]
            await asyncio.sleep(0)
            assert await client._get_conn(ANSWERS) is await client._get_conn(ANSWERS)
            assert made == ["answers"]
            goes_on.set()
            first, second = await asyncio.gather(*waiting)
        assert first is second
        assert made == ["answers", "stands-still"]

    asyncio.run(scenario())


def test_a_connection_that_is_made_to_a_client_that_was_closed_is_closed(
    monkeypatch: pytest.MonkeyPatch,
):
    mend()

    async def scenario() -> None:
        made = Connection()
        goes_on = asyncio.Event()

        async def create_conn(*_: object, **__: object) -> Connection:
            await goes_on.wait()
            return made

        monkeypatch.setattr("aiokafka.client.create_conn", create_conn)
        client = a_client()
        waiting = asyncio.create_task(client._get_conn(ANSWERS))
        await asyncio.sleep(0)
        await client.close()
        goes_on.set()
        assert await waiting is None
        assert made.closed

    asyncio.run(scenario())
