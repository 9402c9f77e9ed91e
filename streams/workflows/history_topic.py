"""The history topic for processes that own no partition: read a run, erase instances."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Final

from headwater.processors.runs.claims import Claims
from headwater.schemas.codec import decode
from headwater.schemas.errors import BrokerUnavailable, UndecodableRecord, UnknownSchema
from headwater.schemas.history import HistoryAppended, InstanceDeleted, key_of_record
from headwater.schemas.newer import newer_schema_message, readable
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing

#: Longest read in seconds; clients do not wait longer. It passes some million records of others.
WITHIN_S: Final = 20.0
_SLASH: Final = b"/"


class RunReader:
    """Reads runs from Kafka, within a time limit.

    The projection stored the offset of a run's first record and knew that it counts, so its epoch
    is that of the latest claim before it. From there on, the same fold as everywhere decides
    (`processors.runs.claims`). Records of other instances are skipped by their keys, without being
    decoded.
    """

    def __init__(self, cluster: Cluster, within_s: float = WITHIN_S) -> None:
        self._cluster = cluster
        self._within_s = within_s

    async def read(
        self, partition: int, start: int, key: str
    ) -> AsyncGenerator[list[HistoryAppended]]:
        """Yield the records of an instance that count, from the one at `start`, in batches.

        Reads up to the current end. Yields nothing if the record at `start` no longer exists: the
        instance was then deleted.

        Raises:
            BrokerUnavailable: Kafka is not available, the read takes too long, or a newer release
                has written to the partition.
        """
        try:
            async for matching in self.read_many(partition, {key: start}, self._within_s):
                yield matching
        except TimeoutError as error:
            raise self._too_long(partition, start, key) from error

    async def read_many(
        self, partition: int, starts: Mapping[str, int], within_s: float
    ) -> AsyncGenerator[list[HistoryAppended]]:
        """Yield the records of several instances that count, in batches, in one pass.

        Args:
            partition: Their partition.
            starts: Offset of the first record of each instance, by its key. Nothing is yielded of
                an instance whose record there no longer exists.
            within_s: Longest time of the whole read, without that of the caller, in seconds.

        Raises:
            TimeoutError: The read takes too long.
            BrokerUnavailable: Kafka is not available, or a newer release has written there.
        """
        filter_ = _RunFilter({key.encode(): start for key, start in starts.items()})
        first = min(starts.values())
        batch_reader = read_partition(self._cluster, [WORKFLOW_HISTORY], partition, start=first)
        deadline = asyncio.get_running_loop().time() + within_s
        async with aclosing(batch_reader) as batches:
            while not filter_.is_over:
                # For each batch separately: between batches, the caller of this generator runs.
                async with asyncio.timeout_at(deadline):
                    records = await anext(batches, None)
                if records is None:
                    return
                known, newer = readable(records)
                # Decoding the records of many runs would hold up the event loop.
                matching = await asyncio.to_thread(list, filter_.matching(known))
                if matching:
                    yield matching
                if newer is not None:
                    raise BrokerUnavailable(newer_schema_message(newer))

    def _too_long(self, partition: int, start: int, key: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"expected to read {key} from {WORKFLOW_HISTORY}/{partition}@{start} on within "
            f"{self._within_s:.0f} s, found it to take longer; for a graph, request an earlier "
            "event, with `at`"
        )


class _RunFilter:
    """Selects the records of runs that count.

    Args:
        starts: Offsets of the first records of the runs, by the keys of their instances.

    Attributes:
        is_over: Whether none of the runs exists any longer.
    """

    def __init__(self, starts: Mapping[bytes, int]) -> None:
        self._starts = starts
        self._last_start = max(starts.values())
        #: Instances with a first record that exists.
        self._started: set[bytes] = set()
        self._claims: Claims | None = None
        self.is_over = False

    def matching(self, records: Iterable[Incoming]) -> Iterator[HistoryAppended]:
        for record in records:
            instance = key_of_record(record.key or b"")
            value = record.value
            if value is not None and self._starts.get(instance) == record.offset:
                self._started.add(instance)
                self._claims = self._claims or Claims(decode(value, HistoryAppended).epoch)
            if self._claims is None:
                self.is_over = record.offset >= self._last_start
                if self.is_over:
                    return
                continue
            # Keys of claims contain the owner's name, which has no slash.
            if value is None or (instance not in self._started and _SLASH in instance):
                continue
            appended = decode(value, HistoryAppended)
            if self._claims.admit(record.offset, appended) and instance in self._started:
                yield appended


# -- erasing

#: Tombstones in one append.
_TOGETHER: Final = 1_000


async def erase_deleted(cluster: Cluster, appender: Appender) -> int:
    """Append tombstones for all records of deleted instances. Return their number.

    Readers of the history act on `InstanceDeleted`. Earlier records of the instance are removed
    when Kafka compacts the log, once each of them has a tombstone. Tombstones may be written by a
    process that does not own the partition: they have no effect on state, and may be repeated. The
    last record of an instance is erased first, and its deletion last. Wherever compaction stops, a
    reader finds the beginning of a history followed by its deletion.

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
