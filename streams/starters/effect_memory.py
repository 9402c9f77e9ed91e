"""Recognize duplicates of effects in a partition of `effects`.

A pipeline worker that crashes between append and commit appends the same effects again, at new
offsets. A duplicate start changes nothing; a duplicate signal would be sent twice. So only the
first copy is carried out, as far back as copies can be apart: what a worker had in flight, which is
at most the work of the second before its last commit, and what others wrote until it was replaced.
"""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Final

from headwater.schemas.codec import decode
from headwater.schemas.errors import NewerSchema, UndecodableRecord, UnknownSchema
from headwater.schemas.newer import newer_schema_message, readable
from headwater.schemas.records import EffectDecided
from headwater.schemas.topics import EFFECTS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming

#: Effects that are remembered of a partition; some 10 MB.
REMEMBERED_MAX: Final = 50_000
#: Records to read again when a partition is acquired: while no process owned it, the pipeline may
#: have been down, too, and then few records are between copies.
LOOK_BACK: Final = 5_000


class EffectMemory:
    """First offsets of the effects of one partition."""

    def __init__(self, limit: int = REMEMBERED_MAX) -> None:
        self._limit = limit
        self._first: dict[tuple[str, str], int] = {}

    def is_copy(self, effect: EffectDecided, offset: int) -> bool:
        """Remember an effect; return whether it was there at a lower offset."""
        first = self._first.setdefault((effect.event_id, effect.name), offset)
        if len(self._first) > self._limit:
            del self._first[next(iter(self._first))]
        return first < offset


async def restore_memory(cluster: Cluster, partition: int, end: int) -> EffectMemory:
    """Return the memory of a partition of `effects` as of an offset, which it has reached.

    Raises:
        BrokerUnavailable: No broker answered.
        NewerSchema: Only a later release can read a record.
    """
    memory = EffectMemory()
    start = max(0, end - LOOK_BACK)
    reading = read_partition(cluster, [EFFECTS], partition, start=start, end=end)
    async with aclosing(reading) as batches:
        async for records in batches:
            known, newer = readable(records)
            if newer is not None:
                raise NewerSchema(newer_schema_message(newer))
            for effect, offset in _effects(known):
                memory.is_copy(effect, offset)
    return memory


def _effects(records: Sequence[Incoming]) -> Iterator[tuple[EffectDecided, int]]:
    for record in records:
        try:
            yield decode(record.value, EffectDecided), record.offset
        except (UndecodableRecord, UnknownSchema):
            continue  # It is a dead letter already.
