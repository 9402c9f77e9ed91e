"""Clients of Kafka whose brokers have just started."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError

from headwater.streams.kafka import cluster as module
from headwater.streams.kafka.cluster import Cluster, admin_client, wait_for_controller


class Admin:
    """An admin client whose broker knows the cluster after some requests for metadata."""

    def __init__(self, unknown: int) -> None:
        self.nodes: set[int] = set()
        self.cluster = SimpleNamespace(controller=None, brokers=lambda: self.nodes)
        self.requests = 0
        self._unknown = unknown
        self._client = self

    async def force_metadata_update(self) -> None:
        await asyncio.sleep(0)
        self.requests += 1
        if self.requests > self._unknown:
            self.cluster.controller = SimpleNamespace(nodeId=1)
            self.nodes.add(1)

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def test_a_controller_that_is_not_known_yet_is_waited_for():
    admin = Admin(unknown=2)
    asyncio.run(wait_for_controller(cast("Any", admin)))
    assert admin.requests == 3


def test_a_controller_that_is_never_named_is_an_error():
    with pytest.raises(KafkaConnectionError, match="expected a controller within"):
        asyncio.run(wait_for_controller(cast("Any", Admin(unknown=1_000)), within_s=0.05))


def test_an_admin_client_waits_for_a_broker_that_lists_no_brokers_yet(
    monkeypatch: pytest.MonkeyPatch,
):
    admin = Admin(unknown=2)
    monkeypatch.setattr(module, "AIOKafkaAdminClient", lambda **_: admin)

    async def requests_before_the_body() -> int:
        async with admin_client(Cluster("kafka:9092")):
            return admin.requests

    assert asyncio.run(requests_before_the_body()) == 3
