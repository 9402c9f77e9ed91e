"""Where the nodes of a graph are drawn: in layers, from the initial node down.

A node is a layer below the lowest of those that lead to it; ways that close a loop do not count.
Nodes that nothing leads to begin at the top.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from headwater.processors.graph.definition import Definition, Transition

#: How many tokens of each status are at each node, where a run is drawn.
TokensAt: TypeAlias = Mapping[str, Mapping[str, int]]

NO_TOKENS: Final[TokensAt] = {}
_DRAWN: Final = {
    "failed": {"failed", "timed_out"},
    "live": {
        *("pending", "dispatched", "executing"),
        *("waiting_for_siblings", "waiting_for_subworkflow"),
    },
    "done": {"completed"},
}


def layers(definition: Definition) -> list[list[str]]:
    """The nodes, layer by layer, each in the order of the document. Linear."""
    refs = [node.ref for node in definition.nodes]
    first = definition.initial_node_ref
    onward: dict[str, list[str]] = {ref: [] for ref in refs}
    for way in definition.transitions:
        onward[way.from_node_ref].append(way.to_node_ref)
    order = _topological([first, *refs], onward)
    place = {ref: index for index, ref in enumerate(order)}
    depth = dict.fromkeys(refs, 0)
    for ref in order:
        for after in onward[ref]:
            if place[after] > place[ref]:
                depth[after] = max(depth[after], depth[ref] + 1)
    found: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for ref in refs:
        found[depth[ref]].append(ref)
    return found


def _topological(starts: Sequence[str], onward: Mapping[str, Sequence[str]]) -> list[str]:
    """The nodes so that every way but those that close a loop leads forward."""
    seen: set[str] = set()
    finished: list[str] = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        # Without recursion: a line of 10,000 nodes is a graph too.
        path = [(start, iter(onward[start]))]
        while path:
            ref, left = path[-1]
            after = next((each for each in left if each not in seen), None)
            if after is None:
                finished.append(ref)
                path.pop()
            else:
                seen.add(after)
                path.append((after, iter(onward[after])))
    return finished[::-1]


def label(way: Transition) -> str:
    """What a way says of itself, in a few words; empty for one that is always taken."""
    said = []
    if way.condition is not None:
        said.append(way.condition)
    if way.foreach is not None:
        said.append(f"each {way.foreach.item_var} of {way.foreach.collection}")
    if way.spawn_count is not None and way.spawn_count > 1:
        said.append(f"{way.spawn_count} times")
    if way.loop_config is not None:
        said.append(f"at most {way.loop_config.max_iterations} times")
    if way.synchronization is not None:
        said.append(f"{way.synchronization.strategy} of {way.synchronization.sibling_group}")
    return ", ".join(said)


def counts(tokens: TokensAt, ref: str) -> str:
    """The tokens at a node in words: `2 executing, 1 completed`."""
    found = tokens.get(ref, {}).items()
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in found if count)


def standing(tokens: TokensAt, ref: str) -> str:
    """How a node is drawn: failed if a token is, live while one moves or waits; else done.

    Shape:  empty where no token has been, or none but cancelled ones.
    """
    there = {status for status, count in tokens.get(ref, {}).items() if count}
    for drawn, statuses in _DRAWN.items():
        if there & statuses:
            return drawn
    return ""
