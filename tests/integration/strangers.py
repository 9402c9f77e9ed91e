"""A stranger in a consumer group: for as long as it is there, nobody else is let in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor


@asynccontextmanager
async def stranger_in(group: str, topic: str, bootstrap: str) -> AsyncIterator[None]:
    """Is in a group, with a way to divide partitions that our members do not have."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        partition_assignment_strategy=(RangePartitionAssignor,),
    )
    try:
        await consumer.start()
        yield
    finally:
        await consumer.stop()
