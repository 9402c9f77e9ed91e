"""Large state of one worker: millions of rows and claims, in bounded memory.

Method. Rows of `daily_summary` and claims of event ids are written straight into their topics, as
intake would have. A plain consumer reads and decodes all of them: the minimum of a restore. Then
`headwater worker` starts, without a store, alone in its group. It has acquired its partitions once
a new delivery of every partition has its outcome: that is the cold restore. Also sent are a
duplicate of the first claimed delivery, which must be dropped, and a delivery for an existing row,
which must keep its other columns. Then the worker has some work, is killed (SIGKILL), and starts
again with its store: the warm takeover. Resident memory is that of the process tree, sampled ten
times a second.

For ended workflow instances see `benchmarks.ended`: by how much the owner of a partition grows in
addition to the memory of its store.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchmarks import ended
from benchmarks.children import Child
from benchmarks.resident import Resident
from benchmarks.size_probes import Probes
from benchmarks.system import PARTITIONS, System, log_progress, opened
from headwater.schemas.topics import WEBHOOKS

#: A worker without progress for as long is stuck, or the machine is far too small.
_PATIENCE_S: Final = 3 * 60 * 60.0
_LOADERS: Final = 2
_MEMBER: Final = "bench-size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of rows, claims, deliveries and ended instances."""

    rows: int
    claims: int
    deliveries: int
    ended: int


FULL: Final = Sizes(rows=20_000_000, claims=50_000_000, deliveries=20_000, ended=1_000_000)
QUICK: Final = Sizes(rows=200_000, claims=500_000, deliveries=5_000, ended=20_000)
#: Memory of ended instances in addition to that of the store.
_ENDED_MIB: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured value, and its aim, if there is one."""

    what: str
    measured: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def aim(self) -> str:
        """Return the aim as text, and by how much it is missed."""
        if self.at_most is not None:
            missed, aim = self.measured / self.at_most - 1, f"at most {self.at_most:,g}"
        elif self.at_least is not None:
            missed, aim = 1 - self.measured / self.at_least, f"at least {self.at_least:,g}"
        else:
            return ""
        return f"{aim}; missed by {missed:.0%}" if missed > 0 else f"{aim}; met"


@dataclass(frozen=True, slots=True)
class Sized:
    """The result of the benchmark."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    name: str = "size"

    def add(self, what: str, measured: float, unit: str, **aim: float) -> None:
        """Add a figure, and log it."""
        figure = Figure(what=what, measured=measured, unit=unit, **aim)
        self.figures.append(figure)
        log_progress(f"{what}: {measured:,.2f} {unit} {figure.aim}")

    def document(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {"title": self.title, "figures": [asdict(figure) for figure in self.figures]}


def run(sizes: Sizes) -> Sized:
    """Measure everything once."""
    sized = Sized(f"{sizes.rows:,} rows and {sizes.claims:,} claims in one worker")
    with opened() as system:
        _write(system, sizes)
        plain = _read(system)
        probes = Probes(system.bootstrap)
        with _worker(system) as (worker, memory):
            cold_s = _taken_over(probes, worker)
            cold_cpu = system.meter(worker=worker).parts["worker"]
            sized.add("resident at the cold restore", memory.peak, "MiB", at_most=1_536)
            _work(system, worker, probes, sizes.deliveries, sized)
            sized.add("resident with work", memory.peak, "MiB", at_most=1_536)
            sized.add("state on disk", _stored_mib(system), "MiB")
            worker.kill()
        with _worker(system) as (worker, memory):
            warm_s = _taken_over(probes, worker)
            sized.add("warm takeover of all partitions", warm_s, "s", at_most=10)
            sized.add("resident after it", memory.peak, "MiB", at_most=1_536)
        # The start and joining the group are part of both, but not of what it is compared with.
        restored_s = cold_s - warm_s
        sized.add("cold restore", restored_s, "s")
        sized.add("consume and decode", plain["seconds"], "s")
        sized.add("speed of the cold restore", plain["seconds"] / restored_s, "of it", at_least=0.5)
        sized.add("CPU of the cold restore", cold_cpu / plain["cpu_seconds"], "times it")
    grown = ended.filled(sizes.ended)
    # The store uses all the memory it may, however few instances there are; nothing else may grow.
    most = ended.STORE_MIB + _ENDED_MIB
    sized.add(f"grown by {sizes.ended:,} ended instances", grown["grown_mib"], "MiB", at_most=most)
    sized.add("of these after the first tenth", grown["grown_late_mib"], "MiB")
    return sized


def _write(system: System, sizes: Sizes) -> None:
    began = time.perf_counter()
    counts = [sizes.rows // PARTITIONS, sizes.claims // PARTITIONS, PARTITIONS]
    assigned = [range(PARTITIONS)[first::_LOADERS] for first in range(_LOADERS)]
    loaders = [
        system.child(
            f"size load {number}",
            "benchmarks.size_load",
            system.bootstrap,
            *map(str, [*counts, *partitions]),
        )
        for number, partitions in enumerate(assigned)
    ]
    try:
        for loader in loaders:
            loader.expect("written", within_s=_PATIENCE_S)
    finally:
        for loader in loaders:
            loader.stop()
    took = time.perf_counter() - began
    log_progress(f"Wrote {sizes.rows:,} rows and {sizes.claims:,} claims: {took:.0f} s")


def _read(system: System) -> dict[str, float]:
    with system.child("size read", "benchmarks.size_read", system.bootstrap) as reader:
        _, report = reader.expect("decoded", within_s=_PATIENCE_S)
    log_progress(f"A plain consumer decoded them: {report['seconds']:.0f} s")
    return report


@contextmanager
def _worker(system: System) -> Iterator[tuple[Child, Resident]]:
    # Named, so that Kafka does not wait for the session of the one that was killed.
    settings = {"member": _MEMBER, "data_dir": str(system.logs.parent / "worker")}
    with system.start_process("worker", **settings) as worker, Resident(worker.pid) as memory:
        yield worker, memory


def _taken_over(probes: Probes, worker: Child) -> float:
    """Return the seconds from a worker's start until it processes every partition."""

    async def wait() -> float:
        began = time.perf_counter()
        await probes.send()
        await probes.answered(worker.check)
        took = time.perf_counter() - began
        await probes.merged()
        return took

    return asyncio.run(wait())


def _work(system: System, worker: Child, probes: Probes, count: int, sized: Sized) -> None:
    """Make the worker merge deliveries into rows that it has not used yet."""
    arguments = (system.bootstrap, WEBHOOKS, "0", str(count))
    with system.child("preload", "benchmarks.preload", *arguments) as preload:
        preload.expect("built", within_s=_PATIENCE_S)
        before, began = system.meter(worker=worker), time.perf_counter()
        preload.send_line("go")
        probes.sent(count)
        asyncio.run(probes.answered(worker.check))
        took, after = time.perf_counter() - began, system.meter(worker=worker)
    sized.add("deliveries into rows on disk", count / took, "a second")
    sized.add("CPU of one", before.us_per_event(after, count)["worker"], "us")


def _stored_mib(system: System) -> float:
    folder = system.logs.parent / "worker"
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
