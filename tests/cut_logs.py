"""Cutting the end off a partition of a broker that is down, as a power failure does."""

import struct

from headwater.streams.kafka.embedded import EmbeddedKafka

#: Base offset and length of a batch; what follows is of that length.
_HEAD = struct.Struct(">qi")


def cut(broker: EmbeddedKafka, topic: str, partition: int, end: int) -> None:
    """Cut a partition so that it ends at an offset, at which a batch has to begin.

    Args:
        broker: A broker that is not running.
        topic: The topic.
        partition: Its partition, of which there is one segment.
        end: The first offset that is lost.
    """
    (segment,) = (broker._log_dir / f"{topic}-{partition}").glob("*.log")
    with segment.open("r+b") as file:
        while head := file.read(_HEAD.size):
            base, length = _HEAD.unpack(head)
            if base >= end:
                assert base == end, f"a batch begins at {base}, none at {end}"
                file.truncate(file.tell() - _HEAD.size)
                return
            file.seek(length, 1)
    raise AssertionError(f"{topic}/{partition} has no record at {end}")
