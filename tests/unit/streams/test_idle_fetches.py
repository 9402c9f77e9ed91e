"""A broker may hold a fetch for long only if it leaves no partition of its consumer out."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.structs import PartitionMetadata, TopicPartition

from headwater.streams.kafka.aiokafka_patches import patch_aiokafka

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
NODE, LONG_MS, PARTIAL_MS, SHORT_MS = 1, 250, 50, 25


async def waits_of_fetches(wait_ms: int, unlike: str) -> list[int]:
    """How long the broker may hold what a consumer asks for, and may be something is unlike."""
    cluster = ClusterMetadata()
    cluster._partitions["t"] = {
        item.partition: PartitionMetadata("t", item.partition, NODE, [NODE], [NODE], None)
        for item in (ONE, OTHER)
    }
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
