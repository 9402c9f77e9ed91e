"""What follows when a meeting point goes on: a token for all branches, and an end to the others."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headwater.processors.evaluations import EvaluationProblem
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
from headwater.processors.graph.merge import Arrived, merge_arrivals, merge_values
from headwater.processors.graph.paths import depth_problem, section_of, set_path
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
    if isinstance(merged, EvaluationProblem):
        where = f"merge at {transition.to_node_ref!r}"
        return failed(f"{merged.message} ({where})", "MergeError", events)
    decisions.extend(_set(merged, fork, enclosing_output))
    decisions.append(CreateToken(params=_continuation(transition, fork, arrivals, came_by)))
    in_branch = enclosing_output is not None
    return Planned(tuple(decisions), events + tuple(_field_set(each, in_branch) for each in merged))


def _merged(
    graph: Graph, transition: Transition, arrivals: Sequence[Arrival]
) -> list[SetContext] | EvaluationProblem:
    """The merges of a meeting point; without branches that of the transition, over nothing."""
    merges = merges_of(graph, {each.transition_ref for each in arrivals} or {transition.ref})
    if not arrivals:
        empty = (merge_values(merge, {}) for merge in merges.values())
        return [each for each in empty if isinstance(each, SetContext)]
    arrived = (Arrived(each.transition_ref, each.branch_index, each.output) for each in arrivals)
    merged = merge_arrivals(merges, arrived)
    if isinstance(merged, EvaluationProblem):
        return merged
    deep = (depth_problem(section_of(each.path)[1], each.value) for each in merged)
    return next(filter(None, deep), merged)


def merges_of(graph: Graph, refs: Iterable[str]) -> dict[str, Merge]:
    """The merges of those of some transitions that have one."""
    found: dict[str, Merge] = {}
    for ref in sorted(refs):
        joined = graph.transition(ref).synchronization
        if joined is not None and joined.merge is not None:
            found[ref] = joined.merge
    return found


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
