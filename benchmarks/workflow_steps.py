"""Cost of a step in the engine itself, live and replayed, in short and long workflows.

In `WorkflowTest`: the production owner and code host over a log in memory, without Kafka or another
process. The same number of steps is executed whatever the length of the workflows, by the same
number of workflows at a time: only the length differs. If a step cost more in a long workflow than
in a short one, there would be fewer steps per second.

`python -m benchmarks.workflow_steps KIND LENGTH TOTAL` measures once and reports `steps_s`. KIND is
`live`, `replay` (memory is lost; all runs are folded and replayed), or `harness` (all workflows at
once: what a test waits for).
"""

import asyncio
import sys
import time
from typing import Final

from benchmarks.reporting import report
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.system import System, log_progress
from benchmarks.workflow_app import TEN, many, many_then_wait, ten
from headwater import WorkflowTest

_LENGTHS: Final = (1_000, 100, 10)
#: Workflows running at a time: as many of the longest as make up the total.
_AT_ONCE: Final = 3
_THOUSAND: Final = 1_000
_PATIENCE_S: Final = 120.0

LIVE: Final = "live"
REPLAY: Final = "replay"
HARNESS: Final = "harness"

_TITLES: Final = {
    LIVE: "Steps of long and short workflows in memory, live",
    REPLAY: "Steps of long and short workflows in memory, folded and replayed",
}


def run(system: System, rounds: int, total: int) -> list[Comparison]:
    """Run all measurements, in separate processes."""
    rounds_of: dict[tuple[str, int], list[Round]] = {
        (kind, length): [] for kind in _TITLES for length in _LENGTHS
    }
    thousand: list[Round] = []
    for number in range(rounds):
        for kind, length in turns(list(rounds_of), number):
            rounds_of[kind, length].append(_measured(system, kind, length, total))
        thousand.append(_measured(system, HARNESS, TEN, _THOUSAND * TEN))
        log_progress(
            f"Round {number + 1}: {thousand[-1].values['seconds']:.2f} s for 1,000 in the harness"
        )
    return [*(_comparison(kind, rounds_of) for kind in _TITLES), _harness(thousand)]


def _measured(system: System, kind: str, length: int, total: int) -> Round:
    arguments = (kind, str(length), str(total))
    with system.child(f"{kind} {length}", "benchmarks.workflow_steps", *arguments) as child:
        _, values = child.expect("steps_s", within_s=_PATIENCE_S)
    return Round(values=values, cpu_us={"all": values.pop("cpu_us")})


def _comparison(kind: str, rounds_of: dict[tuple[str, int], list[Round]]) -> Comparison:
    return Comparison(
        name=f"steps {kind}",
        title=_TITLES[kind],
        measure="steps_s",
        subject=_name(_LENGTHS[0]),
        targets={
            _name(length): Target(
                what=f"{length:,} steps a workflow", rounds=rounds_of[kind, length]
            )
            for length in _LENGTHS
        },
    )


def _name(length: int) -> str:
    return f"{length:,} steps"


def _harness(rounds: list[Round]) -> Comparison:
    return Comparison(
        name="harness",
        title="A thousand workflows of ten steps in WorkflowTest",
        measure="steps_s",
        subject="WorkflowTest",
        targets={"WorkflowTest": Target(what="all of them at once", rounds=rounds)},
    )


# -- the child


async def _live(length: int, total: int) -> float:
    async with WorkflowTest([many]) as test:
        instances = []
        began = time.perf_counter()
        for _ in range(0, total, length * _AT_ONCE):
            instances += [await test.create("many", params=length) for _ in range(_AT_ONCE)]
            await test.run_until_idle()
        took = time.perf_counter() - began
        assert (await instances[-1].status()).status == "complete"
    return took


async def _replay(length: int, total: int) -> float:
    async with WorkflowTest([many_then_wait]) as test:
        instances = [
            await test.create("many-then-wait", params=length) for _ in range(total // length)
        ]
        await test.run_until_idle()
        began = time.perf_counter()
        await test.crash()
        for first in range(0, len(instances), _AT_ONCE):
            for instance in instances[first : first + _AT_ONCE]:
                await instance.send_event("go-on")
            await test.run_until_idle()
        took = time.perf_counter() - began
        assert (await instances[-1].status()).status == "complete"
    return took


async def _thousand(length: int, total: int) -> float:
    began = time.perf_counter()
    async with WorkflowTest([ten]) as test:
        instances = [await test.create("ten") for _ in range(total // length)]
        await test.run_until_idle()
        assert (await instances[-1].status()).status == "complete"
    return time.perf_counter() - began


def _main(kind: str, length: int, total: int) -> None:
    measure = {LIVE: _live, REPLAY: _replay, HARNESS: _thousand}[kind]
    # Once before, shorter: code is imported and specialized.
    asyncio.run(measure(length, length * _AT_ONCE))
    cpu = time.process_time()
    took = asyncio.run(measure(length, total))
    used = time.process_time() - cpu
    report(
        steps_s=round(total / took, 1), seconds=round(took, 3), cpu_us=round(used / total * 1e6, 1)
    )


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
