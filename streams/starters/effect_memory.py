"""Which effects of a partition of `effects` were there before.

A pipeline worker that dies between appending and committing appends the same effects once more,
under new offsets. A start does not mind; a signal would be sent twice. So of copies the first
counts, as far back as copies can lie apart: what a worker had under way, which is at most what it
did within the second before its last commit, and what others wrote until it was replaced.
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
SEEN_MAX: Final = 50_000
#: Records that are read again by whoever takes a partition: while nobody was there, the pipeline
#: may have been away, too, and then little lies between copies.
LOOK_BACK: Final = 5_000


class Seen:
    """The first offsets of the effects of one partition."""

    def __init__(self, limit: int = SEEN_MAX) -> None:
        self._limit = limit
        self._first: dict[tuple[str, str], int] = {}

    def is_copy(self, effect: EffectDecided, offset: int) -> bool:
        """Remembers an effect; returns whether it was there at a lower offset."""
        first = self._first.setdefault((effect.event_id, effect.name), offset)
        if len(self._first) > self._limit:
            del self._first[next(iter(self._first))]
        return first < offset


async def look_back(cluster: Cluster, partition: int, end: int) -> Seen:
    """What a partition of `effects` holds right before an offset, which it has reached.

    Errors: BrokerUnavailable; NewerSchema for what only a later release can read.
    """
    seen = Seen()
    start = max(0, end - LOOK_BACK)
    reading = read_partition(cluster, [EFFECTS], partition, start=start, end=end)
    async with aclosing(reading) as batches:
        async for records in batches:
            known, newer = readable(records)
            if newer is not None:
                raise NewerSchema(newer_schema_message(newer))
            for effect, offset in _effects(known):
                seen.is_copy(effect, offset)
    return seen


def _effects(records: Sequence[Incoming]) -> Iterator[tuple[EffectDecided, int]]:
    for record in records:
        try:
            yield decode(record.value, EffectDecided), record.offset
        except (UndecodableRecord, UnknownSchema):
            continue  # Whoever was to process it has made a dead letter of it.
