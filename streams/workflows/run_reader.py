"""Reads the history of one run: its records that count, from the first one on.

The reader need not own the partition. The projection stored the offset of the run's first record
and knew that it counts, so its epoch is that of the latest claim before it. From there on, the same
fold as everywhere decides (`processors.runs.claims`). Records of other instances are skipped by
their keys, without being decoded.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Final

from headwater.processors.runs.claims import Claims
from headwater.schemas.codec import decode
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import HistoryAppended, key_of_record
from headwater.schemas.newer import newer_schema_message, readable
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming

#: Longest read in seconds; clients do not wait longer. It passes some million records of others.
WITHIN_S: Final = 20.0
_SLASH: Final = b"/"


class RunReader:
    """Reads runs from Kafka, within a time limit."""

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
        batch_reader = read_partition(self._cluster, [WORKFLOW_HISTORY], partition, start=start)
        filter_ = _RunFilter(start, key.encode())
        deadline = asyncio.get_running_loop().time() + self._within_s
        async with aclosing(batch_reader) as batches:
            while True:
                try:
                    # For each batch separately: between batches, the caller of this generator runs.
                    async with asyncio.timeout_at(deadline):
                        records = await anext(batches, None)
                except TimeoutError as error:
                    raise self._too_long(partition, start, key) from error
                if records is None:
                    return
                known, newer = readable(records)
                matching = list(filter_.matching(known))
                if filter_.is_deleted:
                    return
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
    """Selects the records of a run that count."""

    def __init__(self, start: int, key: bytes) -> None:
        self._start = start
        self._key = key
        self._claims: Claims | None = None
        self.is_deleted = False

    def matching(self, records: Iterable[Incoming]) -> Iterator[HistoryAppended]:
        for record in records:
            instance = key_of_record(record.key or b"")
            if self._claims is None:
                is_first = record.offset == self._start and instance == self._key
                self.is_deleted = not is_first or record.value is None
                if self.is_deleted:
                    return
                self._claims = Claims(decode(record.value, HistoryAppended).epoch)
            # Keys of claims contain the owner's name, which has no slash.
            if record.value is None or (instance != self._key and _SLASH in instance):
                continue
            appended = decode(record.value, HistoryAppended)
            if self._claims.admit(record.offset, appended) and instance == self._key:
                yield appended
