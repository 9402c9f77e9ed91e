"""Gap records only take up offsets: consumers pass them, and get all other records."""

import asyncio

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.record._crecords import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from headwater.schemas.epochs import GAP_KEY
from headwater.streams.kafka.aiokafka_patches import patch_aiokafka

TP = TopicPartition("webhooks", 0)


def batch(*keys: bytes | None) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1_000_000)
    for offset, key in enumerate(keys):
        builder.append(offset, 1, key, None, [])
    return bytes(builder.build())


async def read(*keys: bytes | None) -> tuple[list[int], int, bool]:
    """The offsets that a consumer gets, its position after them, and whether there are more."""
    patch_aiokafka()
    subscription = SubscriptionState()
    subscription.assign_from_user([TP])
    assignment = subscription.subscription.assignment
    assignment.state_value(TP).seek(0)
    records = PartitionRecords(TP, MemoryRecords(batch(*keys)), [], 0, None, None, True, 0)
    result = FetchResult(TP, assignment=assignment, partition_records=records, backoff=0.1)
    offsets = [record.offset for record in result.getall()]
    return offsets, assignment.state_value(TP).position, result.has_more()


def test_gaps_are_passed():
    assert asyncio.run(read(b"a", GAP_KEY, GAP_KEY, b"b", GAP_KEY)) == ([0, 3], 5, False)


def test_a_fetch_of_gaps_alone_moves_the_position():
    assert asyncio.run(read(GAP_KEY, GAP_KEY)) == ([], 2, False)


def test_records_without_a_key_are_none():
    assert asyncio.run(read(None, GAP_KEY, b"\x00claim")) == ([0, 2], 3, False)
