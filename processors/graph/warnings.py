"""Warnings about a valid definition: parts that will not do what their author expects.

They are computed where a definition is validated or deployed, and never where a run decides.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final, TypeAlias

from headwater.processors.graph.context_schemas import without_effect
from headwater.processors.graph.definition import (
    ON_ERROR,
    ON_SUCCESS,
    Definition,
    Problem,
    Transition,
)
from headwater.processors.graph.validation import quorum

UNREACHABLE_NODE: Final = "UNREACHABLE_NODE"
JOIN_NEVER_MET: Final = "JOIN_NEVER_MET"
QUORUM_TOO_LARGE: Final = "QUORUM_TOO_LARGE"
CYCLE_WITHOUT_LIMIT: Final = "CYCLE_WITHOUT_LIMIT"
RUNS_MORE_THAN_ONCE: Final = "RUNS_MORE_THAN_ONCE"
NO_EFFECT: Final = "NO_EFFECT"

#: Transitions followed in search of nodes that run more than once. Each pair of transitions out of
#: a node is followed to the end of the graph, so a very large graph is not searched completely.
_STEPS_MAX: Final = 200_000
#: Nodes of a cycle that a message names.
_NAMED: Final = 8

#: A transition with its index.
_Way: TypeAlias = tuple[int, Transition]
_Ways: TypeAlias = Mapping[str, list[_Way]]


def warnings_of(definition: Definition) -> list[Problem]:
    """Return the warnings about a definition without problems, by code and path."""
    ways: dict[str, list[_Way]] = {}
    for way in enumerate(definition.transitions):
        ways.setdefault(way[1].from_node_ref, []).append(way)
    within = _within_forks(definition, ways)
    return [
        *_unreachable(definition, ways),
        *_never_met(definition, within),
        *_joins_never_met(definition, ways),
        *_large_quorums(definition, ways),
        *_endless_cycles(ways),
        *_repeated_nodes(definition, ways, within),
        *_without_effect(definition, ways),
    ]


def _reachable(
    starts: Iterable[str], ways: _Ways, left: Collection[str | None] = ()
) -> dict[str, None]:
    """Return the nodes that tokens can reach.

    Args:
        starts: The nodes where they begin.
        ways: The transitions out of every node.
        left: Groups whose joins are not passed.
    """
    reached = dict.fromkeys(starts)
    pending = list(reached)
    while pending:
        for _, transition in ways.get(pending.pop(), ()):
            if _joins(transition) in left or transition.to_node_ref in reached:
                continue
            reached[transition.to_node_ref] = None
            pending.append(transition.to_node_ref)
    return reached


def _joins(transition: Transition) -> str | None:
    """Return the group that a transition joins; empty if none."""
    return transition.synchronization.sibling_group if transition.synchronization else ""


def _unreachable(definition: Definition, ways: _Ways) -> Iterator[Problem]:
    reached = _reachable([definition.initial_node_ref], ways)
    for index, node in enumerate(definition.nodes):
        if node.ref not in reached:
            message = f"expected a way from the initial node to {node.ref!r}, found none"
            yield Problem(UNREACHABLE_NODE, f"nodes[{index}]", message)


def _within_forks(definition: Definition, ways: _Ways) -> dict[str, dict[str, None]]:
    """Return the nodes within the forks of every group."""
    begin: dict[str, list[str]] = {}
    for transition in definition.transitions:
        if transition.sibling_group is not None:
            begin.setdefault(transition.sibling_group, []).append(transition.to_node_ref)
    return {group: _reachable(starts, ways, [group]) for group, starts in begin.items()}


def _never_met(definition: Definition, within: Mapping[str, Collection[str]]) -> Iterator[Problem]:
    for index, transition in enumerate(definition.transitions):
        group = _joins(transition)
        if group and transition.from_node_ref not in within[group]:
            message = (
                f"expected {transition.from_node_ref!r} to be within a fork of {group!r}, found no "
                "way to it from there; its tokens pass the join, one by one"
            )
            yield Problem(JOIN_NEVER_MET, f"transitions[{index}].synchronization", message)


def _joins_never_met(definition: Definition, ways: _Ways) -> Iterator[Problem]:
    """Warn of nodes that join all their transitions, of which some can never be taken together."""
    reached = _reachable([definition.initial_node_ref], ways)
    tiers: dict[str, set[tuple[str, str, int]]] = {}
    never: set[str] = set()
    for way in definition.transitions:
        tiers.setdefault(way.to_node_ref, set()).add((way.from_node_ref, way.on, way.priority))
        if way.from_node_ref not in reached or _constant(way) is False:
            never.add(way.to_node_ref)
    for index, node in enumerate(definition.nodes):
        origins = [origin for origin, _, _ in tiers.get(node.ref, ())]
        if node.join == "all" and (node.ref in never or len(set(origins)) < len(origins)):
            message = (
                "expected transitions that are taken together, found one that is never taken, or "
                "several tiers of one node; the run fails there"
            )
            yield Problem(JOIN_NEVER_MET, f"nodes[{index}].join", message)


def _tiers(outgoing: Iterable[_Way]) -> list[list[_Way]]:
    """Return the transitions out of a node by priority; those that follow an error come last."""

    def tier_of(way: _Way) -> tuple[bool, int]:
        return way[1].on == ON_ERROR, way[1].priority

    return [list(tier) for _, tier in groupby(sorted(outgoing, key=tier_of), tier_of)]


def _large_quorums(definition: Definition, ways: _Ways) -> Iterator[Problem]:
    largest: dict[str, float] = {}
    for outgoing in ways.values():
        for tier in _tiers(outgoing):
            totals: dict[str, float] = {}
            for _, transition in tier:
                group = transition.sibling_group
                if group is not None:
                    branches = float("inf") if transition.foreach else transition.spawn_count or 1
                    totals[group] = totals.get(group, 0) + branches
            for group, total in totals.items():
                largest[group] = max(total, largest.get(group, 0))
    for index, transition in enumerate(definition.transitions):
        needed = quorum(transition.synchronization.strategy) if transition.synchronization else None
        most = largest.get(_joins(transition) or "", 0)
        if needed is not None and needed > most:
            message = f"expected at most {most:g}, the branches of its fork, found {needed}"
            yield Problem(
                QUORUM_TOO_LARGE, f"transitions[{index}].synchronization.strategy", message
            )


# -- cycles


def _endless_cycles(ways: _Ways) -> Iterator[Problem]:
    """Warn of cycles that no condition, no earlier tier and no `loopConfig` ends."""
    certain = {
        ref: [way for way in _tiers(outgoing)[0] if _is_certain(way[1]) and way[1].on != ON_ERROR]
        for ref, outgoing in ways.items()
    }
    done: set[str] = set()
    for start, first in certain.items():
        # The nodes of the path in their order.
        path, rest = {start: None}, [iter(first)]
        while path and start not in done:
            way = next(rest[-1], None)
            if way is None:
                rest.pop()
                done.add(path.popitem()[0])
                continue
            index, transition = way
            target = transition.to_node_ref
            if target in path:
                refs = list(path)
                yield _endless(index, refs[refs.index(target) :])
            elif target in certain and target not in done:
                path[target] = None
                rest.append(iter(certain[target]))


def _is_certain(transition: Transition) -> bool:
    """Return whether a transition always matches, at the end that it follows."""
    return transition.loop_config is None and _constant(transition) is True


def _endless(index: int, refs: list[str]) -> Problem:
    names = refs if len(refs) <= _NAMED else [*refs[:_NAMED], "…"]
    message = (
        f"expected a condition or a loopConfig in the cycle {' -> '.join([*names, refs[0]])}, "
        "found none; the run goes round until it exceeds a limit"
    )
    return Problem(CYCLE_WITHOUT_LIMIT, f"transitions[{index}]", message)


# -- nodes that run more than once


def _repeated_nodes(
    definition: Definition, ways: _Ways, within: Mapping[str, Collection[str]]
) -> Iterator[Problem]:
    """Warn of nodes where tokens meet that one token became, without a join.

    Args:
        definition: The definition.
        ways: The transitions out of every node.
        within: The nodes within the forks of every group.
    """
    indexes = {node.ref: index for index, node in enumerate(definition.nodes)}
    waits = {node.ref for node in definition.nodes if node.join == "all"}
    reported: set[str] = set()
    steps = _STEPS_MAX
    for ref, outgoing in ways.items():
        left = {group for group, refs in within.items() if ref in refs}
        for tier in _tiers(outgoing):
            parallel = _parallel(tier)
            if len(parallel) < 2 or steps < 0:
                continue
            search = _Search(ways, {*waits, ref}, left)
            for bit, together in enumerate(parallel):
                steps -= search.follow(1 << bit, [way[1].to_node_ref for way in together])
            for repeated in search.repeated():
                if repeated not in waits and repeated not in reported:
                    reported.add(repeated)
                    yield _more_than_once(indexes[repeated], repeated, ref)


def _more_than_once(index: int, ref: str, origin: str) -> Problem:
    message = (
        f"expected one way from {origin!r} to {ref!r}, found several that are taken at once; the "
        'node runs once for each. Give it "join": "all", or let the ways begin with a siblingGroup '
        "and join"
    )
    return Problem(RUNS_MORE_THAN_ONCE, f"nodes[{index}]", message)


def _parallel(tier: list[_Way]) -> list[list[_Way]]:
    """Return transitions that are taken at once, grouped by whether they may exclude each other.

    Conditions of one tier usually exclude each other. Transitions with one group are one fork.
    """
    groups: dict[object, list[_Way]] = {}
    for index, transition in tier:
        matches = _constant(transition)
        if matches is False:
            continue
        key = transition.sibling_group or (index if matches else "")
        groups.setdefault((transition.sibling_group is None, key), []).append((index, transition))
    return list(groups.values())


class _Search:
    """Nodes that several transitions of a tier lead to."""

    def __init__(self, ways: _Ways, ends: Collection[str], left: Collection[str]) -> None:
        """Create a search.

        Args:
            ways: The transitions out of every node.
            ends: Nodes that are not passed.
            left: Groups whose joins are not passed, since the tier is within their forks.
        """
        self._ways = ways
        self._ends = ends
        self._left = left
        #: By node: the transitions of the tier that lead to it, as bits.
        self._reached: dict[str, int] = {}
        #: By node: the same for every transition into it.
        self._arrivals: dict[str, list[int]] = {}

    def follow(self, bit: int, starts: list[str]) -> int:
        """Mark the nodes that tokens reach from these. Return the number of transitions."""
        steps = len(starts)
        for start in starts:
            self._arrivals.setdefault(start, []).append(bit)
        pending = starts[:]
        while pending:
            ref = pending.pop()
            before = self._reached.get(ref, 0)
            if before & bit:
                continue
            self._reached[ref] = before | bit
            if ref in self._ends:
                continue
            for target in self._targets(ref):
                steps += 1
                pending.append(target)
        return steps

    def _targets(self, ref: str) -> Iterator[str]:
        """Yield the nodes after one that succeeds. Many nodes may share the ways of errors."""
        for _, transition in self._ways.get(ref, ()):
            if transition.on != ON_ERROR and _joins(transition) not in self._left:
                yield transition.to_node_ref

    def repeated(self) -> Iterator[str]:
        """Yield the nodes where tokens of several transitions meet first."""
        for ref, bits in self._reached.items():
            if ref in self._ends:
                continue
            for target in self._targets(ref):
                self._arrivals.setdefault(target, []).append(bits)
        for ref, bits in self._reached.items():
            several = bits & (bits - 1)
            if several and any(arrival != bits for arrival in self._arrivals.get(ref, ())):
                yield ref


# -- parts without effect


def _without_effect(definition: Definition, ways: _Ways) -> Iterator[Problem]:
    for field, schema in (
        ("inputSchema", definition.input_schema),
        ("contextSchema", definition.context_schema),
        ("outputSchema", definition.output_schema),
    ):
        for path, message in without_effect(schema or {}, field):
            yield Problem(NO_EFFECT, path, message)
    for index, transition in enumerate(definition.transitions):
        if _constant(transition) is False:
            message = "expected a condition that can be true; the transition is never taken"
            yield Problem(NO_EFFECT, f"transitions[{index}].condition", message)
        joined = transition.synchronization
        if joined is not None and joined.on_timeout != "fail" and not joined.timeout_ms:
            path = f"transitions[{index}].synchronization.onTimeout"
            yield Problem(
                NO_EFFECT, path, "expected a timeoutMs with it; without one it never ends"
            )
    ends = [
        [way for way in outgoing if way[1].on == end]
        for outgoing in ways.values()
        for end in (ON_SUCCESS, ON_ERROR)
    ]
    for outgoing in ends:
        tiers = _tiers(outgoing)
        decided = (n for n, tier in enumerate(tiers) if any(_is_certain(w) for _, w in tier))
        first = next(decided, len(tiers))
        for index, _ in (way for tier in tiers[first + 1 :] for way in tier):
            message = "expected conditions before it; a transition of lower priority always matches"
            yield Problem(NO_EFFECT, f"transitions[{index}]", message)


def _constant(transition: Transition) -> bool | None:
    """Return the value of a transition's condition if it is constant, else None."""
    return _CONSTANTS.get((transition.condition or "true").strip())


_CONSTANTS: Final = {"true": True, "false": False}
