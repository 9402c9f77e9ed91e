"""Carry out nodes that wait for a token by each of their transitions, outside of any join."""

from collections.abc import Iterator

from headwater.processors.graph.creating import create_tokens
from headwater.processors.graph.draft import CannotContinue, Draft, JoinFailed
from headwater.processors.graph.joins import decide_transition_join
from headwater.processors.graph.planning import (
    UNREACHABLE_ERROR,
    ActivateFanIn,
    CompleteTokens,
    Continuation,
    CreateToken,
    Planned,
    Taken,
    taken_ahead,
)
from headwater.processors.graph.state import LiveToken, gathering_key, taken_of
from headwater.schemas.history import Failure, TokenArrived, TransitionsJoined


def wait_for_transitions(draft: Draft, token: LiveToken) -> Iterator[str]:
    """Let a token wait at a node that joins its transitions. Yield the join's key if it is met.

    Tokens of one branch and round join: the round is how often they took their transition.
    """
    incoming = draft.graph.joined_transitions(token.node)
    if token.transition is None or not incoming:
        return
    times = taken_of(draft.run, token)[token.transition]
    draft.emit(TokenArrived(token.number, times=times))
    key = gathering_key(token, times)
    waiting = _ids_by_transition(draft, key)
    plan = decide_transition_join(draft.planned(token), token.transition, incoming, waiting)
    if any(isinstance(decision, ActivateFanIn) for decision in draft.execute(plan)):
        yield key


def _ids_by_transition(draft: Draft, key: str) -> dict[str, str]:
    """Return the id of the token that arrived first, by transition."""
    tokens = (draft.run.tokens[number] for number in draft.run.gatherings[key])
    return {token.transition or "": str(token.number) for token in reversed(list(tokens))}


def join_transitions(draft: Draft, key: str) -> None:
    """Continue with one token for those that arrived first, one by each transition."""
    waiting = _ids_by_transition(draft, key) if key in draft.run.gatherings else {}
    numbers = sorted(map(int, waiting.values()))
    tokens = [draft.run.tokens[number] for number in numbers]
    if not tokens or len(waiting) < len(draft.graph.joined_transitions(tokens[0].node)):
        # Others that arrived at the same time have continued.
        return
    *others, last = tokens
    taken: dict[str, int] = {}
    for other in others:
        for ref, times in taken_ahead(other.taken, last.taken).items():
            taken[ref] = max(times, taken.get(ref, 0))
    token = draft.planned(last)
    params = Continuation(
        node_ref=last.node,
        parent_token_id=token.id,
        path_id=token.path_id,
        sibling_group=token.sibling_group,
        branch_index=token.branch_index,
        branch_total=token.branch_total,
        iteration_counts=Taken((taken,), token.iteration_counts),
        fork=token.fork,
        transition_ref=last.transition,
        taken=taken,
    )
    before = draft.mark()
    draft.execute(
        Planned((CompleteTokens(token_ids=tuple(map(str, numbers))), CreateToken(params=params)))
    )
    draft.emit(TransitionsJoined(tuple(numbers)))
    errors = (token.failure for token in tokens if token.failure)
    try:
        create_tokens(draft, [params], error=next(errors, None))
    except CannotContinue as error:
        draft.take_back(before)
        raise JoinFailed(error.failure) from error


def unmet_transitions(draft: Draft, token: LiveToken) -> Failure | None:
    """Return an error if all that is left of a token's branch waits at nodes with `join: all`."""
    branch = draft.run.branches.get(token.branch_key)
    if branch is None or not branch.held or branch.held < branch.active:
        return None
    held = [
        other
        for other in draft.run.tokens.values()
        if other.times is not None and other.branch_key == token.branch_key
    ]
    node, times = held[0].node, held[0].times
    arrived = {other.transition for other in held if (other.node, other.times) == (node, times)}
    missing = [ref for ref in draft.graph.joined_transitions(node) if ref not in arrived]
    return Failure(
        UNREACHABLE_ERROR,
        f"Node {node!r} waits for a token by each of its transitions, and none can arrive by "
        f"{', '.join(missing)}",
    )
