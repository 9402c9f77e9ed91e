"""Erases deleted instances from the history: appends tombstones for their records.

Readers of the history act on `InstanceDeleted`. Earlier records of the instance are removed when
Kafka compacts the log, once each of them has a tombstone. Tombstones may be written by a process
that does not own the partition: they have no effect on state, and may be repeated.

The last record of an instance is erased first, and its deletion last. Wherever compaction stops, a
reader finds the beginning of a history followed by its deletion.
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

#: Tombstones in one append.
_TOGETHER: Final = 1_000


async def erase_deleted(cluster: Cluster, appender: Appender) -> int:
    """Append tombstones for all records of deleted instances. Return their number.

    The keys of these records are held in memory.

    Raises:
        BrokerUnavailable: Tombstones written so far stay; another call writes the rest.
    """
    count = 0
    for partition in range(await appender.partitions(WORKFLOW_HISTORY)):
        deleted = await _deleted(cluster, partition)
        keys = await _keys(cluster, partition, deleted) if deleted else []
        for first in range(0, len(keys), _TOGETHER):
            batch = keys[first : first + _TOGETHER]
            await appender.append_or_stop(
                [Outgoing(WORKFLOW_HISTORY, partition, key, None) for key in batch]
            )
        count += len(keys)
    return count


async def _deleted(cluster: Cluster, partition: int) -> dict[bytes, int]:
    """Return the offset of the latest deletion of instances, by key."""
    claims, deletions = Claims(), dict[bytes, int]()
    async with aclosing(_history(cluster, partition)) as history:
        async for record in history:
            if record.value is None:
                continue
            try:
                appended = decode(record.value, HistoryAppended)
            except (UndecodableRecord, UnknownSchema):
                continue  # Projections report it.
            counts = claims.admit(record.offset, appended)
            if counts and appended.instance_id and isinstance(appended.events[0], InstanceDeleted):
                deletions[key_of_record(record.key or b"")] = record.offset
    return deletions


async def _keys(cluster: Cluster, partition: int, deleted: dict[bytes, int]) -> list[bytes]:
    """Return the keys of records up to the deletion of their instance, in the order to erase."""
    keys_by_instance: dict[bytes, dict[bytes, None]] = defaultdict(dict)
    async with aclosing(_history(cluster, partition)) as history:
        async for record in history:
            key = record.key or b""
            instance = key_of_record(key)
            if record.value is None:
                keys_by_instance[instance].pop(key, None)
            elif record.offset <= deleted.get(instance, -1):
                keys_by_instance[instance][key] = None
    ordered: list[bytes] = []
    for records in filter(None, keys_by_instance.values()):
        deletion, *before = reversed(records)
        ordered += [*before, deletion]
    return ordered


async def _history(cluster: Cluster, partition: int) -> AsyncGenerator[Incoming]:
    async with aclosing(read_partition(cluster, [WORKFLOW_HISTORY], partition)) as batches:
        async for records in batches:
            for record in records:
                yield record
