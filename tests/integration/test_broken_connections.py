"""What aiokafka makes of a broker that goes away, mended: nothing stops for good without a word."""

import asyncio

import pytest
import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from headwater.schemas.topics import EVENTS
from headwater.streams.kafka.aiokafka_patches import mend


def test_writing_to_a_connection_that_has_ended_unseen_finds_it_broken(kafka: str):
    mend()
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
    mend()

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
