"""The check before an activation: histories replayed per second.

Method. Runs of ten steps that wait are recorded in memory, and replayed against the same code: by
the process that the gateway starts, from its start to its last result, and in this process, without
the transfer of histories and the import of the app. Reading histories from Kafka is not part of it.
"""

import asyncio
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import structs

from benchmarks.children import BenchmarkFailed
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.system import log_progress
from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.processors.runs.history_files import RunHistory, history_of
from headwater.streams.code_host.apps import App
from headwater.streams.code_host.compatibility import CheckedCode, check_run
from headwater.streams.workflows.replay_process import ReplayLimits, replay_runs

NAME: Final = "gate"
IN_PROCESS: Final = "in process"
_STEPS: Final = 10
_MEGA: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rounds, and the histories per round."""

    rounds: int
    histories: int


FULL: Final = Sizes(rounds=5, histories=2_000)
QUICK: Final = Sizes(rounds=2, histories=500)


@workflow("bench_gate")
async def bench_gate(event: WorkflowEvent, step: Step) -> None:
    """Do ten steps, and wait."""
    for number in range(_STEPS):
        await step.do(f"step {number}", partial(dict[str, int], value=number))
    await step.wait_for_event("go", type="go")


async def _recorded(count: int) -> list[RunHistory]:
    async with WorkflowTest([bench_gate]) as test:
        await test.create("bench_gate", id="recorded")
        await test.run_until_idle()
        history = history_of(test.records("bench_gate", "recorded"), 0)
    return [structs.replace(history, instance_id=f"run-{number}") for number in range(count)]


def _by_process(histories: Sequence[RunHistory]) -> int:
    replays = asyncio.run(
        replay_runs(
            __name__,
            histories,
            limits=ReplayLimits(seconds=600.0),
            environment={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
    )
    if replays.declared.error:
        raise BenchmarkFailed(replays.declared.error)
    return sum(run.fits for run in replays.runs)


def _in_process(histories: Sequence[RunHistory]) -> int:
    code = CheckedCode.of_app(App({"bench_gate": bench_gate}))
    results = (check_run(code, history) for history in histories)
    return sum(result is not None and result.fits for result in results)


def run(sizes: Sizes) -> Comparison:
    """Measure both ways."""
    targets = {
        NAME: Target(what="a process of its own, from its start to its last result"),
        IN_PROCESS: Target(what="the replays alone"),
    }
    ways: dict[str, Callable[[Sequence[RunHistory]], int]] = {
        NAME: _by_process,
        IN_PROCESS: _in_process,
    }
    histories = asyncio.run(_recorded(sizes.histories))
    for number in range(sizes.rounds):
        for name in turns(list(ways), number):
            started, cpu_s = time.perf_counter(), _cpu_s()
            fits = ways[name](histories)
            seconds = time.perf_counter() - started
            if fits != len(histories):
                raise BenchmarkFailed(f"expected {len(histories)} runs to fit, found {fits}")
            cpu_us = (_cpu_s() - cpu_s) / len(histories) * _MEGA
            log_progress(f"{name}: {len(histories):,} histories in {seconds:.1f} s")
            values = {"histories_s": len(histories) / seconds, "seconds": seconds}
            targets[name].rounds.append(Round(values=values, cpu_us={"all": cpu_us}))
    return Comparison(
        name=NAME,
        title=f"Gate: replayed histories/s, of {_STEPS} steps each",
        measure="histories_s",
        subject=NAME,
        targets=targets,
    )


def _cpu_s() -> float:
    """Return the processor time of this process and of those that have ended, in seconds."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
