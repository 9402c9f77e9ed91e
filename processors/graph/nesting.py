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

#: Levels and states that are followed. A graph in which forks nest in a loop has any number; what
#: exceeds the limits is not reported.
_LEVELS_MAX: Final = 8
_STATES_MAX: Final = 20_000


def nestings_of(definition: Definition) -> dict[str, set[Nesting]]:
    """Return in which forks tokens may be at every node that can be reached."""
    leaving: dict[str, list[Transition]] = {}
    for transition in definition.transitions:
        leaving.setdefault(transition.from_node_ref, []).append(transition)
    nestings: dict[str, set[Nesting]] = {definition.initial_node_ref: {()}}
    pending: list[tuple[str, Nesting]] = [(definition.initial_node_ref, ())]
    # The list grows while it is read.
    for node, nesting in pending:
        for transition in leaving.get(node, ()):
            after = _after(transition, nesting)
            known = nestings.setdefault(transition.to_node_ref, set())
            if after in known or len(after) > _LEVELS_MAX or len(pending) >= _STATES_MAX:
                continue
            known.add(after)
            pending.append((transition.to_node_ref, after))
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
    nestings = nestings_of(definition) if merged else {}
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
