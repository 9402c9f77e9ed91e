"""Start workflows, and read their ends in the log.

`python -m benchmarks.workflow_load BOOTSTRAP` reports `ready`, then executes every line of its
standard input, a JSON object with `do`, and reports the result:

- `wait`: waits until the worker answers; reports `owned`
- `run`: COUNT instances of WORKFLOW with PARAMS, CONCURRENCY at a time, with STEPS steps; reports
  `steps_s`
- `follow`: reads TOPIC along, from `following` until no more records arrive; reports `followed`
- `sleep`: COUNT instances that sleep, CONCURRENCY commands at a time; reports `asleep`
- `end`: ends a sleeping instance of every partition, to see when its owner answers; reports
  `answered`
- `checkpoints`: waits until every partition has one; reports `checkpoints`
"""

import asyncio
import itertools
import json
import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.reporting import report
from benchmarks.workflow_app import ENDED
from headwater.schemas.history import Command, StartRun, TerminateRun, instance_key, key_of_record
from headwater.schemas.topics import WORKFLOW_COMMANDS, WORKFLOW_HISTORY, WORKFLOW_SNAPSHOTS
from headwater.streams.clock import now_ms
from headwater.streams.engine.restore import CHECKPOINT
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import partition_of
from headwater.streams.workflows.client import OutcomeUnknown, WorkflowClient

#: Longer than any takeover that is measured, and bounded: a worker that is stuck fails the run.
_PATIENCE_S: Final = 120.0
_ENDED: Final = ENDED.encode()
_POLL_S: Final = 0.02
_QUIET_MS: Final = 500


