"""The limit: append the records of workflows with a plain producer.

`python -m benchmarks.workflow_raw BOOTSTRAP TOPIC` reports `ready`. For every line of its standard
input, a JSON object with `range` (offsets by partition) and `concurrency`, it reads these records
of `workflow-history`, reports `read`, waits for another line, and appends them to TOPIC: as many
tasks as `concurrency`, one instance after the other per task, a record once the one before is
acknowledged; repeated until a minimum time has passed. Then it reports `steps_s`, where an append
counts as a step.
"""

import asyncio
import json
import sys
import time
from itertools import cycle
from typing import Any, Final, TypeAlias

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.reporting import report
from benchmarks.workflow_load import percentiles
from headwater.schemas.topics import WORKFLOW_HISTORY

_PATIENCE_S: Final = 120.0
#: Long enough that a single pause of the machine does not decide.
_AT_LEAST_S: Final = 1.0

#: Partition, key and value of the records of one instance.
_Instance: TypeAlias = list[tuple[int, bytes, bytes]]


async def _read(bootstrap: str, ranges: dict[int, tuple[int, int]]) -> list[_Instance]:
    """Return the records by instance, in the order in which the instances began."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    ends = {TopicPartition(WORKFLOW_HISTORY, number): end for number, (_, end) in ranges.items()}
    consumer.assign(list(ends))
    for partition in ends:
        consumer.seek(partition, ranges[partition.partition][0])
    instances: dict[bytes, _Instance] = {}
    began: dict[bytes, int] = {}
    async with asyncio.timeout(_PATIENCE_S):
        while [
            partition for partition, end in ends.items() if await consumer.position(partition) < end
        ]:
            for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                for record in records:
                    if record.offset < ends[partition] and record.key and record.value:
                        known = instances.setdefault(record.key, [])
                        known.append((partition.partition, record.key, record.value))
                        began.setdefault(record.key, record.timestamp)
    await consumer.stop()
    return [instances[key] for key in sorted(instances, key=began.__getitem__)]


async def _append(
    producer: AIOKafkaProducer, topic: str, instances: list[_Instance], concurrency: int
) -> dict[str, Any]:
    latencies: list[float] = []
    counts: list[int] = []
    queue = cycle(instances)
    began = time.perf_counter()

    async def some() -> None:
        while (start := time.perf_counter()) - began < _AT_LEAST_S:
            instance = next(queue)
            for partition, key, value in instance:
                await producer.send_and_wait(topic, value, key, partition)
            latencies.append(time.perf_counter() - start)
            counts.append(len(instance))

    await asyncio.gather(*(some() for _ in range(concurrency)))
    took = time.perf_counter() - began
    count = sum(counts)
    return {
        "steps_s": round(count / took, 1),
        "workflows_s": round(len(counts) / took, 1),
        **percentiles(latencies),
        "records": count,
        "seconds": round(took, 3),
    }


async def _main(bootstrap: str, topic: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    await producer.start()
    await producer.partitions_for(topic)
    report(ready=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        ranges = {int(number): tuple(ends) for number, ends in command["range"].items()}
        instances = await _read(bootstrap, ranges)
        report(read=len(instances))
        await asyncio.to_thread(sys.stdin.readline)
        report(**await _append(producer, topic, instances, command["concurrency"]))
    await producer.stop()


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], sys.argv[2]))
