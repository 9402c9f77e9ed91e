"""Brokers may hold fetches for long, and nothing waits for the end of one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import StaleMetadata
from aiokafka.structs import PartitionMetadata, TopicPartition

from headwater.streams.kafka import aiokafka_patches, idle_fetches, truncation
from headwater.streams.kafka.aiokafka_patches import patch_aiokafka
from headwater.streams.kafka.idle_fetches import IDLE_FETCH_MS
from tests.waiting import until

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
NODE, LONG_MS, PARTIAL_MS, SHORT_MS = 1, 250, 50, 25


def a_cluster(*led: TopicPartition) -> ClusterMetadata:
    cluster = ClusterMetadata(metadata_max_age_ms=60_000)
    cluster._partitions["t"] = {
        item.partition: PartitionMetadata(
            "t", item.partition, NODE if item in led else -1, [NODE], [NODE], None
        )
        for item in (ONE, OTHER)
    }
    return cluster


async def waits_of_fetches(wait_ms: int, unlike: str) -> list[int]:
    """How long the broker may hold what a consumer asks for, and may be something is unlike."""
    cluster = a_cluster(ONE, OTHER)
    client = SimpleNamespace(
        _loop=asyncio.get_running_loop(), _metadata_max_age_ms=1_000, cluster=cluster
    )
    subscriptions = SubscriptionState()
    fetcher = Fetcher(client, subscriptions, fetch_max_wait_ms=wait_ms)
    subscriptions.assign_from_user([ONE, OTHER])
    assignment = subscriptions.subscription.assignment
    assignment.state_value(ONE).reset_to(7)
    assignment.state_value(OTHER).reset_to(7)
    if unlike == "paused":
        assignment.state_value(OTHER).pause()
    if unlike == "worked on":
        fetcher._records[OTHER] = SimpleNamespace(calculate_backoff=lambda: 0)
    requests, *_ = fetcher._get_actions_per_node(assignment)
    fetcher._fetch_task.cancel()
    return [request._max_wait_ms for _, request in requests]


@pytest.mark.parametrize(
    ("wait_ms", "unlike", "expected"),
    [
        (LONG_MS, "nothing", LONG_MS),
        (LONG_MS, "worked on", PARTIAL_MS),
        (LONG_MS, "paused", PARTIAL_MS),
        (SHORT_MS, "nothing", SHORT_MS),
        (SHORT_MS, "worked on", SHORT_MS),
    ],
)
def test_only_a_fetch_that_leaves_no_partition_out_may_take_long(
    wait_ms: int, unlike: str, expected: int
):
    patch_aiokafka()
    assert asyncio.run(waits_of_fetches(wait_ms, unlike)) == [expected]


class Connection:
    """A connection whose broker holds every fetch."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self, **_: object) -> None:
        self.is_closed = True