class Load:
    """The client, and the reader of the history."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = WorkflowClient(
            cluster=Cluster(bootstrap),
            client_id="bench-load",
            timeout_s=_PATIENCE_S,
            clock=now_ms,
            new_id=lambda: secrets.token_hex(8),
        )
        # Unique, so that runs on one log never meet.
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._sleepers: dict[int, list[str]] = {}
        self._partitions = 0

    async def start(self) -> None:
        """Connect."""
        await self._client.start()
        appender = Appender(cluster=Cluster(self._bootstrap), client_id="bench-load-topics")
        self._partitions = await appender.partitions(WORKFLOW_COMMANDS)
        await appender.stop()
        while not self._client.ready:  # noqa: ASYNC110, it has no event for this
            await asyncio.sleep(_POLL_S)

    async def wait(self) -> dict[str, Any]:
        """Wait until every partition has an owner that answers: a loaded machine starts slowly."""
        names: dict[int, str] = {}
        while len(names) < self._partitions:
            name = self._new_id()
            key = instance_key("ten", name).encode()
            names.setdefault(partition_of(key, self._partitions), name)

        async def one(name: str) -> None:
            while True:
                with suppress(OutcomeUnknown):
                    await self._client.send("ten", name, TerminateRun())
                    return

        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.gather(*map(one, names.values()))
        return {"owned": len(names)}

    # -- workflows of ten steps

    async def run(
        self, count: int, concurrency: int, workflow: str, params: str, steps: int
    ) -> dict[str, Any]:
        """Run workflows; every task starts the next one as soon as its last one has ended."""
        consumer = await self._consumer(WORKFLOW_HISTORY)
        partitions = sorted(consumer.assignment())
        await consumer.seek_to_end(*partitions)
        first = [await consumer.position(partition) for partition in partitions]
        latencies: list[float] = []
        ids = iter([self._new_id() for _ in range(count)])
        cpu, began = time.process_time(), time.perf_counter()
        # A group, so that a reader that fails ends the run at once.
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read_ends(consumer))
            await _shared(
                concurrency, lambda: self._one_after_another(workflow, params, ids, latencies)
            )
            took, busy = time.perf_counter() - began, time.process_time() - cpu
            reader.cancel()
        last = [await consumer.position(partition) for partition in partitions]
        await consumer.stop()
        return {
            "steps_s": round(count * steps / took, 1),
            "workflows_s": round(count / took, 1),
            **percentiles(latencies),
            "records": sum(last) - sum(first),
            "seconds": round(took, 3),
            "busy": round(busy / took, 2),
            "range": {
                partition.partition: [a, b]
                for partition, a, b in zip(partitions, first, last, strict=True)
            },
        }

    async def _one_after_another(
        self, workflow: str, params: str, ids: Iterator[str], latencies: list[float]
    ) -> None:
        loop = asyncio.get_running_loop()
        for name in ids:
            key = instance_key(workflow, name).encode()
            ended = self._waiting[key] = loop.create_future()
            began = time.perf_counter()
            await self._send(workflow, name, StartRun(params))
            await ended
            latencies.append(time.perf_counter() - began)

    async def _read_ends(self, consumer: AIOKafkaConsumer) -> None:
        waiting = self._waiting
        while True:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                for record in records:
                    if record.value and _ENDED in record.value:
                        ended = waiting.pop(key_of_record(record.key or b""), None)
                        if ended is not None:
                            ended.set_result(None)

    async def follow(self, topic: str) -> dict[str, Any]:
        """Read a topic while another process writes it."""
        consumer = await self._consumer(topic)
        partitions = sorted(consumer.assignment())
        await consumer.seek_to_end(*partitions)
        for partition in partitions:
            await consumer.position(partition)
        report(following=True)
        followed = 0
        while True:
            fetched = await consumer.getmany(timeout_ms=_QUIET_MS)
            if followed and not fetched:
                break
            followed += sum(map(len, fetched.values()))
        await consumer.stop()
        return {"followed": followed}

    # -- sleeping instances

    async def sleep(self, count: int, concurrency: int) -> dict[str, Any]:
        """Start instances that sleep."""
        ids = [self._new_id() for _ in range(count)]
        queue = iter(ids)

        async def some() -> None:
            for name in queue:
                await self._send("sleeper", name, StartRun("null"))

        began = time.perf_counter()
        await _shared(concurrency, some)
        for name in ids:
            partition = partition_of(instance_key("sleeper", name).encode(), self._partitions)
            self._sleepers.setdefault(partition, []).append(name)
        return {"asleep": count, "seconds": round(time.perf_counter() - began, 3)}

    async def end(self) -> dict[str, Any]:
        """End one instance per partition; start one instead if none is sleeping."""

        async def one(partition: int) -> None:
            if self._sleepers.get(partition):
                await self._send("sleeper", self._sleepers[partition].pop(), TerminateRun())
                return
            while True:
                name = self._new_id()
                if (
                    partition_of(instance_key("sleeper", name).encode(), self._partitions)
                    == partition
                ):
                    await self._send("sleeper", name, StartRun("null"))
                    return

        await asyncio.gather(*(one(partition) for partition in range(self._partitions)))
        return {"answered": self._partitions}

    async def checkpoints(self) -> dict[str, Any]:
        """Wait until every partition has a checkpoint."""
        consumer = await self._consumer(WORKFLOW_SNAPSHOTS)
        await consumer.seek_to_beginning()
        partitions: set[int] = set()
        async with asyncio.timeout(_PATIENCE_S):
            while len(partitions) < self._partitions:
                for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                    if any(record.key == CHECKPOINT for record in records):
                        partitions.add(partition.partition)
        await consumer.stop()
        return {"checkpoints": len(partitions)}

    # -- both

    async def _send(self, workflow: str, instance_id: str, command: Command) -> None:
        reply = await self._client.send(workflow, instance_id, command)
        if reply.code:
            raise RuntimeError(f"a command was refused: {reply.code}, {reply.message}")

    async def _consumer(self, topic: str) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False)
        await consumer.start()
        consumer.assign([TopicPartition(topic, number) for number in range(self._partitions)])
        return consumer

    def _new_id(self) -> str:
        return f"{self._name}-{next(self._numbers)}"


async def _shared(concurrency: int, work: Callable[[], Coroutine[None, None, None]]) -> None:
    """Share work among tasks."""
    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    ranked = sorted(seconds)
    return {
        "p50_ms": round(ranked[len(ranked) // 2] * 1e3, 2),
        "p99_ms": round(ranked[int(len(ranked) * 0.99)] * 1e3, 2),
    }


async def _main(bootstrap: str) -> None:
    load = Load(bootstrap)
    await load.start()
    report(ready=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command: dict[str, Any] = json.loads(line)
        report(**await getattr(load, command.pop("do"))(**command))


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1]))
