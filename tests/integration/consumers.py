"""Consumers of this process that are open, and one that is a stranger in a group."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor


def open_consumers() -> list[AIOKafkaConsumer]:
    """Those that hold connections."""
    result = [item for item in gc.get_objects() if type(item) is AIOKafkaConsumer]
    return [item for item in result if not item._closed]


@asynccontextmanager
async def stranger_in(group: str, topic: str, bootstrap: str) -> AsyncIterator[None]:
    """Is in a group, with a way to divide partitions that our members do not have.

    For as long as it is there, none of them is let in.
    """
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
