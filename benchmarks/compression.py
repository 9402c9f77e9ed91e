"""Cost and savings of codecs: the deliveries of the other benchmarks, appended and read again.

`python -m benchmarks.compression` prints one line per codec and batch size: microseconds of
processor time per record in the producer, the consumer and the broker, and its bytes in the log.
ADR 0024 has a run.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.raw import ours
from benchmarks.system import System, opened
from headwater.streams.kafka.records import Outgoing

_CODECS: Final = (None, "snappy", "lz4", "zstd", "gzip")
#: Records of a batch: one delivery alone, a group commit at some load, and at full load.
_BATCHES: Final = (1, 10, 200)
_RECORDS: Final = 20_000
_IN_FLIGHT: Final = 8


async def _append(
    servers: str, topic: str, codec: str | None, records: list[Outgoing], size: int
) -> float:
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, acks="all", enable_idempotence=True, compression_type=codec,
        max_batch_size=1024 * 1024,
    )  # fmt: skip
    async with producer:
        began = time.process_time()
        sent = []
        for start in range(0, len(records), size):
            batch = producer.create_batch()
            for record in records[start : start + size]:
                batch.append(
                    timestamp=None,
                    key=record.key,
                    value=record.value,
                    headers=record.headers or [],
                )
            sent.append(await producer.send_batch(batch, topic, partition=0))
            if len(sent) == _IN_FLIGHT:
                await asyncio.gather(*sent)
                sent.clear()
        await asyncio.gather(*sent)
        return time.process_time() - began


async def _read(servers: str, topic: str, count: int) -> float:
    tp = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([tp])
        began = time.process_time()
        while count > 0:
            for records in (await consumer.getmany(timeout_ms=1_000, max_records=2_000)).values():
                count -= len(records)
        return time.process_time() - began


def _measure(system: System, codec: str | None, size: int, records: list[Outgoing]) -> str:
    topic = f"{codec or 'none'}-{size}"
    system.make_topics(topic)
    before = system.meter()
    count = len(records)
    produced = asyncio.run(_append(system.bootstrap, topic, codec, records, size))
    appended = system.meter()
    consumed = asyncio.run(_read(system.bootstrap, topic, count))
    read = system.meter()
    log = Path(system.logs.parent / "kafka" / "broker" / f"{topic}-0")
    stored = sum(file.stat().st_size for file in log.glob("*.log"))
    broker = (
        before.us_per_event(appended, count)["kafka"],
        appended.us_per_event(read, count)["kafka"],
    )
    cells = (
        codec or "none", size, produced / count * 1e6, broker[0], consumed / count * 1e6, broker[1],
        stored / count,
    )  # fmt: skip
    return "{:>6} {:>5} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>7.0f}".format(*cells)


def _main() -> None:
    now_ms = time.time_ns() // 1_000_000
    records = [ours(number, now_ms, 1) for number in range(_RECORDS)]
    heads = ("codec", "batch", "producer", "broker", "consumer", "broker", "bytes")
    sys.stdout.write("{:>6} {:>5} {:>9} {:>9} {:>9} {:>9} {:>7}\n".format(*heads))
    with opened() as system:
        _measure(system, None, 100, records)  # warms up
        for size in _BATCHES:
            for codec in _CODECS:
                few = records[: _RECORDS // 5] if size == 1 else records
                sys.stdout.write(_measure(system, codec, size, few) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    _main()
