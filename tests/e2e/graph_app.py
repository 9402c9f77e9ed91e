"""Graphs that are killed in tests, beside the workflows of code: fourteen shapes, and all in one.

What they come to does not depend on who dies, and when. Where only some branches meet, all of them
give the same.
"""

import asyncio
from typing import Any

from headwater import GraphWorkflow, NonRetryableError, task
from tests.e2e.workflow_app import *  # noqa: F403, one host runs both

#: A host that is killed fails the tasks it had in hand: how often must not decide an outcome.
EVER = {"limit": 1_000_000, "delay": "100 ms", "backoff": "constant"}
_ITEMS = {"collection": "[1, 2, 3, 4]", "itemVar": "item"}


@task("double")
async def double(given: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.005)
    return {"n": given["n"] * 2}


@task("hang")
async def hang(_: object) -> None:
    await asyncio.sleep(3_600)


@task("refuse")
async def refuse(_: object) -> None:
    raise NonRetryableError("no")


def _node(ref: str, given: str = "1", to: str = "output.n", does: str = "double") -> dict[str, Any]:
    """A node that doubles what an expression gives, and puts it somewhere."""
    mappings = {"inputMapping": {"n": given}, "outputMapping": {to: "result.n"}}
    return {"ref": ref, "task": does, "retries": EVER, **mappings}


def _on(ref: str, does: str = "noop") -> dict[str, Any]:
    return {"ref": ref, "task": does, "retries": EVER}


def _way(start: str, end: str, **more: object) -> dict[str, Any]:
    return {"ref": f"{start}-{end}", "fromNodeRef": start, "toNodeRef": end, **more}


def _join(target: str, strategy: str = "all", group: str = "g", **more: object) -> dict[str, Any]:
    merge = {"source": "_branch.output.n", "target": target, "strategy": "append"}
    joined = {"strategy": strategy, "siblingGroup": group, "merge": merge, **more}
    return {"synchronization": joined}


def _graph(
    name: str, nodes: list[dict[str, Any]], ways: list[dict[str, Any]], **output: str
) -> GraphWorkflow:
    first = nodes[0]["ref"]
    return GraphWorkflow(
        name=name, initial_node_ref=first, nodes=nodes, transitions=ways, output_mapping=output
    )


single = _graph("g_single", [_node("a")], [], n="output.n")

spawned = _graph(
    "g_spawned",
    [_on("a"), _node("b", "_branch.index"), _on("c")],
    [_way("a", "b", spawnCount=5, siblingGroup="g"), _way("b", "c", **_join("state.all"))],
    all="state.all",
)

in_turn = _graph(
    "g_in_turn",
    [_on("a"), _node("b", "_branch.index"), _on("c"), _node("d", "item"), _on("e")],
    [
        _way("a", "b", spawnCount=3, siblingGroup="g"),
        _way("b", "c", **_join("state.one")),
        _way("c", "d", siblingGroup="h", foreach={"collection": "state.one", "itemVar": "item"}),
        _way("d", "e", **_join("state.two", group="h")),
    ],
    all="state.two",
)

nested = _graph(
    "g_nested",
    [_node("a", "3", "state.deep.er.one"), _node("b", "state.deep.er.one", "state.deep.two")],
    [_way("a", "b")],
    deep="state.deep",
)

apart = _graph(
    "g_apart",
    [_on("a"), _node("b", "1"), _node("c", "2"), _on("d")],
    [
        _way("a", "b", siblingGroup="g"),
        _way("a", "c", siblingGroup="g"),
        _way("b", "d", **_join("state.all")),
        _way("c", "d", **_join("state.all")),
    ],
    all="state.all",
)

chosen = _graph(
    "g_chosen",
    [_node("a", "2", "state.n"), _node("b"), _node("c", "4"), _node("d", "5", "output.at")],
    [
        _way("a", "b", condition="state.n > 100", priority=1),
        _way("a", "c", condition="state.n == 4", priority=2),
        _way("a", "d", priority=3),
    ],
    n="output.n",
    at="output.at",
)

each_item = _graph(
    "g_each_item",
    [_on("a"), _node("b", "item"), _on("c")],
    [_way("a", "b", siblingGroup="g", foreach=_ITEMS), _way("b", "c", **_join("state.all"))],
    all="state.all",
)

