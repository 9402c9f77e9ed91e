"""Append deliveries to a raw topic: build them first, then append them on request.

`python -m benchmarks.preload BOOTSTRAP TOPIC FIRST COUNT [distinct]` reports `built`, waits for a
line on its standard input, appends as fast as it can, and reports `appended`. Five deliveries make
a row; if `distinct`, each makes one.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.payloads import distinct
from benchmarks.raw import ours, plain
from benchmarks.reporting import report
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Outgoing

#: Records of one append: a few megabytes, so that the broker works while the next are packed.
_AT_ONCE: Final = 2_000


async def _preload(bootstrap: str, topic: str, numbers: Sequence[int]) -> None:
    count = len(numbers)
    appender = Appender(cluster=Cluster(bootstrap), client_id="bench-preload")
    try:
        records = _build(topic, numbers, await appender.partitions(topic))
        report(built=count, bytes=sum(len(record.value or b"") for record in records))
        await asyncio.to_thread(sys.stdin.readline)
        for start in range(0, count, _AT_ONCE):
            await appender.append(records[start : start + _AT_ONCE])
        report(appended=count)
    finally:
        await appender.stop()


def _build(topic: str, numbers: Sequence[int], partitions: int) -> list[Outgoing]:
    now_ms = time.time_ns() // 1_000_000
    if topic == WEBHOOKS:
        return [ours(number, now_ms, partitions) for number in numbers]
    return [plain(topic, number, now_ms, partitions) for number in numbers]


if __name__ == "__main__":
    _range = range(int(sys.argv[3]), int(sys.argv[3]) + int(sys.argv[4]))
    _numbers = [distinct(number) for number in _range] if sys.argv[5:] == ["distinct"] else _range
    asyncio.run(_preload(sys.argv[1], sys.argv[2], _numbers))
