"""What aiokafka makes of a broker that goes away, mended: nothing stops for good without a word."""

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from headwater.schemas.topics import EVENTS
from headwater.streams.kafka.aiokafka_patches import patch_aiokafka
from tests.waiting import until


def test_writing_to_a_connection_that_has_ended_unseen_finds_it_broken(kafka: str):
    patch_aiokafka()
    host, port = kafka.split(":")

    async def scenario() -> None:
        connection: AIOKafkaConnection = await create_conn(host, int(port))
        assert connection._writer is not None
        connection._writer.transport.abort()
        # The transport is closed now, and the task that reads has not had its turn yet.
        await asyncio.sleep(0)
        with pytest.raises(KafkaConnectionError, match="broken: unable to perform"):
            connection.send(MetadataRequest([]))
        assert not connection.connected()

    uvloop.run(scenario())


def test_a_consumer_whose_fetch_has_just_failed_is_stopped_like_any_other(topics: str):
    patch_aiokafka()

    async def scenario() -> None:
        where = TopicPartition(EVENTS, 0)
        consumer = AIOKafkaConsumer(bootstrap_servers=topics, retry_backoff_ms=60_000)
        await consumer.start()
        consumer.assign([where])
        consumer.seek(where, 0)
        await consumer.getmany(timeout_ms=200)
        for connection in consumer._client._conns.values():
            connection.close()
        # Now it rests before it fetches again.
        await asyncio.sleep(0.1)
        assert consumer._fetcher._pending_tasks
        await consumer.stop()
        assert not [one for one in consumer._client._conns.values() if one.connected()]

    uvloop.run(scenario())


def consumer_of_group(bootstrap: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(EVENTS, bootstrap_servers=bootstrap, group_id=f"g-{uuid4()}")


def lone_consumer(bootstrap: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(EVENTS, bootstrap_servers=bootstrap)


def producer(bootstrap: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"g-{uuid4()}")


async def turns(count: int) -> None:
    """Lets what is under way have some turns."""
    for _ in range(count):
        await asyncio.sleep(0)


CLIENTS = [consumer_of_group, lone_consumer, producer]


@pytest.mark.parametrize("client_of", CLIENTS)
def test_whoever_gives_up_while_it_stops_a_client_leaves_nothing_open(
    topics: str, client_of: Callable[[str], AIOKafkaConsumer | AIOKafkaProducer]
):
    patch_aiokafka()

    async def give_up_after(count: int) -> bool:
        client = client_of(topics)
        await client.start()
        await turns(5)
        stopping = asyncio.create_task(client.stop())
        await turns(count)
        stopped = stopping.done()
        stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled() != stopped, "a cancellation was lost"
        await assert_that_all_ends(client)
        return stopped

    async def scenario() -> None:
        count = 1
        while not await give_up_after(count):
            count *= 2
        assert count > 1

    uvloop.run(scenario())


@pytest.mark.parametrize("client_of", CLIENTS)
def test_whoever_gives_up_while_it_starts_a_client_leaves_nothing_open(
    topics: str, client_of: Callable[[str], AIOKafkaConsumer | AIOKafkaProducer]
):
    patch_aiokafka()

    async def give_up_after(within_s: float) -> bool:
        client = client_of(topics)
        try:
            async with asyncio.timeout(within_s):
                await client.start()
        except TimeoutError:
            await assert_that_all_ends(client)
            return False
        await client.stop()
        return True

    async def scenario() -> None:
        within_s = 0.001
        while not await give_up_after(within_s):
            within_s *= 1.5

    uvloop.run(scenario())


async def assert_that_all_ends(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    of_client = client._client if isinstance(client, AIOKafkaConsumer) else client.client
    assert not [one for one in of_client._conns.values() if one.connected()]
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, within_s=10)