class HoldingClient(AIOKafkaClient):
    """A client whose fetches are never answered; `fetches` are their positions."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._metadata_max_age_ms = 60_000
        self.cluster = a_cluster(ONE, OTHER)
        self._conns = {}
        self.connections: list[Connection] = []
        self.fetches: list[dict[TopicPartition, int]] = []

    async def hold(self, node_id: int, request: Any, *, group: ConnectionGroup) -> None:  # noqa: ANN401
        assert group not in list(ConnectionGroup), "what is requested besides would wait for it"
        if (node_id, group) not in self._conns:
            self.connections.append(Connection())
            self._conns[node_id, group] = self.connections[-1]
        self.fetches.append(
            {
                TopicPartition(topic, number): offset
                for topic, partitions in request.topics
                for number, offset, _ in partitions
            }
        )
        await asyncio.Event().wait()


class Holding:
    """A consumer of two partitions whose first fetch is held."""

    def __init__(self) -> None:
        self.client = HoldingClient()
        self.subscriptions = SubscriptionState()
        self.fetcher = Fetcher(self.client, self.subscriptions, fetch_max_wait_ms=IDLE_FETCH_MS)
        self.consumer = SimpleNamespace(_fetcher=self.fetcher, _subscription=self.subscriptions)

    def assign(self, *partitions: TopicPartition) -> None:
        self.subscriptions.assign_from_user(partitions)
        for item in partitions:
            self.fetcher.seek_to(item, 7)

    def seek(self) -> None:
        self.fetcher.seek_to(OTHER, 3)

    def reassign(self) -> None:
        self.assign(OTHER)

    def pause_and_resume(self) -> None:
        self.subscriptions.pause(OTHER)
        self.seek()
        AIOKafkaConsumer.resume(self.consumer, OTHER)  # type: ignore[arg-type]

    def resume(self) -> None:
        self.subscriptions.pause(OTHER)
        AIOKafkaConsumer.resume(self.consumer, OTHER)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "fetched"),
    [
        (Holding.seek, {ONE: 7, OTHER: 3}),
        (Holding.pause_and_resume, {ONE: 7, OTHER: 3}),
        (Holding.reassign, {OTHER: 7}),
        (Holding.resume, None),
    ],
)
def test_a_held_fetch_is_abandoned_only_for_other_positions(
    change: Any,  # noqa: ANN401
    fetched: dict[TopicPartition, int] | None,
    monkeypatch: pytest.MonkeyPatch,
):
    patch_aiokafka()
    monkeypatch.setattr(idle_fetches, "_SEND_REQUEST", HoldingClient.hold)

    async def scene() -> None:
        holding = Holding()
        client = holding.client
        holding.assign(ONE, OTHER)
        await until(lambda: client.fetches)
        change(holding)
        if fetched is None:
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(client.fetches) == 1
        else:
            await until(lambda: len(client.fetches) > 1)
            assert client.fetches == [{ONE: 7, OTHER: 7}, fetched]
            assert [connection.is_closed for connection in client.connections] == [True, False]
        await holding.fetcher.close()
        assert client.connections[-1].is_closed, "a broker need not hold what nobody waits for"

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("led", "topics", "age_ms"),
    [
        ((ONE, OTHER), {"t"}, 30_000),
        ((ONE,), {"t"}, 3_000),
        ((ONE, OTHER), {"t", "u"}, 3_000),
        ((), set[str](), 30_000),
    ],
)
def test_metadata_that_lacks_a_topic_or_a_leader_is_soon_refreshed(
    led: tuple[TopicPartition, ...],
    topics: set[str],
    age_ms: int,
    monkeypatch: pytest.MonkeyPatch,
):
    async def updated(*_: object) -> bool:
        return True

    patch_aiokafka()
    monkeypatch.setattr(aiokafka_patches, "_UPDATE_METADATA", updated)

    async def scene() -> None:
        client = HoldingClient()
        client.cluster = a_cluster(*led)
        assert await client._metadata_update(client.cluster, topics)
        assert client._metadata_max_age_ms == age_ms

    asyncio.run(scene())


def test_the_metadata_of_all_topics_is_requested_before_their_offsets():
    patch_aiokafka()

    async def scene() -> None:
        topics: list[str] = []
        client = SimpleNamespace(cluster=a_cluster(), add_topic=topics.append)

        async def requested() -> None:
            topics.append("waited")

        client._maybe_wait_metadata = requested
        fetcher = SimpleNamespace(_client=client)
        unknown = {TopicPartition(topic, 0): -1 for topic in ("a", "b", "c")}
        with pytest.raises(StaleMetadata):
            await Fetcher._proc_offset_requests(fetcher, unknown)
        assert topics[:4] == ["a", "b", "c", "waited"]

    asyncio.run(scene())


def test_records_do_not_wait_for_the_answer_whether_another_log_was_cut(
    monkeypatch: pytest.MonkeyPatch,
):
    patch_aiokafka()

    async def scene() -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def fetched(fetcher: Any, *_: object) -> bool:  # noqa: ANN401
            fetcher._records[ONE] = "records"
            return True

        async def cuts(*_: object) -> dict[TopicPartition, int | None]:
            asked.set()
            await answered.wait()
            return {}

        monkeypatch.setattr(truncation, "_FETCH", fetched)
        monkeypatch.setattr(truncation, "_cuts", cuts)
        holding = Holding()
        holding.subscriptions.assign_from_user([ONE, OTHER])
        assignment = holding.subscriptions.subscription.assignment
        assignment.state_value(OTHER).reset_to(7)
        truncation._READ[assignment.state_value(OTHER)] = truncation.Read(7, leader_epoch=1)
        waiter = holding.fetcher._create_fetch_waiter()
        request = SimpleNamespace(topics=[("t", [(0, 7, 1), (1, 7, 1)])])
        fetching = asyncio.create_task(
            holding.fetcher._proc_fetch_request(assignment, NODE, request)
        )
        await asyncio.wait_for(asked.wait(), 60)
        await asyncio.wait_for(waiter, 60)
        answered.set()
        assert await fetching
        holding.fetcher._records.clear()
        await holding.fetcher.close()

    asyncio.run(scene())


def test_a_fetch_that_ends_as_a_partition_is_drained_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
):
    # aiokafka's loop then sees that the fetch has ended, and its broker still as occupied.
    patch_aiokafka()
    responses: list[asyncio.Future[Any]] = []

    async def answer(*_: object, **__: object) -> Any:  # noqa: ANN401
        responses.append(asyncio.get_running_loop().create_future())
        return await responses[-1]

    monkeypatch.setattr(idle_fetches, "_SEND_REQUEST", answer)

    async def scene() -> None:
        holding = Holding()
        holding.fetcher._fetch_max_wait_ms = 600_000
        holding.assign(ONE, OTHER)
        await until(lambda: responses)
        empty = SimpleNamespace(API_VERSION=4, topics=[])
        asyncio.get_running_loop().call_soon(responses[0].set_result, empty)
        holding.fetcher._notify(holding.fetcher._wait_consume_future)
        await until(lambda: len(responses) > 1)
        await holding.fetcher.close()

    asyncio.run(scene())
