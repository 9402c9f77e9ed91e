"""What instances that sleep weigh, and how soon they have an owner again when theirs is killed.

Method. A worker starts instances that sleep for 30 days, and is left alone until it is idle: by
then it keeps them as bytes. What it and its host have grown by, divided by their number, is what
one weighs; it holds what the start of so many at a time took and was not given back, which the
second half of them, taken alone, finds there already. Then the worker is killed (SIGKILL) and
started again at once, under the name that it keeps over restarts; meanwhile an instance of each
partition is sent a command. The clock runs from the kill to the last of the replies, so it holds
the start of Python and of the host; a takeover with nothing asleep says how much that is. First
without checkpoints, so that the whole history is read, then with one.
"""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages

from benchmarks.children import Child
from benchmarks.house import House, opened, say
from benchmarks.results import Comparison, Round, Target

APP: Final = "benchmarks.workflow_app"
_MEMBER: Final = "bench"
_PATIENCE_S: Final = 180.0
#: Commands on their way at once while instances are started.
_STARTING: Final = 1_000
#: Instances that are asleep before the first weighing: what is grown only once is grown by then.
_FIRST: Final = 2_000
#: A worker keeps what rests as bytes after 5 s, and looks once a second.
_REST_S: Final = 7.0
#: The share of a core below which a worker has nothing left to do.
_IDLE: Final = 0.2
_LOOK_S: Final = 1.0

CHECKPOINT: Final = "from a checkpoint"
HISTORY: Final = "from the history"
EMPTY: Final = "nothing asleep"
ALL: Final = "all of them"
HALF: Final = "the second half"
TAKEN: Final = "after a takeover"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Takeovers of each kind, and how many instances sleep."""

    rounds: int
    instances: int


class Bed:
    """The worker, killed and started again, and the process that sends commands."""

    def __init__(self, house: House, stack: ExitStack) -> None:
        self._house = house
        self._stack = stack
        self.load = stack.enter_context(
            house.child("workflow load", "benchmarks.workflow_load", house.bootstrap)
        )
        self.load.expect("ready", within_s=_PATIENCE_S)
        self.worker = self.start(checkpoints=False)

    def start(self, *, checkpoints: bool) -> Child:
        """Starts a worker."""
        how_often = "often" if checkpoints else "never"
        arguments = ("benchmarks.workflow_worker", self._house.bootstrap, APP, _MEMBER, how_often)
        worker = self._house.child(f"worker, checkpoints {how_often}", *arguments)
        self.worker = self._stack.enter_context(worker)
        return self.worker

    def ask(self, answer: str, command: str) -> tuple[float, float]:
        """Has the load do something; gives when it was done, and the seconds that it reports."""
        self.load.tell(command)
        at, report = self.load.expect(answer, within_s=_PATIENCE_S)
        return at, report.get("seconds", 0.0)

    def take_over(self, *, checkpoints: bool) -> Round:
        """Kills the worker, starts another, and waits until that one answers for all partitions."""
        began = time.perf_counter()
        before = self._house.meter()
        self.worker.kill()
        self.start(checkpoints=checkpoints)
        answered, _ = self.ask("answered", '{"do": "end"}')
        after = self._house.meter(worker=self.worker)
        used = after.parts["worker"] + after.parts["kafka"] - before.parts["kafka"]
        return Round(
            values={"takeover_s": round(answered - began, 3)},
            cpu_us={"all": round(used * 1e6)},
        )

    def wait_until_idle(self) -> None:
        """Waits until the worker keeps its instances as bytes."""
        time.sleep(_REST_S)
        deadline = time.monotonic() + _PATIENCE_S
        process = psutil.Process(self.worker.pid)
        while process.cpu_percent(_LOOK_S) > _IDLE * 100:
            if time.monotonic() > deadline:
                raise self.worker.failure("did not come to rest")

    def memory(self) -> dict[str, int]:
        """Resident bytes of the worker and of its host."""
        process = psutil.Process(self.worker.pid)
        hosts = process.children(recursive=True)
        return {
            "worker": process.memory_info().rss,
            "host": sum(host.memory_info().rss for host in hosts),
        }


def run(sizes: Sizes) -> list[Comparison]:
    """Measures both."""
    takeovers: dict[str, list[Round]] = {CHECKPOINT: [], HISTORY: [], EMPTY: []}
    with opened() as house, ExitStack() as stack:
        bed = Bed(house, stack)
        bed.ask("answered", '{"do": "end"}')

        def take_over(kind: str, count: int, *, checkpoints: bool) -> None:
            for _ in range(count):
                taken = bed.take_over(checkpoints=checkpoints)
                takeovers[kind].append(taken)
                say(f"Takeover {kind}: {taken.values['takeover_s']:.2f} s")

        take_over(EMPTY, sizes.rounds, checkpoints=False)
        empty = bed.memory()
        count = sizes.instances
        before, half, after = _lay_down(bed, count // 2)
        take_over(HISTORY, sizes.rounds, checkpoints=False)
        # Of this one nobody knows the time: it reads the history and then writes it down.
        bed.take_over(checkpoints=True)
        bed.ask("checkpoints", '{"do": "checkpoints"}')
        take_over(CHECKPOINT, sizes.rounds, checkpoints=True)
        bed.wait_until_idle()
        weights = {
            ALL: _weight(before, after, count),
            HALF: _weight(half, after, count // 2),
            TAKEN: _weight(empty, bed.memory(), count + _FIRST),
        }
    return [_memory(count, weights), _takeover(count, takeovers)]


def _lay_down(bed: Bed, half: int) -> list[dict[str, int]]:
    """Starts instances that sleep; gives the memory before them, with half of them, with all."""
    memories = []
    for count in (_FIRST, half, half):
        command = {"do": "sleep", "count": count, "concurrency": _STARTING}
        _, took = bed.ask("asleep", json.dumps(command))
        say(f"{count:,} instances fell asleep within {took:.1f} s")
        bed.wait_until_idle()
        memories.append(bed.memory())
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
        ALL: "worker and host, grown since before they were started",
        HALF: "grown since the first half slept",
        TAKEN: "a worker that has taken them over, beside one with nothing asleep",
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
        CHECKPOINT: "snapshots, and what the history holds since",
        HISTORY: "the whole history",
        EMPTY: "what the start of the worker takes",
    }
    return Comparison(
        name="takeover",
        title=f"From kill -9 to an answer from each partition, {count:,} instances asleep",
        measure="takeover_s",
        subject=CHECKPOINT,
        targets={kind: Target(what=what[kind], rounds=takeovers[kind]) for kind in takeovers},
    )
