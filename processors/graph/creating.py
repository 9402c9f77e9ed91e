"""Carry out planner decisions in a draft: change the context, create tokens."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headwater.processors.graph.context import section_of, set_path
from headwater.processors.graph.draft import CannotContinue, Draft, text_of
from headwater.processors.graph.planning import (
    ActivateFanIn,
    ApplyBranchOutput,
    Continuation,
    CreateToken,
    Decision,
    FailWorkflow,
    SetContext,
    TokenParams,
)
from headwater.processors.graph.state import LiveToken
from headwater.processors.runs.limits import DEFAULT_LIMITS
from headwater.schemas.failures import ROUND_LIMIT, TOKEN_LIMIT
from headwater.schemas.history import (
    BranchChanged,
    ContextChange,
    ContextChanged,
    Failure,
    ForkOpened,
    TimesTaken,
    TokensCreated,
)


def apply_decisions(
    draft: Draft, token: LiveToken | None, decisions: Iterable[Decision]
) -> list[TokenParams]:
    """Emit the events of planner decisions. Return the tokens to create.

    Raises:
        CannotContinue: A decision fails the run, or the context violates its schema.
    """
    changes: list[ContextChange] = []
    to_create: list[TokenParams] = []
    for decision in decisions:
        match decision:
            case SetContext():
                changes.append(ContextChange(decision.path, text_of(decision.value)))
            case ApplyBranchOutput() if token is not None and token.fork is not None:
                before = draft.branch_of(token).output
                changed = {
                    name: value
                    for name, value in decision.output.items()
                    if name not in before or before[name] is not value
                }
                draft.emit(BranchChanged(token.fork, token.branch, text_of(changed)))
            case CreateToken():
                to_create.append(decision.params)
            case FailWorkflow():
                raise CannotContinue(Failure(decision.name, decision.error))
            case ActivateFanIn():
                pass  # The caller activates the join after the tokens are there.
            case _:
                raise AssertionError(decision)
    if changes:
        draft.emit(ContextChanged(tuple(changes)))
        failure = context_failure(draft, draft.run.shared)
        if failure is not None:
            raise CannotContinue(failure)
    return to_create


def context_failure(draft: Draft, shared: Mapping[str, Any]) -> Failure | None:
    """Return how a shared context violates its schema, or None."""
    schema = draft.graph.written_schema
    problem = schema and schema.problem(shared, "state", draft.evaluations)
    return Failure("ContextInvalidError", problem) if problem else None


def context_after(draft: Draft, decisions: Iterable[Decision]) -> Mapping[str, Any]:
    """Return the shared context after decisions that are not carried out yet."""
    shared: Mapping[str, Any] = draft.run.shared
    for decision in decisions:
        if isinstance(decision, SetContext):
            section, path = section_of(decision.path)
            if section == "state":
                shared = set_path(shared, path, decision.value)
    return shared


def create_tokens(
    draft: Draft,
    to_create: Sequence[TokenParams],
    origin: LiveToken | None = None,
    error: Failure | None = None,
) -> list[LiveToken]:
    """Create tokens. Consecutive tokens of one fork become one event.

    Raises:
        CannotContinue: The run has too many tokens, or visits a node too often.
    """
    run = draft.run
    if not to_create:
        return []
    most = (run.limits or DEFAULT_LIMITS).max_tokens
    if run.created + len(to_create) > most:
        node = to_create[-1].node_ref
        raise CannotContinue(
            Failure(
                TOKEN_LIMIT,
                f"expected at most {most} tokens in a run (max_tokens), found more with those at "
                f"{node!r}; use child workflows, or does a cycle have no end?",
            )
        )
    first = run.created
    start = 0
    for stop in range(1, len(to_create) + 1):
        if stop < len(to_create) and _follows(to_create[stop - 1], to_create[stop]):
            continue
        head = to_create[start]
        _check_rounds(draft, head)
        if head.fork is not None and head.fork not in run.forks and origin is not None:
            fork_opened = ForkOpened(
                head.fork, head.sibling_group, head.branch_total, origin.number
            )
            draft.emit(fork_opened)
        draft.emit(_tokens_created_event(draft, to_create[start:stop], error))
        start = stop
    return [run.tokens[number] for number in range(first, run.created)]


def _check_rounds(draft: Draft, params: TokenParams) -> None:
    """Check how often a token and its ancestors have visited its node."""
    most = (draft.run.limits or DEFAULT_LIMITS).max_rounds
    if draft.run.created < most:
        return  # A token has fewer ancestors than there are tokens.
    graph, ref = draft.graph, params.node_ref
    counts = params.iteration_counts
    visits = sum(counts.get(way, 0) for way in graph.ways_to(ref))
    visits += ref == graph.definition.initial_node_ref
    if visits > most:
        raise CannotContinue(
            Failure(
                ROUND_LIMIT,
                f"expected a token to come to a node at most {most} times (max_rounds), found "
                f"that it comes to {ref!r} once more; does a cycle have no end?",
            )
        )


def _follows(first: TokenParams, second: TokenParams) -> bool:
    """Whether two tokens differ only in their branch of one fork."""
    return (
        second.branch_index == first.branch_index + 1
        and second.fork == first.fork is not None
        and (second.node_ref, second.transition_ref) == (first.node_ref, first.transition_ref)
        and _prefix(second) == _prefix(first) is not None
    )


def _prefix(params: TokenParams) -> str | None:
    """Return the common path prefix of a fork's tokens, if this token is in a branch."""
    number = str(params.branch_index)
    return params.path_id[: -len(number)] if params.path_id.endswith(f".{number}") else None


def _tokens_created_event(
    draft: Draft, to_create: Sequence[TokenParams], error: Failure | None
) -> TokensCreated:
    head = to_create[0]
    node = draft.graph.node(head.node_ref)
    with_items = head.item_var is not None
    items: list[Any] | None = [params.item for params in to_create] if with_items else None
    continued = head if isinstance(head, Continuation) else None
    taken = continued.taken if continued else {}
    path = head.path_id if len(to_create) == 1 else _prefix(head)
    return TokensCreated(
        draft.run.created,
        len(to_create),
        head.node_ref,
        None if head.parent_token_id is None else int(head.parent_token_id),
        head.transition_ref,
        path or head.path_id,
        head.fork,
        head.sibling_group,
        head.branch_index,
        head.branch_total,
        tuple(TimesTaken(ref, times) for ref, times in taken.items()),
        head.item_var,
        None if items is None else text_of(items),
        node.task,
        node.subworkflow,
        node.external,
        error,
        continued.failed if continued else None,
    )
