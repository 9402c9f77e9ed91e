"""Decide what follows when a join is activated: one token continues, others are cancelled."""

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

#: Reason for cancelling tokens that have not arrived when a join is activated.
ACTIVATED: Final = "fan-in activated before completion"


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A token at a join."""

    token_id: str
    branch_index: int
    transition_ref: str
    iteration_counts: Mapping[str, int]
    #: Output of the whole branch.
    output: Mapping[str, Any]


def decide_continuation(  # noqa: PLR0913, three are optional
    graph: Graph,
    transition: Transition,
    fork: Fork,
    arrivals: Sequence[Arrival],
    *,
    in_flight: Sequence[str] = (),
    enclosing_output: Mapping[str, Any] | None = None,
    came_by: Sequence[str] = (),
) -> Planned:
    """Decide how a join continues. Takes linear time.

    The arrivals complete, the fork's other tokens are cancelled, outputs are merged, and one token
    continues in place of the token that began the fork.

    Args:
        graph: The compiled graph.
        transition: The transition to the join.
        fork: The fork that joins here.
        arrivals: All tokens at the join, including the last to arrive; empty for a fork without
            branches.
        in_flight: The fork's other live tokens.
        enclosing_output: Output of the branch around the fork, if there is one.
        came_by: For a fork without branches: the activation's `came_by`.

    Returns:
        The decisions, or a single failure if outputs cannot be merged.
    """
    payload = {"fan_in_path": fan_in_path(transition), "fork": fork.id, "arrived": len(arrivals)}
    events = (Trace("decision.sync.continuation", None, transition.to_node_ref, payload),)
    decisions: list[Decision] = []
    if arrivals:
        decisions.append(CompleteTokens(token_ids=tuple(arrival.token_id for arrival in arrivals)))
    if in_flight:
        decisions.append(CancelTokens(token_ids=tuple(in_flight), reason=ACTIVATED))
    merged = _merged(graph, transition, arrivals)
    if isinstance(merged, EvaluationProblem):
        location = f"merge at {transition.to_node_ref!r}"
        return failed(f"{merged.message} ({location})", "MergeError", events)
    decisions.extend(_set(merged, fork, enclosing_output))
    decisions.append(CreateToken(params=_continuation(transition, fork, arrivals, came_by)))
    in_branch = enclosing_output is not None
    traces = (_field_set(change, in_branch) for change in merged)
    return Planned(tuple(decisions), (*events, *traces))


def _merged(
    graph: Graph, transition: Transition, arrivals: Sequence[Arrival]
) -> list[SetContext] | EvaluationProblem:
    """Merge the outputs at a join; without branches, apply the transition's merge to nothing."""
    refs = {arrival.transition_ref for arrival in arrivals}
    merges = merges_of(graph, refs or {transition.ref})
    if not arrivals:
        empty = (merge_values(merge, {}) for merge in merges.values())
        return [change for change in empty if isinstance(change, SetContext)]
    arrived = (
        Arrived(arrival.transition_ref, arrival.branch_index, arrival.output)
        for arrival in arrivals
    )
    merged = merge_arrivals(merges, arrived)
    if isinstance(merged, EvaluationProblem):
        return merged
    faults = (depth_problem(section_of(change.path)[1], change.value) for change in merged)
    return next(filter(None, faults), merged)


def merges_of(graph: Graph, refs: Iterable[str]) -> dict[str, Merge]:
    """Return the merges of transitions that have one, by transition."""
    merges: dict[str, Merge] = {}
    for ref in sorted(refs):
        synchronization = graph.transition(ref).synchronization
        if synchronization is not None and synchronization.merge is not None:
            merges[ref] = synchronization.merge
    return merges


def _set(
    merged: Sequence[SetContext], fork: Fork, enclosing_output: Mapping[str, Any] | None
) -> list[Decision]:
    """Return the changes of the context; output in an enclosing branch stays in that branch."""
    decisions: list[Decision] = []
    branch_output, changed = enclosing_output, False
    for change in merged:
        section, path = section_of(change.path)
        if section == "output" and branch_output is not None:
            branch_output, changed = set_path(branch_output, path, change.value), True
        else:
            decisions.append(change)
    if changed and branch_output is not None:
        decisions.append(ApplyBranchOutput(token_id=fork.origin.id, output=branch_output))
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
