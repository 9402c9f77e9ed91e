"""How large the state of one worker may be: millions of rows and claims, in bounded memory.

Method. Rows of `daily_summary` and claims of event ids are written straight into their topics, as
the intake would have. A plain consumer reads and decodes all of them: the least that a restore
could do. Then `headwater worker` starts, without a store, alone in its group. It has taken over
once a new delivery of every partition has its outcome: that is the cold restore. Sent along are a
copy of what was claimed first, which has to be dropped, and a delivery for a row that is there,
which has to keep what it was. Then the worker has some work, is killed (SIGKILL), and starts again
over its store: the warm takeover. Resident memory is that of the process tree, looked at ten times
a second.

For workflow instances that ended it is `benchmarks.ended`: what the owner of a partition grows by,
beside what its store may take.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchmarks import ended
from benchmarks.children import Child
from benchmarks.house import PARTITIONS, House, opened, say
from benchmarks.resident import Resident
from benchmarks.size_probes import Probes
from headwater.schemas.topics import WEBHOOKS

#: A worker that says nothing for as long is stuck, or the machine is far too small.
_PATIENCE_S: Final = 3 * 60 * 60.0
_LOADERS: Final = 2
_MEMBER: Final = "bench-size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything there is."""

    rows: int
    claims: int
    deliveries: int
    ended: int


FULL: Final = Sizes(rows=20_000_000, claims=50_000_000, deliveries=20_000, ended=1_000_000)
QUICK: Final = Sizes(rows=200_000, claims=500_000, deliveries=5_000, ended=20_000)
#: What instances that ended may weigh beside what the store may take.
_ENDED_BESIDE_STORE_MIB: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was found of something, and the aim, if there is one."""

    what: str
    found: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def aim(self) -> str:
        """The aim in words, and by how much it is missed."""
        if self.at_most is not None:
            missed, aim = self.found / self.at_most - 1, f"at most {self.at_most:,g}"
        elif self.at_least is not None:
            missed, aim = 1 - self.found / self.at_least, f"at least {self.at_least:,g}"
        else:
            return ""
        return f"{aim}; missed by {missed:.0%}" if missed > 0 else f"{aim}; met"


@dataclass(frozen=True, slots=True)
class Sized:
    """The outcome of the benchmark."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    name: str = "size"

    def add(self, what: str, found: float, unit: str, **aim: float) -> None:
        """Takes a figure in, and says it."""
        figure = Figure(what=what, found=found, unit=unit, **aim)
        self.figures.append(figure)
        say(f"{what}: {found:,.2f} {unit} {figure.aim}")

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {"title": self.title, "figures": [asdict(figure) for figure in self.figures]}


def run(sizes: Sizes) -> Sized:
    """Measures all of it, once."""
    sized = Sized(f"{sizes.rows:,} rows and {sizes.claims:,} claims in one worker")
    with opened() as house:
        _write(house, sizes)
        plain = _read(house)
        probes = Probes(house.bootstrap)
        with _worker(house) as (worker, memory):
            cold_s = _taken_over(probes, worker)
            cold_cpu = house.meter(worker=worker).parts["worker"]
            sized.add("resident at the cold restore", memory.peak, "MiB", at_most=1_536)
            _work(house, worker, probes, sizes.deliveries, sized)
            sized.add("resident with work", memory.peak, "MiB", at_most=1_536)
            sized.add("state on disk", _stored_mib(house), "MiB")
            worker.kill()
        with _worker(house) as (worker, memory):
            warm_s = _taken_over(probes, worker)
            sized.add("warm takeover of all partitions", warm_s, "s", at_most=10)
            sized.add("resident after it", memory.peak, "MiB", at_most=1_536)
        # What a start and joining the group take is in both, and not in what it is compared with.
        restored_s = cold_s - warm_s
        sized.add("cold restore", restored_s, "s")
        sized.add("consume and decode", plain["seconds"], "s")
        sized.add("speed of the cold restore", plain["seconds"] / restored_s, "of it", at_least=0.5)
        sized.add("CPU of the cold restore", cold_cpu / plain["cpu_seconds"], "times it")
    found = ended.filled(sizes.ended)
    # The store fills what it may take, however few they are; beyond that, nothing is to grow.
    most = ended.STORE_MIB + _ENDED_BESIDE_STORE_MIB
    sized.add(f"grown by {sizes.ended:,} ended instances", found["grown_mib"], "MiB", at_most=most)
    sized.add("of these after the first tenth", found["grown_late_mib"], "MiB")
    return sized


def _write(house: House, sizes: Sizes) -> None:
    began = time.perf_counter()
    counts = [sizes.rows // PARTITIONS, sizes.claims // PARTITIONS, PARTITIONS]
    each = [range(PARTITIONS)[first::_LOADERS] for first in range(_LOADERS)]
    loaders = [
        house.child(
            f"size load {number}",
            "benchmarks.size_load",
            house.bootstrap,
            *map(str, [*counts, *partitions]),
        )
        for number, partitions in enumerate(each)
    ]
    try:
        for loader in loaders:
            loader.expect("written", within_s=_PATIENCE_S)
    finally:
        for loader in loaders:
            loader.stop()
    took = time.perf_counter() - began
    say(f"Wrote {sizes.rows:,} rows and {sizes.claims:,} claims: {took:.0f} s")


def _read(house: House) -> dict[str, float]:
    with house.child("size read", "benchmarks.size_read", house.bootstrap) as reader:
        _, report = reader.expect("decoded", within_s=_PATIENCE_S)
    say(f"A plain consumer decoded them: {report['seconds']:.0f} s")
    return report


@contextmanager
def _worker(house: House) -> Iterator[tuple[Child, Resident]]:
    # Named, so that Kafka does not wait for the one that was killed.
    settings = {"member": _MEMBER, "data_dir": str(house.logs.parent / "worker")}
    with house.part("worker", **settings) as worker, Resident(worker.pid) as memory:
        yield worker, memory


def _taken_over(probes: Probes, worker: Child) -> float:
    """Seconds, from its start, until a worker works on every partition."""

    async def wait() -> float:
        began = time.perf_counter()
        await probes.send()
        await probes.answered(worker.check)
        took = time.perf_counter() - began
        await probes.merged()
        return took

    return asyncio.run(wait())


def _work(house: House, worker: Child, probes: Probes, count: int, sized: Sized) -> None:
    """Has the worker merge deliveries into rows that it has not used yet."""
    arguments = (house.bootstrap, WEBHOOKS, "0", str(count))
    with house.child("preload", "benchmarks.preload", *arguments) as preload:
        preload.expect("built", within_s=_PATIENCE_S)
        before, began = house.meter(worker=worker), time.perf_counter()
        preload.tell("go")
        probes.sent(count)
        asyncio.run(probes.answered(worker.check))
        took, after = time.perf_counter() - began, house.meter(worker=worker)
    sized.add("deliveries into rows on disk", count / took, "a second")
    sized.add("CPU of one", before.each(after, count)["worker"], "us")


def _stored_mib(house: House) -> float:
    folder = house.logs.parent / "worker"
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) / 2**20
