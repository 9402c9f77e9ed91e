"""The least that a restore could do: consume the topics of rows and claims, and decode everything.

`python -m benchmarks.size_read BOOTSTRAP` reports `decoded`, the number of records, with the claims
in them, and the seconds from the first fetch to the last record, on the clock and of processor
time.
"""

import sys
import time

import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.house import PARTITIONS
from benchmarks.reporting import report
from headwater.schemas.codec import decode, decode_row
from headwater.schemas.records import WebhooksClaimed
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import ADMISSIONS

_REPORT_EVERY_S = 5.0


async def _main(bootstrap: str) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=2 * 1024 * 1024
    )
    await consumer.start()
    where = [
        TopicPartition(topic, partition)
        for topic in (ADMISSIONS, DAILY_SUMMARY.topic)
        for partition in range(PARTITIONS)
    ]
    ends = await consumer.end_offsets(where)
    consumer.assign(where)
    await consumer.seek_to_beginning()
    began, used, said = time.perf_counter(), time.process_time(), time.monotonic()
    records = claims = 0
    left = {each for each, end in ends.items() if end}
    while left:
        for each, found in (await consumer.getmany(timeout_ms=1_000, max_records=2_000)).items():
            for record in found:
                if record.value:  # else it is an owner's claim
                    claims += _decoded(record.topic, record.value)
            records += len(found)
            if found[-1].offset + 1 >= ends[each]:
                left.discard(each)
        if time.monotonic() - said > _REPORT_EVERY_S:
            said = time.monotonic()
            report(read=records, claims=claims)
    report(
        decoded=records,
        claims=claims,
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time() - used,
    )
    await consumer.stop()


def _decoded(topic: str, value: bytes) -> int:
    if topic == ADMISSIONS:
        return len(decode(value, WebhooksClaimed).event_ids)
    decode_row(DAILY_SUMMARY, value)
    return 0


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1]))
