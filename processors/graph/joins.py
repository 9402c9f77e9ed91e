"""Decide about joins: whether one continues, and which token continues from it.

A join is a node, for the branches of one fork: the next iteration of a loop is another fork with
its own join. It counts branches, so the number and order of their nodes and tokens do not matter.

any         continues on the first arrival
all         continues when no branch can bring another token; does not wait for branches that end
            elsewhere or failed
m_of_n:N    continues when N branches have arrived; the run fails when that becomes impossible

A fork may have several joins. The first that is satisfied continues, and the fork is over: tokens
that wait at its other joins complete, tokens that still move are cancelled. So a quorum fails the
run only if no other join of its fork can be satisfied.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

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
    Continuation,
    Counts,
    CreateToken,
    Decision,
    FailWorkflow,
    Fork,
    InnerPath,
    MarkForDispatch,
    MarkWaiting,
    Planned,
    SetContext,
    Taken,
    Token,
    TokenStatus,
    Trace,
    UpdateTokenStatus,
    failed,
)
from headwater.processors.graph.validation import quorum


class JoinState(NamedTuple):
    """A join of a fork, as far as its branches have arrived."""

    transition: Transition
    counts: Counts
    #: Ids of the tokens that wait there; read only when the join is activated.
    waiting: Iterable[str] = ()

    @property
    def synchronization(self) -> Synchronization:
        """The settings of the join."""
        assert self.transition.synchronization is not None  # noqa: S101, a transition to a join
        return self.transition.synchronization

    @property
    def is_satisfied(self) -> bool:
        """Whether the join continues now."""
        return self.counts.completed > 0 and _is_satisfied(self.synchronization, self.counts)

    @property
    def is_possible(self) -> bool:
        """Whether the join can continue, now or later."""
        return self.counts.possible >= (quorum(self.synchronization.strategy) or 1)


def fan_in_path(transition: Transition) -> str:
    """Return the name of a join: its group and its node."""
    group = transition.synchronization.sibling_group if transition.synchronization else ""
    return f"{group}:{transition.to_node_ref}"


def decide_synchronization(
    transition: Transition,
    token: Token,
    counts: Counts,
    waiting: Iterable[str] = (),
    others: Iterable[JoinState] = (),
    arrived_at: datetime | None = None,
) -> Planned:
    """Decide about a token that arrives by a transition.

    Args:
        transition: The transition to the join.
        token: The token that arrives.
        counts: Branches of the fork, including this arrival.
        waiting: Ids of tokens that wait at the join already; read only if it is activated.
        others: The other joins of the fork.
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
    if JoinState(transition, counts).is_possible or any(other.is_possible for other in others):
        waits = MarkWaiting(token_id=token.id, arrived_at=arrived_at)
        return Planned((waits,), (trace,))
    return Planned((_unreachable(synchronization, counts),), (trace,))


def decide_branch_end(
    fork: str, joins: Sequence[JoinState], failure: FailWorkflow | None = None
) -> Planned:
    """Decide about the joins of a fork when a branch has begun, arrived or ended.

    Args:
        fork: The fork.
        joins: All its joins. Of those that are satisfied the first continues.
        failure: Error of the first branch that failed.

    Returns:
        An activation, a failure of the run, or nothing while a branch can still arrive, or where
            all branches have ended elsewhere.
    """
    traces = tuple(
        _trace("check_condition", None, join.transition, join.counts)
        for join in joins
        if join.counts.completed
    )
    for join in joins:
        if join.is_satisfied:
            return Planned((_activation(join.transition, fork, tuple(join.waiting)),), traces)
    if any(join.is_possible for join in joins):
        return Planned((), traces)
    if failure is not None and not any(join.counts.possible for join in joins):
        return Planned((failure,), traces)
    unreachable = (
        _unreachable(join.synchronization, join.counts)
        for join in joins
        if quorum(join.synchronization.strategy) is not None
    )
    return Planned(tuple(islice(unreachable, 1)), traces)


def decide_transition_join(
    token: Token, transition_ref: str, incoming: Sequence[str], waiting: Mapping[str, str]
) -> Planned:
    """Decide about a token at a node that waits for one token by each of its transitions.

    Args:
        token: The token that arrives.
        transition_ref: Its transition.
        incoming: The transitions to the node.
        waiting: Ids of the tokens that wait there, by transition, with this arrival.
    """
    missing = [ref for ref in incoming if ref not in waiting]
    payload = {"transition": transition_ref, "missing": missing}
    traces = (Trace("decision.sync.check_transitions", token.id, token.node_ref, payload),)
    if missing:
        return Planned((MarkWaiting(token_id=token.id),), traces)
    activation = ActivateFanIn(
        node_ref=token.node_ref,
        fork=token.fork,
        fan_in_path=f":{token.node_ref}",
        transition_ref=transition_ref,
        merged_token_ids=tuple(waiting[ref] for ref in incoming),
    )
    return Planned((activation,), traces)


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


