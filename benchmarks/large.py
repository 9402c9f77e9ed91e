"""`python -m benchmarks.large`: a takeover of runs with states of the maximum size.

Method. As in `benchmarks.ended`: an owner, the log of production and an embedded Kafka; no host.
The states are as waiting code would leave them: results of 1 MiB each, of numbers in JSON. They are
written to a checkpoint as by a worker, one portion at a time; then the process is killed, and
others take the partition over: from the store on disk, and from Kafka into an empty one.

    python -m benchmarks.large --instances 1000 --mib 31
"""

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.ended import Owned, kafka, show
from headwater.processors.code.state import CodeRun
from headwater.processors.runs.state import Entry
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.kafka.cluster import Cluster

_RESULT_BYTES: Final = 1024 * 1024 - 4096
_PARTITION: Final = 0


def _result() -> str:
    """Return a result of nearly 1 MiB, as compressible as numbers are."""
    draw = random.Random(1)  # noqa: S311, no secret
    numbers: list[int] = []
    while len(numbers) * 8 < _RESULT_BYTES:
        numbers.append(draw.randint(100_000, 999_999))
    return json.dumps(numbers)[: _RESULT_BYTES - 1] + "]"


def _large(number: int, entries: dict[str, Entry]) -> CodeRun:
    return CodeRun(
        workflow="order",
        instance_id=f"order-{number:08}",
        run_number=1,
        sequence=len(entries),
        status=RunStatus.WAITING,
        params="null",
        seed="0123456789abcdef",
        parent=None,
        created_at_ms=0,
        started_at_ms=0,
        updated_at_ms=0,
        kind="replay",
        entries=entries,
    )


def _add(instances: LiveInstances, count: int, mib: int) -> None:
    """Add states that share their texts in memory, and nowhere else."""
    result = _result()
    done = Entry(
        name="s",
        kind=EntryKind.DO,
        status=EntryStatus.COMPLETED,
        ordinal=0,
        created_at_ms=0,
        updated_at_ms=0,
        result=result,
    )
    entries = {f"s{number}": done for number in range(mib)}
    for number in range(count):
        run = _large(number, entries)
        instances.changed.add(instances.add(f"order/{run.instance_id}", run).key)


async def _fill(owned: Owned, count: int, mib: int) -> None:
    await owned.take()
    _add(owned.partition.owner.instances, count, mib)
    owned.partition.replied = 1
    await owned.checkpoint()


async def _take_over(owned: Owned, count: int, mib: int) -> None:
    restored = await owned.take()
    instance = restored.instances.find(f"order/order-{count // 2:08}")
    assert instance
    assert isinstance(instance.run, CodeRun)
    assert len(instance.run.entries) == mib


async def _child(what: str, bootstrap: str, folder: str, count: int, mib: int) -> None:
    owned = Owned(Cluster(bootstrap), _PARTITION, Path(folder))
    await owned.log.start()
    began, used = time.perf_counter(), time.process_time()
    await (_fill if what == "fill" else _take_over)(owned, count, mib)
    done = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - used,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    sys.stdout.write(json.dumps(done))
    sys.stdout.flush()
    os._exit(0)  # As if it were killed: nothing is closed.


def _run(what: str, bootstrap: str, folder: Path, count: int, mib: int) -> Any:  # noqa: ANN401
    argv = [what, bootstrap, str(folder), str(count), str(mib)]
    command = [sys.executable, "-m", "benchmarks.large", "--child", *argv]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main() -> None:
    """Measure, and print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1_000)
    parser.add_argument("--mib", type=int, default=31, help="of each state")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, bootstrap, folder, count, mib = options.child
        asyncio.run(_child(what, bootstrap, folder, int(count), int(mib)))
    count, mib = options.instances, options.mib
    with kafka() as (bootstrap, scratch):
        here, new = scratch / "store", scratch / "new"
        show(f"{count:,} of {mib} MiB, written", _run("fill", bootstrap, here, count, mib))
        show("takeover from the store", _run("take", bootstrap, here, count, mib))
        show("takeover from Kafka", _run("take", bootstrap, new, count, mib))


if __name__ == "__main__":
    main()
