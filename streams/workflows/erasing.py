"""Takes deleted instances out of the history: tombstones for the records that are about them.

`InstanceDeleted` is what every reader of the history goes by. What an instance has left in the log
before goes when Kafka compacts it, once each of its records has a tombstone. Whoever writes them
need not own the partition: a tombstone says nothing, and one that is written twice changes nothing.

Of an instance the last record goes first, and its deletion last. So what a reader finds, wherever
compaction stopped, is a beginning of a history, and then that it was deleted.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from headwater.processors.runs.claims import Claims
from headwater.schemas.codec import decode
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.history import HistoryAppended, InstanceDeleted, key_of_record
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing

#: Tombstones of one append.
_TOGETHER: Final = 1_000


async def erase_deleted(cluster: Cluster, appender: Appender) -> int:
    """Writes tombstones for all that the history has of deleted instances; returns how many.

    Memory is that of the keys of their records.

    Errors: BrokerUnavailable; what is written by then stays, and the rest is written by another
            call.
    """
    count = 0
    for partition in range(await appender.partitions(WORKFLOW_HISTORY)):
        deleted = await _deleted(cluster, partition)
        keys = await _keys(cluster, partition, deleted) if deleted else []
        for at in range(0, len(keys), _TOGETHER):
            some = keys[at : at + _TOGETHER]
            await appender.append_or_stop(
                [Outgoing(WORKFLOW_HISTORY, partition, key, None) for key in some]
            )
        count += len(keys)
    return count


async def _deleted(cluster: Cluster, partition: int) -> dict[bytes, int]:
    """Where instances were deleted the last time, by their key."""
    claims, found = Claims(), dict[bytes, int]()
    async with aclosing(_history(cluster, partition)) as history:
        async for record in history:
            if record.value is None:
                continue
            try:
                appended = decode(record.value, HistoryAppended)
            except (UndecodableRecord, UnknownSchema):
                continue  # A projection says so.
            counts = claims.admit(record.offset, appended)
            if counts and appended.instance_id and isinstance(appended.events[0], InstanceDeleted):
                found[key_of_record(record.key or b"")] = record.offset
    return found


async def _keys(cluster: Cluster, partition: int, deleted: dict[bytes, int]) -> list[bytes]:
    """The keys of the records up to the deletion of their instance, in the order to remove them."""
    found: dict[bytes, dict[bytes, None]] = defaultdict(dict)
    async with aclosing(_history(cluster, partition)) as history:
        async for record in history:
            key = record.key or b""
            of = key_of_record(key)
            if record.value is None:
                found[of].pop(key, None)
            elif record.offset <= deleted.get(of, -1):
                found[of][key] = None
    ordered: list[bytes] = []
    for records in filter(None, found.values()):
        deletion, *before = reversed(records)
        ordered += [*before, deletion]
    return ordered


async def _history(cluster: Cluster, partition: int) -> AsyncGenerator[Incoming]:
    async with aclosing(read_partition(cluster, [WORKFLOW_HISTORY], partition)) as batches:
        async for records in batches:
            for record in records:
                yield record
