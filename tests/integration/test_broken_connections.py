"""A connection that ended unseen is a broken connection, on uvloop too."""

import asyncio

import pytest
import uvloop
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from streams._aiokafka import mend


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
