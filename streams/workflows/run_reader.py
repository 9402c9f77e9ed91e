"""Reads what the history says of one run: those of its records that count, from its first one on.

Nobody who is asked about a run need own its partition. The record that began it counts, which the
projection knew when it wrote down where it lies; so its epoch is that of the latest claim before
it, and from there on the fold that everybody uses decides (`processors.runs.claims`). Records of
other instances are passed over by their keys, without being decoded.
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

#: Who waits longer for an answer has gone. Some million records of others are passed over by then.
WITHIN_S: Final = 20.0
_SLASH: Final = b"/"


class RunReader:
    """Reads runs from Kafka, each within a time."""

    def __init__(self, cluster: Cluster, within_s: float = WITHIN_S) -> None:
        self._cluster = cluster
        self._within_s = within_s

    async def read(
        self, partition: int, start: int, key: str
    ) -> AsyncGenerator[list[HistoryAppended]]:
        """Yields the records of an instance that count, from that at `start` on, some at a time.

        Shape:  up to the end as of now. Nothing if the record at `start` is not there any more:
                then the instance was deleted.
        Errors: BrokerUnavailable, also when it takes longer, or when a newer release has written
                what lies between.
        """
        reading = read_partition(self._cluster, [WORKFLOW_HISTORY], partition, start=start)
        counting = _Counting(start, key.encode())
        deadline = asyncio.get_running_loop().time() + self._within_s
        async with aclosing(reading) as batches:
            while True:
                try:
                    # Around each batch alone: between them whoever reads has the turn.
                    async with asyncio.timeout_at(deadline):
                        records = await anext(batches, None)
                except TimeoutError as error:
                    raise self._too_long(partition, start, key) from error
                if records is None:
                    return
                known, newer = readable(records)
                found = list(counting.of(known))
                if counting.is_gone:
                    return
                if found:
                    yield found
                if newer is not None:
                    raise BrokerUnavailable(newer_schema_message(newer))

    def _too_long(self, partition: int, start: int, key: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"expected to read {key} from {WORKFLOW_HISTORY}/{partition}@{start} on within "
            f"{self._within_s:.0f} s, found it to take longer; of a graph, ask for an earlier "
            "event, with `at`"
        )


class _Counting:
    """Which records of a partition are of a run, and count."""

    def __init__(self, start: int, key: bytes) -> None:
        self._start = start
        self._key = key
        self._claims: Claims | None = None
        self.is_gone = False

    def of(self, records: Iterable[Incoming]) -> Iterator[HistoryAppended]:
        for record in records:
            of = key_of_record(record.key or b"")
            if self._claims is None:
                is_first = record.offset == self._start and of == self._key
                self.is_gone = not is_first or record.value is None
                if self.is_gone:
                    return
                self._claims = Claims(decode(record.value, HistoryAppended).epoch)
            # Claims have keys of their owners, whose names have no slash.
            if record.value is None or (of != self._key and _SLASH in of):
                continue
            appended = decode(record.value, HistoryAppended)
            if self._claims.admit(record.offset, appended) and of == self._key:
                yield appended
