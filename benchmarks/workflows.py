"""Durable workflows: steps per second compared with raw appends, and memory of instances.

Method. `headwater worker --app` runs with its code host, as in production. A generator in a process
of its own starts workflows of ten steps that do nothing, as many at once as `concurrency`, and
considers a workflow as ended when it reads so in `workflow-history`: acknowledged, durable. In the
same round another process appends the very records that resulted, one by one, with as many appends
in flight as there were workflows: a system that makes every step durable by a record of its own
cannot be faster. They are appended until a second has passed, first without a reader, then with the
generator reading them as it reads the history: a reader that waits at the end of a topic makes
every single append more expensive, ours too.

The generator shares the machine with what it measures: `busy` is the share of a core it used.
"""

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages

from benchmarks import sleepers, workflow_steps
from benchmarks.children import BenchmarkFailed, Child
from benchmarks.profiles import Profiler
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.system import System, log_progress, opened
from benchmarks.workflow_app import TEN

APP: Final = "benchmarks.workflow_app"
HEADWATER: Final = "headwater"
RAW: Final = "raw appends"
READ: Final = "raw appends, read"
RAW_TOPIC: Final = "bench-history"
_PATIENCE_S: Final = 120.0
#: Before the first round, workflows run 50 at once until the broker's CPU per step no longer falls,
#: for at least and at most this long. A broker that is a minute old needs a whole core for its JIT
#: compiler.
_WARM_MIN_S: Final = 10.0
_WARM_MAX_S: Final = 20.0
_WARM_WORKFLOWS: Final = 800
#: By how much the broker's CPU per step falls while it is still warming up.
_STILL_FALLING: Final = 0.9

