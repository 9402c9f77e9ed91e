"""The graphs of the simulation: drawn anew for each variant, with children of every kind.

A graph is settled if it ends the same in whatever order its tokens do: of those, worlds with faults
are compared with worlds without. Of all others the laws speak, and the naive model.
"""

from collections.abc import Mapping
from random import Random
from typing import Any, Final
from zlib import crc32

from headwater import ChildWorkflowError, NonRetryableError, Task, task
from headwater.processors.graph.graph import Graph, graph_of
from headwater.streams.replay.host_port import ATTEMPT
from tests.fakes.drawn_graphs import EVENTS, STRATEGIES, Blocks
from tests.simulation.corpus import LONG, Event, Step
from tests.simulation.shapes import EVER, Body, Place, Port, Shape, Unreachable, Work

#: So long waits a node of a settled graph for an event, of which the world knows that it comes.
EVENT_COMES_MS: Final = 364 * 86_400_000
#: For tasks that succeed at last: how often a host is lost must not decide whether they do.
_EVER: Final = {"limit": 1_000_000, "delay": "5 seconds", "backoff": "constant"}


def tasks(port: Port) -> list[Task]:
    """What the nodes of all graphs do."""

    @task("work")
    async def work(given: dict[str, Any]) -> dict[str, Any]:
        await port.pass_time()
        attempt = ATTEMPT.get()
        assert attempt is not None
        if attempt.number <= crc32(repr(given).encode()) % 5 - 2:
            raise Unreachable(f"{given}, {attempt.number}")
        return {"at": f"{given['node']}:{given['branch']}"}

    @task("refuse")
    async def refuse(given: dict[str, Any]) -> None:
        await port.pass_time()
        raise NonRetryableError("no")

    @task("unlucky")
    async def unlucky(given: dict[str, Any]) -> dict[str, Any]:
        await port.pass_time()
        attempt = ATTEMPT.get()
        assert attempt is not None
        workflow, _, instance_id = attempt.instance.partition("/")
        if port.end(Place(workflow, instance_id, 0, f"unlucky {attempt.key}")) <= 1:
            raise NonRetryableError("no, not this time")
        return {"at": given["node"]}

    return [work, refuse, unlucky]


def _settled(draw: Random) -> dict[str, Any]:
    if draw.random() < 0.2:
        return {"subworkflow": draw.choice(["twig", "small"])}
    return {"task": "work", "retries": _EVER}


def _unsettled(draw: Random) -> dict[str, Any]:
    kind = draw.random()
    if kind < 0.03:
        return {"task": "refuse"}
    if kind < 0.08:
        return {"subworkflow": "breaks"}
    if kind < 0.13:
        return {"subworkflow": "longest", "timeoutMs": draw.choice([5_000, 600_000])}
    if kind < 0.4:
        # Its attempts often take longer than they may.
        return {"task": "work", "retries": _EVER, "timeoutMs": 4_000}
    return _settled(draw)


def _race(blocks: Blocks) -> tuple[str, str]:
    """A node beside a child that takes longer than any world: it is ended when they meet."""
    start, quick, slow, end = (blocks.node() for _ in range(4))
    del blocks.nodes[-2]["task"]
    blocks.nodes[-2] = {**blocks.nodes[-2], "subworkflow": "longest"}
    blocks.nodes[-2].pop("retries", None)
    for entry in (quick, slow):
        blocks.way(start, entry, siblingGroup="race")
        blocks.way(entry, end, synchronization={"strategy": "any", "siblingGroup": "race"})
    return start, end


def _late(blocks: Blocks, draw: Random) -> tuple[str, str]:
    """A branch waits for another, of which the node fails the first time.

    A retry waits anew, or the join does without that branch, or an error transition leads there.
    """
    blocks.does = lambda _: {"task": "work", "retries": _EVER}
    start, quick, unlucky, end = (blocks.node() for _ in range(4))
    blocks.nodes[-2] |= {"task": "unlucky"}
    then = draw.choice(["fail", "proceed_with_available"])
    timeout = {"timeoutMs": draw.choice([5_000, 600_000]), "onTimeout": then}
    join = {"strategy": "all", "siblingGroup": "late", **timeout}
    way_out = draw.choice(["retry", "retry", "tolerate", "error"])
    if way_out == "tolerate":
        join["onBranchFailure"] = "tolerate"
    for entry in (quick, unlucky):
        blocks.way(start, entry, siblingGroup="late")
        blocks.way(entry, end, synchronization=join)
    if way_out == "error":
        blocks.way(unlucky, end, synchronization=join, on="error")
    return start, end


