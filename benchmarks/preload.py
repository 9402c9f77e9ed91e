"""Append deliveries to a raw topic: build them first, then append them on request.

`python -m benchmarks.preload BOOTSTRAP TOPIC FIRST COUNT` reports `built`, waits for a line on its
standard input, appends as fast as it can, and reports `appended`.
"""

import asyncio
import sys
import time
from typing import Final

from benchmarks.raw import ours, plain
from benchmarks.reporting import report
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Outgoing

#: Records of one append: a few megabytes, so that the broker works while the next are packed.
_AT_ONCE: Final = 2_000


async def _preload(bootstrap: str, topic: str, first: int, count: int) -> None:
    appender = Appender(cluster=Cluster(bootstrap), client_id="bench-preload")
    try:
        records = _build(topic, first, count, await appender.partitions(topic))
        report(built=count, bytes=sum(len(record.value or b"") for record in records))
        await asyncio.to_thread(sys.stdin.readline)
        for start in range(0, count, _AT_ONCE):
            await appender.append(records[start : start + _AT_ONCE])
        report(appended=count)
    finally:
        await appender.stop()


def _build(topic: str, first: int, count: int, partitions: int) -> list[Outgoing]:
    now_ms = time.time_ns() // 1_000_000
    numbers = range(first, first + count)
    if topic == WEBHOOKS:
        return [ours(number, now_ms, partitions) for number in numbers]
    return [plain(topic, number, now_ms, partitions) for number in numbers]


if __name__ == "__main__":
    asyncio.run(_preload(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
