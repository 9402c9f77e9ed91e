"""`python -m benchmarks.ended`: memory of ended instances, and their cost in a takeover.

Method. An owner, the log of production and an embedded Kafka; no host, because an instance that is
terminated before it begins leaves the same bytes. Instances are started, ended, evicted, and
written to checkpoints as by a worker. Measured is the process that owns them, before and after;
then it is killed, and others take the partition over: from the store on disk, from Kafka into an
empty store, and from Kafka into memory. All are new processes, without state of the one before.

    python -m benchmarks.ended --instances 200000
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from headwater.processors.code.engine import ReplayEngine
from headwater.schemas.history import (
    Command,
    CommandSent,
    HistoryAppended,
    StartRun,
    TerminateRun,
    instance_key,
)
from headwater.streams.clock import monotonic, now_ms
from headwater.streams.engine.code import Code
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.restore import Restored, restore_partition
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.kafka.topics import create_topics
from headwater.streams.workflows.history_lease import Append, Outcome
from headwater.streams.workflows.housekeeping import Checkpoints
from headwater.streams.workflows.instance_stores import InstanceStores
from headwater.streams.workflows.log import WorkflowLog

_WORKFLOW: Final = "order"
_ENGINES: Final = {ReplayEngine.kind: ReplayEngine()}
_PARAMS: Final = json.dumps({"customer": "c-1029384756", "lines": [{"sku": "a-1", "n": 2}] * 3})
_BATCH: Final = 1_000
#: Memory that the store on disk may use.
STORE_MIB: Final = 64
#: The partitions of the kinds of stores; both are filled alike.
_PARTITIONS: Final = {"disk": 0, "memory": 1}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Owned:
    """A partition that this process owns."""

    def __init__(self, cluster: Cluster, number: int, folder: Path | None) -> None:
        stores = None if folder is None else StateStores(folder, STORE_MIB * 1024 * 1024, now_ms)
        self._stores = InstanceStores(cluster, _ENGINES, stores)
        self._number = number
        self.log = WorkflowLog(
            cluster=cluster, client_id="bench", clock=BrokerClock(now_ms, monotonic)
        )
        self._checkpoints = Checkpoints(self.log, replied=_nothing, commit=_nothing)
        self.partition: Partition

    async def take(self) -> Restored:
        """Take the partition over."""
        number, workflows = self._number, {_WORKFLOW: ReplayEngine.kind}
        instances = LiveInstances(_ENGINES, await self._stores.open(number))
        epoch = await self.log.claim(number, "bench", workflows)
        restored = await restore_partition(self.log, instances, number, epoch, 0)
        owner = Owner(
            number,
            restored.claims,
            instances,
            code=Code(workflows),
            number_activations=lambda _: 1,
            draw_seed=lambda: "0123456789abcdef",
        )
        self.partition = Partition(
            number, owner, epoch, {}, start=restored.start, position=epoch + 1, replied=0
        )
        return restored

    async def end(self, first: int) -> None:
        """Start and end a thousand instances."""
        partition, owner = self.partition, self.partition.owner
        commands: list[Command] = [StartRun(_PARAMS), TerminateRun("done")]
        for command in commands:
            for number in range(first, first + _BATCH):
                owner.receive(owner.claims.cause + 1, _sent(number, command), now_ms())
        batch = owner.take_batch()
        records = [
            (instance_key(_WORKFLOW, record.instance_id).encode(), record)
            for record in batch.records
        ]
        first = await self._append(records)
        partition.position = first + len(records)
        partition.acknowledged, partition.replied = batch.number, owner.claims.cause + 1
        owner.dispatch(now_ms())
        owner.evict(now_ms() + 1, partition.acknowledged, partition.position)
        if self._checkpoints.is_due(partition, time.monotonic()):
            await self.checkpoint()

    async def _append(self, records: list[tuple[bytes, HistoryAppended]]) -> int:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.log.append([Append(self._number, records, outcome.set_result)])
        first = await outcome
        if isinstance(first, Exception):
            raise first
        return first

    async def checkpoint(self) -> None:
        """Write a checkpoint, as a worker does."""
        self._checkpoints.is_due(self.partition, time.monotonic())  # The first call sets a timer.
        taken = self._checkpoints.take_states(self.partition)
        while await self._checkpoints.write_checkpoint(taken, time.monotonic()) and taken.left:
            taken = self._checkpoints.take_states(self.partition, taken)


def _sent(number: int, command: Command) -> CommandSent:
    return CommandSent(
        command_id=f"c-{number}",
        workflow=_WORKFLOW,
        instance_id=f"order-{number:08}",
        sent_at_ms=now_ms(),
        reply_to=-1,
        command=command,
    )


async def _nothing(*_: object) -> None:
    pass


async def _fill(owned: Owned, count: int) -> dict[str, float]:
    await owned.take()
    await owned.end(0)
    before, began, used = _resident(), time.perf_counter(), time.process_time()
    tenth = before
    for first in range(_BATCH, count, _BATCH):
        await owned.end(first)
        if first == count // 10:
            tenth = _resident()
    now = _resident()
    return {
        "grown_mib": (now - before) / 2**20,
        "grown_late_mib": (now - tenth) / 2**20,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - used,
    }


async def _take_over(owned: Owned, count: int) -> dict[str, float]:
    before, began, used = _resident(), time.perf_counter(), time.process_time()
    restored = await owned.take()
    took = time.perf_counter() - began
    instance = restored.instances.find(f"{_WORKFLOW}/order-{count // 2:08}")
    assert instance
    assert instance.run.ended
    return {
        "seconds": took,
        "cpu_seconds": time.process_time() - used,
        "grown_mib": (_resident() - before) / 2**20,
    }


async def _child(what: str, bootstrap: str, kind: str, folder: str, count: int) -> None:
    owned = Owned(Cluster(bootstrap), _PARTITIONS[kind], Path(folder) if folder else None)
    await owned.log.start()
    done = await (_fill if what == "fill" else _take_over)(owned, count)
    sys.stdout.write(json.dumps(done))
    sys.stdout.flush()
    os._exit(0)  # As if it were killed: nothing is closed.


def _run(what: str, bootstrap: str, kind: str, folder: Path | None, count: int) -> Any:  # noqa: ANN401
    argv = [what, bootstrap, kind, str(folder or ""), str(count)]
    command = [sys.executable, "-m", "benchmarks.ended", "--child", *argv]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main() -> None:
    """Measure, and print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=200_000)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, bootstrap, kind, folder, count = options.child
        asyncio.run(_child(what, bootstrap, kind, folder, int(count)))
    count = options.instances
    with kafka() as (bootstrap, scratch):
        here, new = scratch / "store", scratch / "new"
        show(f"{count:,} ended, in memory", _run("fill", bootstrap, "memory", None, count))
        show(f"{count:,} ended, on disk", _run("fill", bootstrap, "disk", here, count))
        for label, kind, folder in (
            ("takeover from the store", "disk", here),
            ("takeover from Kafka, to a store", "disk", new),
            ("takeover from Kafka, to memory", "memory", None),
        ):
            show(label, _run("take", bootstrap, kind, folder, count))


def filled(count: int) -> dict[str, float]:
    """Return the memory of ended instances for an owner with a store on disk."""
    with kafka() as (bootstrap, scratch):
        measured: dict[str, float] = _run("fill", bootstrap, "disk", scratch / "store", count)
        return measured


@contextlib.contextmanager
def kafka() -> Iterator[tuple[str, Path]]:
    """Yield the address of a broker with our topics, and a temporary folder."""
    with tempfile.TemporaryDirectory() as scratch:
        kafka = EmbeddedKafka(Path(scratch) / "kafka", port=0, report=lambda _: None)
        bootstrap = kafka.start()
        try:
            asyncio.run(create_topics(Cluster(bootstrap), partitions=2, replication=1))
            yield bootstrap, Path(scratch)
        finally:
            kafka.stop()


def show(what: str, measured: dict[str, float]) -> None:
    """Print a line of results."""
    values = ", ".join(f"{name} {value:.2f}" for name, value in measured.items())
    sys.stdout.write(f"{what:36}{values}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
