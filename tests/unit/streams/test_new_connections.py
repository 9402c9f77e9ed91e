"""A client connects to a broker while its connection to another one is still being made."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import BrokerMetadata

from headwater.streams.kafka.aiokafka_patches import mend

ANSWERS, STANDS_STILL = 1, 2


def test_a_broker_that_stands_still_holds_up_no_connection_to_another_one(
    monkeypatch: pytest.MonkeyPatch,
):
    mend()

    async def scenario() -> None:
        made: list[str] = []
        goes_on = asyncio.Event()

        async def create_conn(host: str, *_: object, **__: object) -> SimpleNamespace:
            if host == "stands-still":
                await goes_on.wait()
            made.append(host)
            return SimpleNamespace(connected=lambda: True)

        monkeypatch.setattr("aiokafka.client.create_conn", create_conn)
        client = AIOKafkaClient()
        client.cluster._brokers = {
            ANSWERS: BrokerMetadata(ANSWERS, "answers", 9092, None),
            STANDS_STILL: BrokerMetadata(STANDS_STILL, "stands-still", 9092, None),
        }
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
