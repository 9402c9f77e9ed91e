"""Find the forks around every node of a definition, by following all its transitions."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from headwater.processors.graph.definition import (
    INVALID_EXPRESSION,
    Definition,
    Problem,
    Transition,
)

#: Groups of the forks around a token, outermost first; None for a fork without a group.
Nesting: TypeAlias = tuple[str | None, ...]

#: Positions that are explored; a graph in which forks nest in a loop has any number.
_POSITIONS_MAX: Final = 10_000


def nestings_of(definition: Definition) -> dict[str, set[Nesting]] | None:
    """Return the forks in which tokens can reach every node; None if there are too many."""
    leaving: dict[str, list[Transition]] = {}
    for transition in definition.transitions:
        leaving.setdefault(transition.from_node_ref, []).append(transition)
    nestings: dict[str, set[Nesting]] = {definition.initial_node_ref: {()}}
    positions: list[tuple[str, Nesting]] = [(definition.initial_node_ref, ())]
    # The list grows while it is read.
    for count, (node, nesting) in enumerate(positions):
        if count >= _POSITIONS_MAX:
            return None
        for transition in leaving.get(node, ()):
            after = _after(transition, nesting)
            known = nestings.setdefault(transition.to_node_ref, set())
            if after not in known:
                known.add(after)
                positions.append((transition.to_node_ref, after))
    return nestings


def _after(transition: Transition, nesting: Nesting) -> Nesting:
    """Return the forks around a token that has taken a transition."""
    if transition.forks:
        return (*nesting, transition.sibling_group)
    joined = transition.synchronization
    if joined is None or joined.sibling_group not in nesting:
        return nesting
    # The innermost fork of the group is joined, and those within it are left.
    outside = len(nesting) - 1 - nesting[::-1].index(joined.sibling_group)
    return nesting[:outside]


def problems_of_merges(definition: Definition) -> Iterator[Problem]:
    """Yield merges of a path that a branch does not have, because nested branches arrive for it."""
    merged = [
        (index, transition, transition.synchronization)
        for index, transition in enumerate(definition.transitions)
        if transition.synchronization is not None
        and transition.synchronization.merge is not None
        and "." in transition.synchronization.merge.source.removeprefix("_branch.")
    ]
    nestings = (nestings_of(definition) if merged else None) or {}
    for index, transition, joined in merged:
        group = joined.sibling_group
        around = [
            nesting for nesting in nestings.get(transition.from_node_ref, ()) if group in nesting
        ]
        if around and all(nesting[-1] != group for nesting in around):
            source = joined.merge.source if joined.merge else ""
            yield Problem(
                INVALID_EXPRESSION,
                f"transitions[{index}].synchronization.merge.source",
                f"expected _branch.output, the list of the outputs of the branches of "
                f"{around[0][-1]!r}, which arrive here for a branch of {group!r}; found {source!r}",
            )
