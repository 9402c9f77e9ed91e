"""Records read from and appended to Kafka."""

from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from aiokafka.structs import ConsumerRecord

#: A record as fetched: key, value and header values are bytes, or None.
Incoming: TypeAlias = ConsumerRecord[Any, Any]

Headers: TypeAlias = list[tuple[str, bytes]]


class Outgoing(NamedTuple):
    """A record to append; `value` None is a tombstone."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None

    def as_read(self) -> Incoming:
        """Return the record as a consumer reads it; its offset and time are 0."""
        key = self.key or b""
        sizes = (len(key), len(self.value or b""))
        headers = tuple(self.headers or ())
        return Incoming(self.topic, self.partition, 0, 0, 0, key, self.value, None, *sizes, headers)


def text_of(value: bytes | None) -> str:
    """Return the value of a header as text; Kafka allows headers without a value."""
    return (value or b"").decode(errors="replace")


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: CRC-32, as librdkafka's `consistent` partitioner computes it.

    All records of the system are partitioned by this function. Kafka's default, murmur2, costs 40
    times as much in Python, and nothing outside the system needs to agree.
    """
    return crc32(key) % partitions


def moved_to(partition: int, count: int) -> list[int]:
    """Return where records of a partition may be if the topic has got more partitions since.

    Args:
        partition: The partition that a position names.
        count: Number of partitions today.
    """
    former = former_counts(partition, count)
    return [n for n in range(count) if n != partition and any(n % f == partition for f in former)]


def former_counts(partition: int, count: int) -> list[int]:
    """Return how many partitions a topic may have had before, when it had a partition."""
    return [former for former in range(partition + 1, count) if count % former == 0]


def position_of(record: Incoming) -> str:
    """Return the position of a record as traces and logs show it: topic/partition@offset."""
    return f"{record.topic}/{record.partition}@{record.offset}"
