"""Decide about joins: whether one continues, and which token continues from it.

A join is a node, for the branches of one fork: the next iteration of a loop is another fork with
its own join. It counts branches, so the number and order of their nodes and tokens do not matter.

any         continues on the first arrival
all         continues when no branch can bring another token; does not wait for branches that end
            elsewhere or failed
m_of_n:N    continues when N branches have arrived; fails when that becomes impossible while
            tokens wait
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.context import depth_problem, section_of, set_path
from headwater.processors.graph.data_flow import Arrived, merge_arrivals, merge_values
from headwater.processors.graph.definition import Merge, Synchronization, Transition
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.planning import (
    TIMEOUT_ERROR,
    UNREACHABLE_ERROR,
    ActivateFanIn,
    ApplyBranchOutput,
    CancelTokens,
    CompleteTokens,
    Counts,
    CreateToken,
    Decision,
    FailWorkflow,
    Fork,
    MarkForDispatch,
    MarkWaiting,
    Planned,
    SetContext,
    Token,
    TokenParams,
    TokenStatus,
    Trace,
    UpdateTokenStatus,
    failed,
)
from headwater.processors.graph.validation import quorum

#: Reason for cancelling a token that arrives at a join after its activation.
LATE: Final = "arrived after its siblings had met"


def fan_in_path(transition: Transition) -> str:
    """Return the name of a join: its group and its node."""
    group = transition.synchronization.sibling_group if transition.synchronization else ""
    return f"{group}:{transition.to_node_ref}"


def decide_synchronization(
    transition: Transition,
    token: Token,
    counts: Counts,
    waiting: Iterable[str] = (),
    arrived_at: datetime | None = None,
) -> Planned:
    """Decide about a token that arrives by a transition.

    Args:
        transition: The transition to the join.
        token: The token that arrives.
        counts: Branches of the fork, including this arrival.
        waiting: Ids of tokens that wait at the join already.
        arrived_at: When the token arrives.

    Returns:
        One decision: dispatch, wait, activate, or fail the run. A token outside the group is
            dispatched at once.
    """
    synchronization = transition.synchronization
    if synchronization is None or token.sibling_group != synchronization.sibling_group:
        return Planned((MarkForDispatch(token_id=token.id),), (_trace("pass", token, transition),))
    trace = _trace("check_condition", token, transition, counts)
    if _is_satisfied(synchronization, counts):
        merged = (*waiting, token.id)
        return Planned((_activation(transition, token.fork, merged),), (trace,))
    failure = _unreachable(synchronization, counts)
    if failure:
        return Planned((failure,), (trace,))
    return Planned((MarkWaiting(token_id=token.id, arrived_at=arrived_at),), (trace,))


def decide_late_arrival(transition: Transition, token: Token) -> Planned:
    """Decide about a token that arrives after the join was activated."""
    late = CancelTokens(token_ids=(token.id,), reason=LATE)
    return Planned((late,), (_trace("late_arrival", token, transition),))


def decide_branch_end(transition: Transition, waiting: Sequence[Token], counts: Counts) -> Planned:
    """Decide for waiting tokens when another branch has ended without arriving.

    Returns:
        An activation, a failure, or nothing while branches may still arrive. Without waiting tokens
            there is nothing to decide.
    """
    synchronization = transition.synchronization
    if synchronization is None or not waiting:
        return Planned()
    trace = _trace("check_condition", waiting[0], transition, counts)
    if _is_satisfied(synchronization, counts):
        merged = tuple(token.id for token in waiting)
        return Planned((_activation(transition, waiting[0].fork, merged),), (trace,))
    failure = _unreachable(synchronization, counts)
    return Planned((failure,) if failure else (), (trace,))


def decide_timeout(transition: Transition, waiting: Sequence[Token]) -> Planned:
    """Decide for waiting tokens when their timeout is over.

    Returns:
        A timeout of all tokens and a failure of the run, or an activation with the tokens that
            wait.
    """
    synchronization = transition.synchronization
    if synchronization is None or not waiting:
        return Planned()
    traces = (_trace("timeout", waiting[0], transition),)
    if synchronization.on_timeout == "proceed_with_available":
        merged = tuple(token.id for token in waiting)
        return Planned((_activation(transition, waiting[0].fork, merged),), traces)
    decisions: list[Decision] = [
        UpdateTokenStatus(token_id=token.id, status=TokenStatus.TIMED_OUT) for token in waiting
    ]
    message = (
        f"Synchronization timeout for sibling group {synchronization.sibling_group!r} at "
        f"{transition.to_node_ref!r}: waited {synchronization.timeout_ms} ms, {len(waiting)} "
        "arrived"
    )
    return Planned((*decisions, FailWorkflow(error=message, name=TIMEOUT_ERROR)), traces)


def timeout_at_ms(transition: Transition, oldest_arrived_at_ms: int) -> int | None:
    """Return when the wait at a join times out, in Unix milliseconds.

    It counts from the first arrival. None means no timeout, as does a timeout of 0. Tokens that
    arrive within that very millisecond are in time.
    """
    synchronization = transition.synchronization
    if synchronization is None or not synchronization.timeout_ms:
        return None
    return oldest_arrived_at_ms + synchronization.timeout_ms


def _is_satisfied(synchronization: Synchronization, counts: Counts) -> bool:
    if synchronization.strategy == "any":
        return True
    needed = quorum(synchronization.strategy)
    if needed is not None:
        return counts.completed >= needed
    return counts.terminal >= counts.total


def _unreachable(synchronization: Synchronization, counts: Counts) -> FailWorkflow | None:
    needed = quorum(synchronization.strategy)
    if needed is None:
        return None
    # Terminal branches include failed ones and those that arrived and can bring nothing more.
    possible = counts.completed + max(0, counts.total - max(counts.terminal, counts.completed))
    if possible >= needed:
        return None
    message = (
        f"Synchronization of sibling group {synchronization.sibling_group!r} cannot be reached: "
        f"{synchronization.strategy} of {counts.total} branches, {counts.completed} arrived and "
        f"at most {possible} can"
    )
    return FailWorkflow(error=message, name=UNREACHABLE_ERROR)


def _activation(transition: Transition, fork: str | None, merged: tuple[str, ...]) -> ActivateFanIn:
    return ActivateFanIn(
        node_ref=transition.to_node_ref,
        fork=fork,
        fan_in_path=fan_in_path(transition),
        transition_ref=transition.ref,
        merged_token_ids=merged,
    )


def _trace(what: str, token: Token, transition: Transition, counts: Counts | None = None) -> Trace:
    payload: dict[str, Any] = {"transition": transition.ref}
    if transition.synchronization is not None:
        payload["strategy"] = transition.synchronization.strategy
    if counts is not None:
        payload |= {
            "total": counts.total,
            "completed": counts.completed,
            "failed": counts.failed,
            "terminal": counts.terminal,
        }
    return Trace(f"decision.sync.{what}", token.id or None, token.node_ref, payload)


# -- continuation after a join

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
    continues instead of the token that began the fork.

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
    problems = (depth_problem(section_of(change.path)[1], change.value) for change in merged)
    return next(filter(None, problems), merged)


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
