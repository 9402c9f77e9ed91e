"""Memory of sleeping instances, and how soon they have an owner again after a crash.

Method. A worker starts instances that sleep for 30 days, and is left alone until it is idle: by
then it keeps them as bytes. The growth of the worker and its host, divided by the number of
instances, is the memory of one. It includes what starting so many at a time allocated and did not
release; the second half, measured alone, reuses that. Then the worker is killed (SIGKILL) and
restarted at once, under the name that it keeps over restarts; meanwhile a command is sent to an
instance of every partition. The clock runs from the kill to the last of the replies, so it includes
the start of Python and of the host; a takeover without sleeping instances shows how much that is.
First without checkpoints, so that the whole history is read, then with one.
"""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages

from benchmarks.children import Child
from benchmarks.results import Comparison, Round, Target
from benchmarks.system import System, log_progress, opened

APP: Final = "benchmarks.workflow_app"
_MEMBER: Final = "bench"
_PATIENCE_S: Final = 180.0
#: Commands in flight while instances are started.
_STARTING: Final = 1_000
#: Sleeping instances before the first measurement, so that one-time growth has happened.
_FIRST: Final = 2_000
#: A worker packs idle instances into bytes after 5 s, and checks once a second.
_REST_S: Final = 7.0
#: The share of a core below which a worker counts as idle.
_IDLE: Final = 0.2
_SAMPLE_S: Final = 1.0

CHECKPOINT: Final = "from a checkpoint"
HISTORY: Final = "from the history"
EMPTY: Final = "nothing asleep"
ALL: Final = "all of them"
HALF: Final = "the second half"
TAKEN: Final = "after a takeover"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Takeovers per kind, and the number of sleeping instances."""

    rounds: int
    instances: int


class SleeperBench:
    """The worker, killed and restarted, and the process that sends commands."""

    def __init__(self, system: System, stack: ExitStack) -> None:
        self._system = system
        self._stack = stack
        self.load = stack.enter_context(
            system.child("workflow load", "benchmarks.workflow_load", system.bootstrap)
        )
        self.load.expect("ready", within_s=_PATIENCE_S)
        self.worker = self.start(checkpoints=False)

    def start(self, *, checkpoints: bool) -> Child:
        """Start a worker."""
        frequency = "often" if checkpoints else "never"
        arguments = ("benchmarks.workflow_worker", self._system.bootstrap, APP, _MEMBER, frequency)
        worker = self._system.child(f"worker, checkpoints {frequency}", *arguments)
        self.worker = self._stack.enter_context(worker)
        return self.worker

    def request(self, answer: str, command: str) -> tuple[float, float]:
        """Send a command to the load; return when it was done, and the seconds that it reports."""
        self.load.send_line(command)
        at, report = self.load.expect(answer, within_s=_PATIENCE_S)
        return at, report.get("seconds", 0.0)

    def take_over(self, *, checkpoints: bool) -> Round:
        """Kill the worker, start another, and wait until that one answers for all partitions."""
        began = time.perf_counter()
        before = self._system.meter()
        self.worker.kill()
        self.start(checkpoints=checkpoints)
        answered, _ = self.request("answered", '{"do": "end"}')
        after = self._system.meter(worker=self.worker)
        used = after.parts["worker"] + after.parts["kafka"] - before.parts["kafka"]
        return Round(
            values={"takeover_s": round(answered - began, 3)},
            cpu_us={"all": round(used * 1e6)},
        )

    def wait_until_idle(self) -> None:
        """Wait until the worker keeps its instances as bytes."""
        time.sleep(_REST_S)
        deadline = time.monotonic() + _PATIENCE_S
        process = psutil.Process(self.worker.pid)
        while process.cpu_percent(_SAMPLE_S) > _IDLE * 100:
            if time.monotonic() > deadline:
                raise self.worker.failure("did not become idle")

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of the worker and of its host."""
        process = psutil.Process(self.worker.pid)
        hosts = process.children(recursive=True)
        return {
            "worker": process.memory_info().rss,
            "host": sum(host.memory_info().rss for host in hosts),
        }


def run(sizes: Sizes) -> list[Comparison]:
    """Measure memory and takeovers."""
    takeovers: dict[str, list[Round]] = {CHECKPOINT: [], HISTORY: [], EMPTY: []}
    with opened() as system, ExitStack() as stack:
        bench = SleeperBench(system, stack)
        bench.request("answered", '{"do": "end"}')

        def take_over(kind: str, count: int, *, checkpoints: bool) -> None:
            for _ in range(count):
                taken = bench.take_over(checkpoints=checkpoints)
                takeovers[kind].append(taken)
                log_progress(f"Takeover {kind}: {taken.values['takeover_s']:.2f} s")

        take_over(EMPTY, sizes.rounds, checkpoints=False)
        empty = bench.memory()
        count = sizes.instances
        before, half, after = _start_sleepers(bench, count // 2)
        take_over(HISTORY, sizes.rounds, checkpoints=False)
        # Not measured: it reads the history and then writes the checkpoint.
        bench.take_over(checkpoints=True)
        bench.request("checkpoints", '{"do": "checkpoints"}')
        take_over(CHECKPOINT, sizes.rounds, checkpoints=True)
        bench.wait_until_idle()
        weights = {
            ALL: _weight(before, after, count),
            HALF: _weight(half, after, count // 2),
            TAKEN: _weight(empty, bench.memory(), count + _FIRST),
        }
    return [_memory(count, weights), _takeover(count, takeovers)]


def _start_sleepers(bench: SleeperBench, half: int) -> list[dict[str, int]]:
    """Start instances that sleep; return the memory before them, with half of them, with all."""
    memories = []
    for count in (_FIRST, half, half):
        command = {"do": "sleep", "count": count, "concurrency": _STARTING}
        _, took = bench.request("asleep", json.dumps(command))
        log_progress(f"{count:,} instances fell asleep within {took:.1f} s")
        bench.wait_until_idle()
        memories.append(bench.memory())
    return memories


def _weight(before: dict[str, int], after: dict[str, int], count: int) -> Round:
    grown = {name: (after[name] - before[name]) / count for name in before}
    return Round(
        values={
            "bytes_each": round(sum(grown.values()), 1),
            "host_bytes_each": round(grown["host"], 1),
        },
        cpu_us={},
    )


def _memory(count: int, weights: dict[str, Round]) -> Comparison:
    what = {
        ALL: "worker and host, growth since before they were started",
        HALF: "growth since the first half slept",
        TAKEN: "a worker that has taken them over, compared with one without sleeping instances",
    }
    return Comparison(
        name="sleepers",
        title=f"Memory of {count:,} instances that sleep",
        measure="bytes_each",
        subject=ALL,
        targets={name: Target(what=what[name], rounds=[weights[name]]) for name in weights},
    )


def _takeover(count: int, takeovers: dict[str, list[Round]]) -> Comparison:
    what = {
        CHECKPOINT: "snapshots, and the history since",
        HISTORY: "the whole history",
        EMPTY: "only the start of the worker",
    }
    return Comparison(
        name="takeover",
        title=f"From kill -9 to an answer from each partition, {count:,} instances asleep",
        measure="takeover_s",
        subject=CHECKPOINT,
        targets={kind: Target(what=what[kind], rounds=takeovers[kind]) for kind in takeovers},
    )
