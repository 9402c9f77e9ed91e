"""Whether a meeting point goes on: when a token arrives, when a branch ends elsewhere, in time.

A meeting point is a node, for the branches of one fork: the next round of a loop is another fork,
and meets anew. What is counted are branches, so it does not matter how many nodes or tokens each
of them has, nor in which order they come.

    any         the first arrival goes on
    all         goes on when no branch can bring a further token; those that end elsewhere, or
                failed, are not waited for
    m_of_n:N    goes on when N branches have arrived; fails as soon as so many cannot arrive
                any more, once somebody waits
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

#: Why a token is cancelled that comes to a meeting point which has gone on.
LATE: Final = "arrived after its siblings had met"


def fan_in_path(transition: Transition) -> str:
    """The name of a meeting point: its group and its node."""
    group = transition.synchronization.sibling_group if transition.synchronization else ""
    return f"{group}:{transition.to_node_ref}"


def decide_synchronization(
    transition: Transition, token: Token, counts: Counts, waiting: Iterable[str] = ()
) -> Planned:
    """Decides what becomes of a token that has come by a transition.

    Shape:  one decision: go on, wait, activate, or fail the run. waiting are the tokens that wait
            at the meeting point already. A token outside the group goes straight on.
    """
    found = transition.synchronization
    if found is None or token.sibling_group != found.sibling_group:
        return Planned((MarkForDispatch(token_id=token.id),), (_trace("pass", token, transition),))
    checked = _trace("check_condition", token, transition, counts)
    if _is_met(found, counts):
        merged = (*waiting, token.id)
        return Planned((_activation(transition, token.fork, merged),), (checked,))
    failure = _unreachable(found, counts)
    if failure:
        return Planned((failure,), (checked,))
    return Planned((MarkWaiting(token_id=token.id),), (checked,))


def decide_late_arrival(transition: Transition, token: Token) -> Planned:
    """Decides what becomes of a token whose siblings have gone on without it."""
    late = CancelTokens(token_ids=(token.id,), reason=LATE)
    return Planned((late,), (_trace("late_arrival", token, transition),))


def decide_branch_end(transition: Transition, waiting: Sequence[Token], counts: Counts) -> Planned:
    """Decides for those who wait when a branch of theirs has ended without arriving.

    Shape:  an activation, a failure, or nothing while others may still come. Without anybody who
            waits the meeting point is not reached, and nothing follows.
    """
    found = transition.synchronization
    if found is None or not waiting:
        return Planned()
    checked = _trace("check_condition", waiting[0], transition, counts)
    if _is_met(found, counts):
        merged = tuple(each.id for each in waiting)
        return Planned((_activation(transition, waiting[0].fork, merged),), (checked,))
    failure = _unreachable(found, counts)
    return Planned((failure,) if failure else (), (checked,))


def decide_timeout(transition: Transition, waiting: Sequence[Token]) -> Planned:
    """Decides for those who wait when their time is over.

    Shape:  they are marked as timed out and the run fails, or the meeting point goes on with them.
    """
    found = transition.synchronization
    if found is None or not waiting:
        return Planned()
    traced = (_trace("timeout", waiting[0], transition),)
    if found.on_timeout == "proceed_with_available":
        merged = tuple(each.id for each in waiting)
        return Planned((_activation(transition, waiting[0].fork, merged),), traced)
    late: list[Decision] = [
        UpdateTokenStatus(token_id=each.id, status=TokenStatus.TIMED_OUT) for each in waiting
    ]
    message = (
        f"Synchronization timeout for sibling group {found.sibling_group!r} at "
        f"{transition.to_node_ref!r}: waited {found.timeout_ms} ms, {len(waiting)} arrived"
    )
    return Planned((*late, FailWorkflow(error=message, name=TIMEOUT_ERROR)), traced)


def timeout_at_ms(transition: Transition, oldest_arrived_at_ms: int) -> int | None:
    """When those who wait at a meeting point have waited for too long.

    Shape:  counted from the first arrival; None without a timeout, and 0 is none. It is over at
            that very millisecond, after whoever arrives in it.
    """
    found = transition.synchronization
    if found is None or not found.timeout_ms:
        return None
    return oldest_arrived_at_ms + found.timeout_ms


def _is_met(found: Synchronization, counts: Counts) -> bool:
    if found.strategy == "any":
        return True
    needed = quorum(found.strategy)
    if needed is not None:
        return counts.completed >= needed
    return counts.terminal >= counts.total


def _unreachable(found: Synchronization, counts: Counts) -> FailWorkflow | None:
    needed = quorum(found.strategy)
    if needed is None:
        return None
    # Failed ones are terminal, and so are those that have arrived and can bring nothing more.
    possible = counts.completed + max(0, counts.total - max(counts.terminal, counts.completed))
    if possible >= needed:
        return None
    message = (
        f"Synchronization of sibling group {found.sibling_group!r} cannot be reached: "
        f"{found.strategy} of {counts.total} branches, {counts.completed} arrived and at most "
        f"{possible} can"
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