_WHAT: Final = {
    HEADWATER: "ten steps that do nothing, each durable before the next begins",
    RAW: "the same records, one append each; an append counts for a step",
    READ: "the same, while the generator reads them as it reads the history",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rounds; workflows of a round by concurrency; and sizes of the other measurements."""

    rounds: int
    workflows: dict[int, int]
    #: Steps per measurement in memory.
    steps: int
    sleepers: sleepers.Sizes


FULL: Final = Sizes(
    rounds=5,
    workflows={1: 200, 50: 2_000, 500: 4_000},
    steps=9_000,
    sleepers=sleepers.Sizes(rounds=3, instances=100_000),
)
QUICK: Final = Sizes(
    rounds=2,
    workflows={1: 100, 50: 800, 500: 1_500},
    steps=3_000,
    sleepers=sleepers.Sizes(rounds=1, instances=10_000),
)


@dataclass(frozen=True, slots=True)
class Work:
    """A workflow with params, the number of its steps, and whether every step has a record."""

    workflow: str
    params: str
    steps: int
    every: bool = True


_TEN: Final = Work("ten", "null", TEN)


class WorkflowBench:
    """The worker, the generator and the raw producer."""

    def __init__(self, system: System, stack: ExitStack) -> None:
        self._system = system
        self.worker = stack.enter_context(system.start_process("worker", app=APP, member="bench"))
        self._load = stack.enter_context(
            system.child("workflow load", "benchmarks.workflow_load", system.bootstrap)
        )
        self._raw = stack.enter_context(
            system.child("raw appends", "benchmarks.workflow_raw", system.bootstrap, RAW_TOPIC)
        )
        for child in (self._load, self._raw):
            child.expect("ready", within_s=_PATIENCE_S)
        _send(self._load, do="wait")
        self._load.expect("owned", within_s=_PATIENCE_S)

    def warm_up(self) -> None:
        """Run workflows that do not count, first a few one at a time."""
        self.steps(50, 1)
        began, latest = time.monotonic(), math.inf
        while (warmed_s := time.monotonic() - began) < _WARM_MAX_S:
            before, latest = latest, self.steps(_WARM_WORKFLOWS, 50)[0].cpu_us["kafka"]
            if warmed_s > _WARM_MIN_S and latest > _STILL_FALLING * before:
                return

    def steps(
        self,
        count: int,
        concurrency: int,
        profiler: Profiler | None = None,
        work: Work = _TEN,
    ) -> tuple[Round, dict[str, Any]]:
        """Measure workflows. Return the round, and the generator's report."""
        before = self._system.meter(worker=self.worker)
        with self._profiled(profiler, concurrency):
            what = {"workflow": work.workflow, "params": work.params, "steps": work.steps}
            _send(self._load, do="run", count=count, concurrency=concurrency, **what)
            _, result = self._load.expect("steps_s", within_s=_PATIENCE_S)
        after = self._system.meter(worker=self.worker)
        others = before.others(after, also_ours=result["busy"] * result["seconds"])
        records, steps = result["records"], count * work.steps
        if work.every and records < steps:
            raise BenchmarkFailed(f"expected at least {steps} records, found {records}")
        numbers = _numbers(result, others)
        return Round(values=numbers, cpu_us=before.us_per_event(after, steps)), result

    def round(
        self, count: int, concurrency: int, profiler: Profiler | None, work: Work = _TEN
    ) -> dict[str, Round]:
        """Measure workflows, then the appends of their records."""
        ours, result = self.steps(count, concurrency, profiler, work)
        raw = self._raw_round(result, concurrency)
        _send(self._load, do="follow", topic=RAW_TOPIC)
        self._load.expect("following", within_s=_PATIENCE_S)
        read = self._raw_round(result, concurrency)
        self._load.expect("followed", within_s=_PATIENCE_S)
        return {HEADWATER: ours, RAW: raw, READ: read}

    def _raw_round(self, result: dict[str, Any], concurrency: int) -> Round:
        self._append_again(result, concurrency)
        before = self._system.meter(raw=self._raw)
        _, appended = self._raw.expect("steps_s", within_s=_PATIENCE_S)
        after = self._system.meter(raw=self._raw)
        return Round(
            values=_numbers(appended, before.others(after)),
            cpu_us=before.us_per_event(after, appended["records"]),
        )

    def _append_again(self, result: dict[str, Any], concurrency: int) -> None:
        _send(self._raw, range=result["range"], concurrency=concurrency)
        self._raw.expect("read", within_s=_PATIENCE_S)
        self._raw.send_line("go")

    @contextmanager
    def _profiled(self, profiler: Profiler | None, concurrency: int) -> Iterator[None]:
        if profiler is None:
            yield
            return
        hosts = psutil.Process(self.worker.pid).children()
        pids = {"worker": self.worker.pid} | {f"host {n}": host.pid for n, host in enumerate(hosts)}
        with profiler.watching({f"{name} at {concurrency}": pids[name] for name in pids}):
            yield


def run(sizes: Sizes, profiler: Profiler | None) -> list[Comparison]:
    """Run all measurements."""
    with opened() as system:
        throughput = _throughput(system, sizes, profiler)
        steps = workflow_steps.run(system, sizes.rounds, sizes.steps)
    return [*throughput, *steps, *sleepers.run(sizes.sleepers)]


def _throughput(system: System, sizes: Sizes, profiler: Profiler | None) -> list[Comparison]:
    system.make_topics(RAW_TOPIC)
    rounds: dict[int, dict[str, list[Round]]] = {
        concurrency: {name: [] for name in _WHAT} for concurrency in sizes.workflows
    }
    with ExitStack() as stack:
        bench = WorkflowBench(system, stack)
        log_progress("Warming up")
        bench.warm_up()
        for number in range(sizes.rounds):
            for concurrency in turns(list(sizes.workflows), number):
                taken = bench.round(sizes.workflows[concurrency], concurrency, profiler)
                for name, measured in taken.items():
                    rounds[concurrency][name].append(measured)
                rates = ", ".join(f"{n} {r.values['steps_s']:,.0f}" for n, r in taken.items())
                log_progress(f"Round {number + 1}, {concurrency} at once: {rates} steps/s")
    return [
        Comparison(
            name=f"workflows {concurrency}",
            title=f"Workflows of ten steps that do nothing, {concurrency:,} at once",
            measure="steps_s",
            subject=HEADWATER,
            targets={
                name: Target(what=_WHAT[name], rounds=rounds[concurrency][name]) for name in _WHAT
            },
        )
        for concurrency in sizes.workflows
    ]


def _send(child: Child, **what: object) -> None:
    child.send_line(json.dumps(what))


def _numbers(report: dict[str, Any], others: float) -> dict[str, float]:
    numbers = {name: value for name, value in report.items() if isinstance(value, int | float)}
    return {**numbers, "others": others}
