"""A client connects to a broker while its connection to another one is still being made."""

import asyncio

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import BrokerMetadata

from headwater.streams.kafka.aiokafka_patches import patch_aiokafka

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
    patch_aiokafka()

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
        async with asyncio.timeout(60):
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
    patch_aiokafka()

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


def test_who_gives_up_while_the_first_broker_is_asked_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
):
    patch_aiokafka()

    async def scenario() -> None:
        requested, ended = asyncio.Event(), asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(4)
            requested.set()
            while await reader.read(1024):
                pass
            ended.set()
            writer.close()

        async def versions(self: AIOKafkaConnection) -> None:
            self._versions = {MetadataRequest([]).API_KEY: (0, 0)}

        monkeypatch.setattr(AIOKafkaConnection, "_do_version_lookup", versions)
        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{port}")
        async with server, asyncio.timeout(60):
            starting = asyncio.create_task(client.bootstrap())
            await requested.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            await ended.wait()

    asyncio.run(scenario())
