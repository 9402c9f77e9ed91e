"""How the topics got more partitions, in the log: positions of deliveries name former partitions.

The topic `skipped` has a mark of every growth, because all of it is copied to the next topics.
Postgres has the same, but may be lost, or restored (ADR 0101).
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from headwater.schemas.topics import SKIPPED
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing

#: Keys of other records of the topic are positions, which begin with the name of a topic.
_KEY: Final = b"growth/"


class GrowthMark(msgspec.Struct, frozen=True):
    """A growth (topic `skipped`, JSON, key growth/ and the prefix of the new topics)."""

    #: Number of partitions before.
    before: int
    #: End of every partition of the topic `webhooks` then.
    ends: Sequence[int]


def growth_record(topic: str, prefix: str, mark: GrowthMark) -> Outgoing:
    """Return the record of a growth; to append it again changes nothing.

    Args:
        topic: The new topic, as clients of this process use it.
        prefix: Prefix of the new topics.
        mark: The growth.
    """
    return Outgoing(topic, 0, _KEY + prefix.encode(), msgspec.json.encode(mark))


def is_growth(record: Incoming) -> bool:
    """Return whether a record of the topic is the mark of a growth."""
    return (record.key or b"").startswith(_KEY)


def growths_in(records: Iterable[Incoming]) -> list[tuple[int, list[int]]]:
    """Return numbers of partitions before growths, with the ends of `webhooks`, oldest first."""
    marks = {
        record.key: msgspec.json.decode(record.value or b"", type=GrowthMark)
        for record in records
        if is_growth(record)
    }
    return [(mark.before, list(mark.ends)) for mark in marks.values()]


async def read_growths(cluster: Cluster) -> list[tuple[int, list[int]]]:
    """Return all growths of the topics, as `growths_in`.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    async with aclosing(read_partition(cluster, [SKIPPED], 0)) as batches:
        return growths_in([record async for records in batches for record in records])
