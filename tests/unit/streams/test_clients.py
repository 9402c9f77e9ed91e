"""Clients of Kafka whose brokers have just started."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaConnectionError

from headwater.schemas.codec import READABLE_VERSIONS, Announcement
from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka import cluster as module
from headwater.streams.kafka import membership
from headwater.streams.kafka.cluster import Cluster, admin_client, wait_for_controller

METADATA = ConsumerProtocolMemberMetadata(
    0, ["replies"], msgspec.json.encode(Announcement("workflows w-1", dict(READABLE_VERSIONS)))
).encode()


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

    async def describe_consumer_groups(self, _: list[str]) -> list[Any]:
        self.requests += 1
        known = self.requests > self._unknown
        state, metadata = ("Stable", METADATA) if known else ("PreparingRebalance", b"")
        members = [("id", "client", "host", metadata, b"")]
        return [SimpleNamespace(groups=[(0, membership.GROUP, state, "", "", members)])]

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


def test_members_are_known_when_a_rebalance_has_ended(monkeypatch: pytest.MonkeyPatch):
    admin = Admin(unknown=2)
    admin.nodes.add(1)
    monkeypatch.setattr(module, "AIOKafkaAdminClient", lambda **_: admin)
    running = asyncio.run(membership.running_workers(Cluster("kafka:9092")))
    assert (running, admin.requests) == (["workflows w-1"], 3)


def test_a_rebalance_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch):
    admin = Admin(unknown=1_000)
    admin.nodes.add(1)
    monkeypatch.setattr(module, "AIOKafkaAdminClient", lambda **_: admin)
    monkeypatch.setattr(membership, "_REBALANCED_S", 0.05)
    with pytest.raises(BrokerUnavailable, match=r"to be stable within .* PreparingRebalance"):
        asyncio.run(membership.running_workers(Cluster("kafka:9092")))
