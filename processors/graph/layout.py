"""Lay out the nodes of a graph in layers, from the initial node down.

A node is one layer below the lowest node that leads to it, not counting transitions that close a
loop. Nodes without incoming transitions are at the top.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from headwater.processors.graph.definition import Definition, Transition

#: Number of tokens by node and status, for drawing a run.
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
    """Return the nodes by layer, in the order of the document. Takes linear time."""
    refs = [node.ref for node in definition.nodes]
    first = definition.initial_node_ref
    onward: dict[str, list[str]] = {ref: [] for ref in refs}
    for transition in definition.transitions:
        onward[transition.from_node_ref].append(transition.to_node_ref)
    order = _topological([first, *refs], onward)
    index = {ref: position for position, ref in enumerate(order)}
    depth = dict.fromkeys(refs, 0)
    for ref in order:
        for after in onward[ref]:
            if index[after] > index[ref]:
                depth[after] = max(depth[after], depth[ref] + 1)
    result: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for ref in refs:
        result[depth[ref]].append(ref)
    return result


def _topological(starts: Sequence[str], onward: Mapping[str, Sequence[str]]) -> list[str]:
    """Order the nodes so that all transitions lead forward, except those that close a loop."""
    seen: set[str] = set()
    finished: list[str] = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        # Without recursion, because a graph may be a chain of 10,000 nodes.
        path = [(start, iter(onward[start]))]
        while path:
            ref, left = path[-1]
            after = next((node for node in left if node not in seen), None)
            if after is None:
                finished.append(ref)
                path.pop()
            else:
                seen.add(after)
                path.append((after, iter(onward[after])))
    return finished[::-1]


def label(transition: Transition) -> str:
    """Return a short description of a transition; empty if it is always taken."""
    parts = []
    if transition.condition is not None:
        parts.append(transition.condition)
    if transition.foreach is not None:
        parts.append(f"each {transition.foreach.item_var} of {transition.foreach.collection}")
    if transition.spawn_count is not None and transition.spawn_count > 1:
        parts.append(f"{transition.spawn_count} times")
    if transition.loop_config is not None:
        parts.append(f"at most {transition.loop_config.max_iterations} times")
    if transition.synchronization is not None:
        parts.append(
            f"{transition.synchronization.strategy} of {transition.synchronization.sibling_group}"
        )
    return ", ".join(parts)


def counts(tokens: TokensAt, ref: str) -> str:
    """Return the tokens at a node as text, such as `2 executing, 1 completed`."""
    by_status = tokens.get(ref, {}).items()
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in by_status if count)


def drawn_state(tokens: TokensAt, ref: str) -> str:
    """Return how to draw a node: failed if a token is, live while one is live, otherwise done.

    It is empty for a node without tokens, or with only cancelled ones.
    """
    present = {status for status, count in tokens.get(ref, {}).items() if count}
    for drawn, statuses in _DRAWN.items():
        if present & statuses:
            return drawn
    return ""