def _follow_errors(blocks: Blocks, draw: Random) -> None:
    """Of some nodes that may fail, the error is followed by another node."""
    blocks.does = lambda _: {"task": "work", "retries": _EVER}
    for node in list(blocks.nodes):
        fails = node.get("task") == "refuse" or node.get("subworkflow") in {"breaks", "longest"}
        if fails and draw.random() < 0.4:
            blocks.way(node["ref"], blocks.node(), on="error")


def drawn_graph(variant: int) -> dict[str, Any]:
    """The definition `grown` of a variant: of an even one a settled graph, of some with jobs."""
    document = _drawn(variant)
    draw = Random(f"jobs {variant}")
    share = draw.choice([0, 0, 0.3, 1])
    for node in document["nodes"]:
        if node.get("task") == "work" and draw.random() < share:
            node["external"] = True
    _wait(document, Random(f"waits {variant}"), settled=variant % 2 == 0)
    return document


def _wait(document: dict[str, Any], draw: Random, *, settled: bool) -> None:
    """Some nodes wait for a time or an event, which comes in time in a settled graph."""
    for node in document["nodes"]:
        kind = draw.random()
        if node.get("task") != "work" or kind > 0.2:
            continue
        for key in ("task", "retries", "timeoutMs", "external", "inputMapping"):
            node.pop(key, None)
        if kind < 0.1:
            node["wait"] = {"durationMs": draw.choice([0, 1_000, 8_000])}
        else:
            timeout_ms = EVENT_COMES_MS if settled else draw.choice([5_000, 600_000])
            node["event"] = {"type": draw.choice(EVENTS), "timeoutMs": timeout_ms}


def _drawn(variant: int) -> dict[str, Any]:
    draw = Random(f"graph {variant}")
    if variant % 2:
        errors = draw.random() < 0.5
        limited = Random(f"limited {variant}").random() < 0.25
        blocks = Blocks(
            draw,
            STRATEGIES,
            _unsettled,
            timeouts=True,
            tolerant=True,
            errors=errors,
            limited=limited,
        )
        document = blocks.document("grown")
        _follow_errors(blocks, Random(f"errors {variant}"))
        if draw.random() < 0.7:
            first, last = _late(blocks, draw)
            blocks.way(last, document["initialNodeRef"])
            document["initialNodeRef"] = first
        return document
    blocks = Blocks(draw, ("all",), _settled)
    document = blocks.document("grown")
    if draw.random() < 0.3:
        last = blocks.nodes[-1]["ref"]
        blocks.does = lambda _: {"task": "work", "retries": _EVER}
        blocks.way(last, _race(blocks)[0])
    return document


def graphs(variant: int) -> list[Graph]:
    """The graphs of a world."""
    twig = Blocks(Random(0), STRATEGIES, lambda _: {"task": "work", "retries": _EVER})
    return [graph_of(drawn_graph(variant)), graph_of(twig.document("twig", 0))]


async def small(event: Event, step: Step, work: Work) -> object:
    """A child of code."""
    return {"at": await step.do("leaf", work.do("leaf"), retries=EVER)}


async def breaks(event: Event, step: Step, work: Work) -> object:
    """A child that fails."""
    await step.do("leaf", work.do("leaf"), retries=EVER)
    raise NonRetryableError("broken")


async def longest(event: Event, step: Step, work: Work) -> None:
    """A child that nobody waits for to the end."""
    await step.sleep("long", LONG)


async def gardener(event: Event, step: Step, work: Work) -> object:
    """Code that runs graphs as its children."""
    result = [await step.do("before", work.do("before"), retries=EVER)]
    for _ in range(2):
        try:
            result.append(await step.run_workflow("grow", "grown", params=event.payload))
        except ChildWorkflowError as error:
            result.append(str(error))
    return result


_CHILDREN: Final[dict[str, tuple[Body, bool]]] = {
    item.__name__: (item, False) for item in (small, breaks, longest)
}
#: Roots of graphs, and of code that runs graphs.
GRAPH_SHAPES: Final[Mapping[str, Shape]] = {
    "grown": Shape("grown", _CHILDREN, restarts=True, graphs=("grown", "twig")),
    "gardener": Shape(
        "gardener", {"gardener": (gardener, False), **_CHILDREN}, graphs=("grown", "twig")
    ),
}
