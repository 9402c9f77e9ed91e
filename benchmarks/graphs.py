"""Graphs: nodes a second beside the least that they could cost, and what a branch costs.

Method: as for workflows of code (`benchmarks.workflows`), with the same worker, generator and raw
appends. A line has ten nodes whose task does nothing, one after the other; a fan-out has a hundred
branches, each with such a task, between two more, and a join. An append counts for a node: what
hosts return at the same time shares a record, so a fan-out has fewer records than nodes.

In memory: the production owner and code host over a log that is a list (`WorkflowTest`), lines as
above, and a fan-out of 10 to 10,000 branches: flat is right.

`python -m benchmarks.graphs KIND SIZE TOTAL` measures once in memory and reports `nodes_s`.
"""

import asyncio
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.house import House, opened, say
from benchmarks.profiles import Profiler
from benchmarks.reporting import report
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.workflow_app import BRANCHES, TEN, fan, line, nothing
from benchmarks.workflows import HEADWATER, RAW, RAW_TOPIC, READ, Course, Work
from headwater import WorkflowTest

LINE, FAN = "line", "fan"
_LINES: Final = Work("line", "null", TEN)
_FANS: Final = Work("fan", f'{{"items":{list(range(BRANCHES))}}}', BRANCHES + 2, every=False)
_PATIENCE_S: Final = 120.0
_MEMORY: Final = ((LINE, 1), (LINE, 50), (LINE, 500), *((FAN, 10**n) for n in range(1, 5)))

_WHAT: Final = {
    HEADWATER: "nodes whose task does nothing, each durable before the next begins",
    RAW: "the same records, one append each; an append counts for a node",
    READ: "the same, while the generator reads them as it reads the history",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rounds; lines and fan-outs of a round by how many run at once; nodes of each in memory."""

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
    """Measures all parts."""
    with opened() as house:
        return [*_on_kafka(house, sizes, profiler), *_in_memory(house, sizes)]


def _on_kafka(house: House, sizes: Sizes, profiler: Profiler | None) -> list[Comparison]:
    house.make_topics(RAW_TOPIC)
    kinds = [(_LINES, at_once, count) for at_once, count in sizes.lines.items()]
    kinds += [(_FANS, at_once, count) for at_once, count in sizes.fans.items()]
    rounds: dict[str, dict[str, list[Round]]] = {
        _title(work, at_once): {name: [] for name in _WHAT} for work, at_once, _ in kinds
    }
    with ExitStack() as stack:
        course = Course(house, stack)
        say("Warming up")
        for at_once in (50, 1):
            course.round(sizes.lines[at_once], at_once, None, _LINES)
        for number in range(sizes.rounds):
            for work, at_once, count in turns(kinds, number):
                title = _title(work, at_once)
                taken = course.round(count, at_once, profiler, work)
                for name, measured in taken.items():
                    rounds[title][name].append(measured)
                rates = ", ".join(f"{n} {r.values['steps_s']:,.0f}" for n, r in taken.items())
                say(f"Round {number + 1}, {title}: {rates} nodes/s")
    return [
        Comparison(
            name=title,
            title=f"Graphs on Kafka: {title}",
            measure="steps_s",
            subject=HEADWATER,
            targets={name: Target(what=_WHAT[name], rounds=found[name]) for name in _WHAT},
        )
        for title, found in rounds.items()
    ]


def _title(work: Work, at_once: int) -> str:
    if work is _FANS:
        return f"graphs fan-out of {BRANCHES}, {at_once}"
    return f"graphs {at_once}"


# -- in memory


def _in_memory(house: House, sizes: Sizes) -> list[Comparison]:
    found: dict[tuple[str, int], list[Round]] = {kind: [] for kind in _MEMORY}
    for number in range(sizes.rounds):
        for kind, size in turns(_MEMORY, number):
            arguments = (kind, str(size), str(max(sizes.nodes, size)))
            with house.child(f"{kind} {size}", "benchmarks.graphs", *arguments) as child:
                _, values = child.expect("nodes_s", within_s=_PATIENCE_S)
            found[kind, size].append(Round(values=values, cpu_us={"all": values.pop("cpu_us")}))
        say(f"Round {number + 1} in memory")
    return [_comparison(kind, found) for kind in (LINE, FAN)]


def _comparison(kind: str, found: dict[tuple[str, int], list[Round]]) -> Comparison:
    sizes = [size for each, size in found if each == kind]
    what = "lines at once" if kind == LINE else "branches"
    return Comparison(
        name=f"graphs {kind} in memory",
        title=f"Nodes of graphs in memory: {what}",
        measure="nodes_s",
        subject=f"{sizes[-1]:,} {what}",
        targets={
            f"{size:,} {what}": Target(what=f"{size:,} {what}", rounds=found[kind, size])
            for size in sizes
        },
    )


class _Clocks(NamedTuple):
    """Seconds that have gone by, and those that a core was busy for us."""

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
        # To look at a run folds its whole history: that is not what is measured.
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
    # Once before: code is imported and specialised.
    asyncio.run(measure(10, 1_000))
    began = _clocks()
    nodes, ended = asyncio.run(measure(size, total))
    took, used = ended.wall - began.wall, ended.cpu - began.cpu
    report(
        nodes_s=round(nodes / took, 1), seconds=round(took, 3), cpu_us=round(used / nodes * 1e6, 1)
    )


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
