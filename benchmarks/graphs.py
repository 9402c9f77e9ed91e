"""Graphs: nodes per second compared with raw appends, and the cost of a branch.

Method: as for workflows of code (`benchmarks.workflows`), with the same worker, generator and raw
appends. A line has ten nodes in sequence with a task that does nothing; a fan-out has a hundred
branches with such a task, between two more, and a join. An append counts as a node: results
that hosts return at the same time share a record, so a fan-out has fewer records than nodes.

In memory: the production owner and code host over a log that is a list (`WorkflowTest`), lines as
above, and a fan-out of 10 to 10,000 branches; their rates should not differ.

`python -m benchmarks.graphs KIND SIZE TOTAL` measures once in memory and reports `nodes_s`.
"""

import asyncio
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.profiles import Profiler
from benchmarks.reporting import report
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.system import System, log_progress, opened
from benchmarks.workflow_app import BRANCHES, TEN, fan, line, nothing
from benchmarks.workflows import HEADWATER, RAW, RAW_TOPIC, READ, Work, WorkflowBench
from headwater import WorkflowTest

LINE, FAN = "line", "fan"
_LINES: Final = Work("line", "null", TEN)
_FANS: Final = Work("fan", f'{{"items":{list(range(BRANCHES))}}}', BRANCHES + 2, every=False)
_PATIENCE_S: Final = 120.0
_MEMORY: Final = ((LINE, 1), (LINE, 50), (LINE, 500), *((FAN, 10**n) for n in range(1, 5)))

_WHAT: Final = {
    HEADWATER: "nodes that do nothing, each durable before the next begins",
    RAW: "the same records, one append each; an append counts for a node",
    READ: "the same, while the generator reads them as it reads the history",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rounds; lines and fan-outs of a round by concurrency; nodes of each measurement in memory."""

    rounds: int
    lines: dict[int, int]
    fans: dict[int, int]
    nodes: int


FULL: Final = Sizes(
    rounds=5, lines={1: 200, 50: 2_000, 500: 4_000}, fans={1: 200, 10: 400}, nodes=20_000
)
QUICK: Final = Sizes(
    rounds=2, lines={1: 50, 50: 500, 500: 1_500}, fans={1: 40, 10: 150}, nodes=10_000
)


def run(sizes: Sizes, profiler: Profiler | None) -> list[Comparison]:
    """Run all measurements."""
    with opened() as system:
        return [*_on_kafka(system, sizes, profiler), *_in_memory(system, sizes)]


def _on_kafka(system: System, sizes: Sizes, profiler: Profiler | None) -> list[Comparison]:
    system.make_topics(RAW_TOPIC)
    kinds = [(_LINES, at_once, count) for at_once, count in sizes.lines.items()]
    kinds += [(_FANS, at_once, count) for at_once, count in sizes.fans.items()]
    rounds: dict[str, dict[str, list[Round]]] = {
        _title(work, at_once): {name: [] for name in _WHAT} for work, at_once, _ in kinds
    }
    with ExitStack() as stack:
        bench = WorkflowBench(system, stack)
        log_progress("Warming up")
        for at_once in (50, 1):
            bench.round(sizes.lines[at_once], at_once, None, _LINES)
        for number in range(sizes.rounds):
            for work, at_once, count in turns(kinds, number):
                title = _title(work, at_once)
                measured = bench.round(count, at_once, profiler, work)
                for name, round_ in measured.items():
                    rounds[title][name].append(round_)
                rates = ", ".join(f"{n} {r.values['steps_s']:,.0f}" for n, r in measured.items())
                log_progress(f"Round {number + 1}, {title}: {rates} nodes/s")
    return [
        Comparison(
            name=title,
            title=f"Graphs on Kafka: {title}",
            measure="steps_s",
            subject=HEADWATER,
            targets={name: Target(what=_WHAT[name], rounds=by_target[name]) for name in _WHAT},
        )
        for title, by_target in rounds.items()
    ]


def _title(work: Work, at_once: int) -> str:
    if work is _FANS:
        return f"graphs fan-out of {BRANCHES}, {at_once}"
    return f"graphs {at_once}"


# -- in memory


def _in_memory(system: System, sizes: Sizes) -> list[Comparison]:
    rounds: dict[tuple[str, int], list[Round]] = {kind: [] for kind in _MEMORY}
    for number in range(sizes.rounds):
        for kind, size in turns(_MEMORY, number):
            arguments = (kind, str(size), str(max(sizes.nodes, size)))
            with system.child(f"{kind} {size}", "benchmarks.graphs", *arguments) as child:
                _, values = child.expect("nodes_s", within_s=_PATIENCE_S)
            rounds[kind, size].append(Round(values=values, cpu_us={"all": values.pop("cpu_us")}))
        log_progress(f"Round {number + 1} in memory")
    return [_comparison(kind, rounds) for kind in (LINE, FAN)]


def _comparison(kind: str, rounds: dict[tuple[str, int], list[Round]]) -> Comparison:
    sizes = [size for kind_, size in rounds if kind_ == kind]
    what = "lines at once" if kind == LINE else "branches"
    return Comparison(
        name=f"graphs {kind} in memory",
        title=f"Nodes of graphs in memory: {what}",
        measure="nodes_s",
        subject=f"{sizes[-1]:,} {what}",
        targets={
            f"{size:,} {what}": Target(what=f"{size:,} {what}", rounds=rounds[kind, size])
            for size in sizes
        },
    )


class _Clocks(NamedTuple):
    """Elapsed seconds, and processor seconds of this process."""

    wall: float
    cpu: float


def _clocks() -> _Clocks:
    return _Clocks(time.perf_counter(), time.process_time())


async def _lines(at_once: int, nodes: int) -> tuple[int, _Clocks]:
    async with WorkflowTest([line], tasks=[nothing]) as test:
        count = max(1, nodes // TEN // at_once)
        for number in range(count):
            await test.create_batch("line", [{"id": f"{number}-{n}"} for n in range(at_once)])
            await test.run_until_idle()
        # Reading the status folds the whole history, which is not measured.
        ended = _clocks()
        assert (await test.get("line", "0-0").status()).status == "complete"
    return count * at_once * TEN, ended


async def _fans(branches: int, nodes: int) -> tuple[int, _Clocks]:
    async with WorkflowTest([fan], tasks=[nothing]) as test:
        count = max(1, nodes // branches)
        for number in range(count):
            params = {"items": list(range(branches))}
            await test.create("fan", id=str(number), params=params)
            await test.run_until_idle()
        ended = _clocks()
        assert (await test.get("fan", "0").status()).status == "complete"
    return count * (branches + 2), ended


def _main(kind: str, size: int, total: int) -> None:
    measure = {LINE: _lines, FAN: _fans}[kind]
    # Once before the measurement: code is imported and specialized.
    asyncio.run(measure(10, 1_000))
    began = _clocks()
    nodes, ended = asyncio.run(measure(size, total))
    took, used = ended.wall - began.wall, ended.cpu - began.cpu
    report(
        nodes_s=round(nodes / took, 1), seconds=round(took, 3), cpu_us=round(used / nodes * 1e6, 1)
    )


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
