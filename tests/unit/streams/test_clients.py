"""Clients of Kafka whose brokers have just started."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError

from headwater.streams.kafka.cluster import wait_for_controller


class Admin:
    """An admin client whose broker knows the controller after some requests for metadata."""

    def __init__(self, unknown: int) -> None:
        self.cluster = SimpleNamespace(controller=None)
        self.requests = 0
        self._unknown = unknown
        self._client = self

    async def force_metadata_update(self) -> None:
        await asyncio.sleep(0)
        self.requests += 1
        if self.requests > self._unknown:
            self.cluster.controller = SimpleNamespace(nodeId=1)


def test_a_controller_that_is_not_known_yet_is_waited_for():
    admin = Admin(unknown=2)
    asyncio.run(wait_for_controller(cast("Any", admin)))
    assert admin.requests == 3


def test_a_controller_that_is_never_named_is_an_error():
    with pytest.raises(KafkaConnectionError, match="expected a controller within"):
        asyncio.run(wait_for_controller(cast("Any", Admin(unknown=1_000)), within_s=0.05))
