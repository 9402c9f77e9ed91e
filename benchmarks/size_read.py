"""The minimum of a restore: consume the topics of rows and claims, and decode everything.

`python -m benchmarks.size_read BOOTSTRAP` reports `decoded`, the number of records, with the claims
in them, and the seconds from the first fetch to the last record, elapsed and of processor time.
"""

import sys
import time

import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.reporting import report
from benchmarks.system import PARTITIONS
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
    partitions = [
        TopicPartition(topic, partition)
        for topic in (ADMISSIONS, DAILY_SUMMARY.topic)
        for partition in range(PARTITIONS)
    ]
    ends = await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    await consumer.seek_to_beginning()
    began, used, reported = time.perf_counter(), time.process_time(), time.monotonic()
    count = claims = 0
    pending = {partition for partition, end in ends.items() if end}
    while pending:
        fetched = await consumer.getmany(timeout_ms=1_000, max_records=2_000)
        for partition, records in fetched.items():
            for record in records:
                if record.value:  # Otherwise it is an owner's claim.
                    claims += _decoded(record.topic, record.value)
            count += len(records)
            if records[-1].offset + 1 >= ends[partition]:
                pending.discard(partition)
        if time.monotonic() - reported > _REPORT_EVERY_S:
            reported = time.monotonic()
            report(read=count, claims=claims)
    report(
        decoded=count,
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