def _unreachable(synchronization: Synchronization, counts: Counts) -> FailWorkflow:
    failed = f", {counts.failed} failed" if counts.failed else ""
    message = (
        f"Synchronization of sibling group {synchronization.sibling_group!r} cannot be reached: "
        f"{synchronization.strategy} of {counts.total} branches, {counts.completed} arrived"
        f"{failed} and at most {counts.possible} can"
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


def _trace(
    what: str, token: Token | None, transition: Transition, counts: Counts | None = None
) -> Trace:
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
    number, node = (token.id, token.node_ref) if token else (None, transition.to_node_ref)
    return Trace(f"decision.sync.{what}", number, node, payload)


# -- continuation after a join

#: Reason for cancelling tokens that have not arrived when a join is activated.
ACTIVATED: Final = "fan-in activated before completion"


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A token at a join."""

    token_id: str
    branch_index: int
    transition_ref: str
    #: Transitions taken since the fork began, with how often.
    taken: Mapping[str, int]
    #: Output of the whole branch; of a token that left a nested fork, that of its branch there.
    output: Mapping[str, Any]
    #: Of a token that left nested forks: its branches there, outermost first.
    inner: InnerPath = ()


def decide_continuation(  # noqa: PLR0913, three are optional
    graph: Graph,
    transition: Transition,
    fork: Fork,
    arrivals: Sequence[Arrival],
    *,
    elsewhere: Sequence[str] = (),
    in_flight: Sequence[str] = (),
    failed_branches: int = 0,
    enclosing_output: Mapping[str, Any] | None = None,
    came_by: Sequence[str] = (),
    merges: bool = True,
) -> Planned:
    """Decide how a join continues. Takes linear time.

    The fork is over: the arrivals and the tokens at its other joins complete, tokens that still
    move are cancelled. The outputs of the arrivals are merged, and one token continues instead of
    the token that began the fork.

    Args:
        graph: The compiled graph.
        transition: The transition to the join.
        fork: The fork that joins here.
        arrivals: All tokens at the join, including the last to arrive; empty for a fork without
            branches.
        elsewhere: Tokens that wait at other joins of the fork.
        in_flight: Tokens of the fork, and of forks nested in it, that still move.
        failed_branches: Branches of the fork that failed.
        enclosing_output: Output of the branch around the fork, if there is one.
        came_by: For a fork without branches: the activation's `came_by`.
        merges: False if the outputs cannot be merged, and the error is followed from here.

    Returns:
        The decisions, or a single failure if outputs cannot be merged.
    """
    payload = {"fan_in_path": fan_in_path(transition), "fork": fork.id, "arrived": len(arrivals)}
    events = (Trace("decision.sync.continuation", None, transition.to_node_ref, payload),)
    decisions: list[Decision] = []
    if arrivals:
        completed = (*(arrival.token_id for arrival in arrivals), *elsewhere)
        decisions.append(CompleteTokens(token_ids=completed))
    if in_flight:
        decisions.append(CancelTokens(token_ids=tuple(in_flight), reason=ACTIVATED))
    merged = _merged(graph, transition, arrivals) if merges else []
    if isinstance(merged, EvaluationProblem):
        location = f"merge at {transition.to_node_ref!r}"
        return failed(f"{merged.message} ({location})", "MergeError", events)
    decisions.extend(_set(merged, fork, enclosing_output))
    params = _continuation(transition, fork, arrivals, came_by, failed_branches)
    decisions.append(CreateToken(params=params))
    in_branch = enclosing_output is not None
    traces = (_field_set(change, in_branch) for change in merged)
    return Planned(tuple(decisions), (*events, *traces))


def _merged(
    graph: Graph, transition: Transition, arrivals: Sequence[Arrival]
) -> list[SetContext] | EvaluationProblem:
    """Merge the outputs at a join; without branches, apply all its merges to nothing."""
    if not arrivals:
        return _empty_merges(graph, transition)
    merges = merges_of(graph, {arrival.transition_ref for arrival in arrivals})
    arrived = (
        Arrived(arrival.transition_ref, arrival.branch_index, arrival.output, arrival.inner)
        for arrival in arrivals
    )
    merged = merge_arrivals(merges, arrived)
    if isinstance(merged, EvaluationProblem):
        return merged
    problems = (depth_problem(section_of(change.path)[1], change.value) for change in merged)
    return next(filter(None, problems), merged)


def _empty_merges(graph: Graph, transition: Transition) -> list[SetContext]:
    """Return the values of a join's merges without any branch."""
    group = transition.synchronization.sibling_group if transition.synchronization else None
    leading = graph.joins_of(group)[transition.to_node_ref]
    merges = merges_of(graph, [other.ref for other in leading])
    by_target = {merge.target: merge_values(merge, {}) for merge in merges.values()}
    return [change for change in by_target.values() if isinstance(change, SetContext)]


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
    transition: Transition,
    fork: Fork,
    arrivals: Sequence[Arrival],
    came_by: Sequence[str],
    failed_branches: int,
) -> Continuation:
    origin = fork.origin
    taken: dict[str, int] = {}
    for arrival in arrivals:
        for ref, times in arrival.taken.items():
            taken[ref] = max(times, taken.get(ref, 0))
    if not arrivals:
        taken = dict(Counter([*came_by, transition.ref]))
    return Continuation(
        node_ref=transition.to_node_ref,
        parent_token_id=origin.id,
        path_id=origin.path_id,
        sibling_group=origin.sibling_group,
        branch_index=origin.branch_index,
        branch_total=origin.branch_total,
        iteration_counts=Taken((taken,), origin.iteration_counts),
        taken=taken,
        failed=failed_branches,
        fork=origin.fork,
        transition_ref=transition.ref,
    )
