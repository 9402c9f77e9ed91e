"""What follows when a meeting point goes on: a token for all branches, and an end to the others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from headwater.processors.expressions import Fault
from headwater.processors.graph.decisions import (
    ApplyBranchOutput,
    CancelTokens,
    CompleteTokens,
    CreateToken,
    Decision,
    Planned,
    SetContext,
    TokenParams,
    Trace,
    failed,
)
from headwater.processors.graph.definition import Merge, Transition
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.merge import merge_values, sought
from headwater.processors.graph.paths import section_of, set_path
from headwater.processors.graph.synchronization import fan_in_path
from headwater.processors.graph.tokens import Fork

#: Why tokens on their way to a meeting point are cancelled.
ACTIVATED: Final = "fan-in activated before completion"


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A token at a meeting point."""

    token_id: str
    branch_index: int
    transition_ref: str
    iteration_counts: Mapping[str, int]
    #: Of the whole branch.
    output: Mapping[str, Any]


def decide_continuation(  # noqa: PLR0913, three of them have no other way to say None
    graph: Graph,
    transition: Transition,
    fork: Fork,
    arrivals: Sequence[Arrival],
    *,
    in_flight: Sequence[str] = (),
    enclosing_output: Mapping[str, Any] | None = None,
    came_by: Sequence[str] = (),
) -> Planned:
    """Decides how a meeting point goes on.

    Shape:  arrivals are all that wait there, and the one that came last; none for a fork without
            branches, which came_by is for, the activation's. in_flight are the fork's other tokens
            that still move. enclosing_output is the output of the branch around the fork, if there
            is one. The arrivals complete, the others are cancelled, outputs are merged, and one
            token goes on in the place of the token that began the fork. A single failure if
            outputs cannot be merged. Linear.
    """
    payload = {"fan_in_path": fan_in_path(transition), "fork": fork.id, "arrived": len(arrivals)}
    events = (Trace("decision.sync.continuation", None, transition.to_node_ref, payload),)
    decisions: list[Decision] = []
    if arrivals:
        decisions.append(CompleteTokens(token_ids=tuple(each.token_id for each in arrivals)))
    if in_flight:
        decisions.append(CancelTokens(token_ids=tuple(in_flight), reason=ACTIVATED))
    merged = _merged(graph, transition, arrivals)
    if isinstance(merged, Fault):
        where = f"merge at {transition.to_node_ref!r}"
        return failed(f"{merged.message} ({where})", "MergeError", events)
    decisions.extend(_set(merged, fork, enclosing_output))
    decisions.append(CreateToken(params=_continuation(transition, fork, arrivals, came_by)))
    in_branch = enclosing_output is not None
    return Planned(tuple(decisions), events + tuple(_field_set(each, in_branch) for each in merged))


def _merged(
    graph: Graph, transition: Transition, arrivals: Sequence[Arrival]
) -> list[SetContext] | Fault:
    """The merges of a meeting point, each over the branches that came by a transition with it.

    A branch counts once. Without branches the merge of the transition is done over nothing.
    """
    by_target: dict[str, tuple[Merge, dict[int, Any]]] = {}
    for merge in _merges(graph, [transition.ref] if not arrivals else []):
        by_target[merge.target] = (merge, {})
    # Which of a branch's tokens came first does not matter, so the order is not theirs.
    for each in sorted(arrivals, key=_transition_ref):
        for merge in _merges(graph, [each.transition_ref]):
            _, values = by_target.setdefault(merge.target, (merge, {}))
            values.setdefault(each.branch_index, sought(merge.source, each.output))
    sets: list[SetContext] = []
    for merge, values in by_target.values():
        done = merge_values(merge, values)
        if isinstance(done, Fault):
            return done
        sets.append(done)
    return sets


def _transition_ref(arrival: Arrival) -> str:
    return arrival.transition_ref


def _merges(graph: Graph, refs: Sequence[str]) -> Iterator[Merge]:
    for ref in refs:
        joined = graph.transition(ref).synchronization
        if joined is not None and joined.merge is not None:
            yield joined.merge


def _set(
    merged: Sequence[SetContext], fork: Fork, enclosing_output: Mapping[str, Any] | None
) -> list[Decision]:
    """Sets of the shared context; the output of a branch around the fork stays the branch's."""
    decisions: list[Decision] = []
    own, changed = enclosing_output, False
    for each in merged:
        section, path = section_of(each.path)
        if section == "output" and own is not None:
            own, changed = set_path(own, path, each.value), True
        else:
            decisions.append(each)
    if changed and own is not None:
        decisions.append(ApplyBranchOutput(token_id=fork.origin.id, output=own))
    return decisions


def _field_set(merged: SetContext, in_branch: bool) -> Trace:
    section, _ = section_of(merged.path)
    payload = {"path": merged.path, "branch": section == "output" and in_branch}
    return Trace("operation.context.field_set", payload=payload)


def _continuation(
    transition: Transition, fork: Fork, arrivals: Sequence[Arrival], came_by: Sequence[str]
) -> TokenParams:
    origin = fork.origin
    counts = dict(origin.iteration_counts)
    for arrival in arrivals:
        for ref, count in arrival.iteration_counts.items():
            counts[ref] = max(count, counts.get(ref, 0))
    if not arrivals:
        for ref in (*came_by, transition.ref):
            counts[ref] = counts.get(ref, 0) + 1
    return TokenParams(
        node_ref=transition.to_node_ref,
        parent_token_id=origin.id,
        path_id=origin.path_id,
        sibling_group=origin.sibling_group,
        branch_index=origin.branch_index,
        branch_total=origin.branch_total,
        iteration_counts=counts,
        fork=origin.fork,
        transition_ref=transition.ref,
    )
