"""Decide whether a join continues: when a token arrives, a branch ends elsewhere, or on timeout.

A join is a node, for the branches of one fork: the next iteration of a loop is another fork with
its own join. It counts branches, so the number and order of their nodes and tokens do not matter.

any         continues on the first arrival
all         continues when no branch can bring another token; does not wait for branches that end
            elsewhere or failed
m_of_n:N    continues when N branches have arrived; fails when that becomes impossible while
            tokens wait
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from headwater.processors.graph.decisions import (
    TIMEOUT_ERROR,
    UNREACHABLE_ERROR,
    ActivateFanIn,
    CancelTokens,
    Decision,
    FailWorkflow,
    MarkForDispatch,
    MarkWaiting,
    Planned,
    Trace,
    UpdateTokenStatus,
)
from headwater.processors.graph.definition import Synchronization, Transition
from headwater.processors.graph.tokens import Counts, Token, TokenStatus
from headwater.processors.graph.validation import quorum

#: Reason for cancelling a token that arrives at a join after its activation.
LATE: Final = "arrived after its siblings had met"


def fan_in_path(transition: Transition) -> str:
    """Return the name of a join: its group and its node."""
    group = transition.synchronization.sibling_group if transition.synchronization else ""
    return f"{group}:{transition.to_node_ref}"


def decide_synchronization(
    transition: Transition, token: Token, counts: Counts, waiting: Iterable[str] = ()
) -> Planned:
    """Decide about a token that arrives by a transition.

    Args:
        transition: The transition to the join.
        token: The token that arrives.
        counts: Branches of the fork, including this arrival.
        waiting: Ids of tokens that wait at the join already.

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
    return Planned((MarkWaiting(token_id=token.id),), (trace,))


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