first = _graph(
    "g_first",
    [_on("a"), _node("b", "7"), _node("c", "7", does="hang"), _on("d")],
    [
        _way("a", "b", siblingGroup="g"),
        _way("a", "c", siblingGroup="g"),
        _way("b", "d", **_join("state.all", "any")),
        _way("c", "d", **_join("state.all", "any")),
    ],
    all="state.all",
)

quorum = _graph(
    "g_quorum",
    [_on("a"), _node("b", "7"), _on("c")],
    [
        _way("a", "b", siblingGroup="g", spawnCount=5),
        _way("b", "c", **_join("state.all", "m_of_n:3")),
    ],
    # Another branch may have arrived with the third.
    all="[state.all[0], state.all[1], state.all[2]]",
)

failing = _graph("g_failing", [_node("a"), _on("b", "refuse")], [_way("a", "b")])

in_time = _graph(
    "g_in_time",
    [_on("a"), _node("b", "7"), _node("c", "7", does="hang"), _on("d")],
    [
        _way("a", "b", siblingGroup="g"),
        _way("a", "c", siblingGroup="g"),
        *(
            _way(item, "d", **_join("state.all", timeoutMs=300, onTimeout="proceed_with_available"))
            for item in "bc"
        ),
    ],
    all="state.all",
)

_CHILD = {"inputMapping": {"n": "5"}, "outputMapping": {"state.n": "result.n"}}

outer = _graph(
    "g_outer",
    [
        {"ref": "a", "subworkflow": "g_single", **_CHILD},
        {"ref": "b", "subworkflow": "ten", "outputMapping": {"state.ten": "result"}},
    ],
    [_way("a", "b")],
    n="state.n",
    ten="state.ten",
)

everything = _graph(
    "g_everything",
    [
        _on("a"),
        {"ref": "b", "subworkflow": "g_each_item", "outputMapping": {"output.n": "result.all"}},
        _node("c", "7"),
        _node("d", "7", does="hang"),
        _on("e"),
        {**_on("f"), "outputMapping": {"state.rounds": "has(state.rounds) ? state.rounds + 1 : 1"}},
        _node("g", "state.rounds", "state.end"),
    ],
    [
        _way("a", "b", siblingGroup="g", foreach=_ITEMS),
        _way("b", "c", siblingGroup="h"),
        _way("b", "d", siblingGroup="h"),
        _way("c", "e", **_join("output.raced", "any", "h")),
        _way("d", "e", **_join("output.raced", "any", "h")),
        _way("e", "f", **_join("state.all")),
        _way("f", "a", condition="state.rounds < 2", loopConfig={"maxIterations": 3}),
        _way("f", "g", priority=1),
    ],
    all="state.all",
    end="state.end",
)

mended = _graph(
    "g_mended",
    [
        {"ref": "a", "wait": {"durationMs": 50}},
        {
            "ref": "b",
            "event": {"type": "go", "timeoutMs": 600_000},
            "outputMapping": {"state.number": "result.payload[1]"},
        },
        _on("c", "refuse"),
        _on("never"),
        {"ref": "d", "event": {"type": "none", "timeoutMs": 100}},
        {**_node("e", "state.number"), "outputMapping": {"output.n": "result.n"}},
    ],
    [
        _way("a", "b"),
        _way("b", "c"),
        _way("c", "never"),
        _way("c", "d", on="error", condition="error.name == 'NonRetryableError'"),
        _way("d", "e", on="error", condition="error.name == 'EventTimeoutError'"),
    ],
    n="output.n",
)

_SOME = [2, 4, 6, 8]
#: What instances come to: an output, or the name of an error.
OUTPUTS: dict[str, object] = {
    "g_single": {"n": 2},
    "g_spawned": {"all": [0, 2, 4, 6, 8]},
    "g_in_turn": {"all": [0, 4, 8]},
    "g_nested": {"deep": {"er": {"one": 6}, "two": 12}},
    "g_apart": {"all": [2, 4]},
    "g_chosen": {"n": 8, "at": None},
    "g_each_item": {"all": _SOME},
    "g_first": {"all": [14]},
    "g_quorum": {"all": [14, 14, 14]},
    "g_failing": "NonRetryableError",
    "g_in_time": {"all": [14]},
    "g_mended": {"n": 2},
    "g_outer": {"n": 2, "ten": 45},
    "g_everything": {"all": _SOME * 4, "end": 4},
}
