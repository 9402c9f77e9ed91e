"""The planners over plain dictionaries, for tests and tools: a thin layer over the typed core.

Tokens have the keys of a run's tokens, transitions and nodes those of a definition, and the context
is `{"input", "state", "output"}`. All planners take the values that expressions read in a fork:
`items` by item variable, and `branch` as `{"index", "total", "output"}`. Decisions are returned as
dictionaries with their `type` and all fields.

What deploying refuses is refused here, too: planners raise DefinitionInvalid, a ValueError.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph import data_flow, joins, outcomes, routing
from headwater.processors.graph.context import Branch, Context, Scope
from headwater.processors.graph.definition import (
    INVALID_EXPRESSION,
    Definition,
    DefinitionInvalid,
    Merge,
    Node,
    Problem,
    Synchronization,
    Transition,
    read_part,
)
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.planning import (
    NO_COUNTS,
    ROOT,
    TERMINAL,
    Counts,
    Fork,
    ForkOf,
    Token,
    as_dict,
    failed,
)
from headwater.processors.graph.planning import Planned as Decided
from headwater.processors.graph.validation import may_be_item

#: A dictionary from the caller.
Plain: TypeAlias = Mapping[str, Any]

_FORK: Final = "fork"
_NO_ITEMS: Final[Plain] = {}
#: Decisions that contain the run's id; others name a token, or concern the whole run.
_WITH_RUN_ID: Final = frozenset({"CREATE_TOKEN", "ACTIVATE_FAN_IN"})


class Planned(NamedTuple):
    """A planner's result: decisions, and traces of how it reached them."""

    decisions: list[dict[str, Any]]
    events: list[dict[str, Any]]


def decide_routing(  # noqa: PLR0913, named by the contract
    *,
    completed_token: Plain,
    run_id: str,
    node_ref: str,
    transitions: Sequence[Plain],
    context: Plain,
    items: Plain = _NO_ITEMS,
    branch: Plain | None = None,
) -> Planned:
    """Decide where a completed token continues; see `processors.graph.routing`.

    Only transitions that leave `node_ref` are considered. Returns a single failure if an expression
    fails.
    """
    token = _token(completed_token, node_ref)
    read = [read_part(part, Transition, f"transitions[{i}]") for i, part in enumerate(transitions)]
    graph = _graph_around(read, node_ref, items=items)
    scope = _scope(context, items, branch, token)
    return _plain(routing.decide_routing(graph, token, scope, _fork_of(token)), run_id)


def decide_dispatch(  # noqa: PLR0913, named by the contract
    *,
    token: Plain,
    node: Plain,
    run_id: str,
    context: Plain,
    subworkflow_run_id: str | None = None,
    items: Plain = _NO_ITEMS,
    branch: Plain | None = None,
) -> Planned:
    """Decide how the node of a token begins; see `processors.graph.outcomes`.

    A task is one `DISPATCH_TOKEN` and a child one `MARK_WAITING_FOR_SUBWORKFLOW`, with their input.
    """
    read = read_part(node, Node, "node")
    graph = _graph_around((), read.ref, node=read, items=items)
    at_node = _token(token, read.ref)
    child = subworkflow_run_id or f"{run_id}-{at_node.id}"
    scope = _scope(context, items, branch, at_node)
    return _plain(outcomes.decide_dispatch(graph, at_node.id, read.ref, scope, child), run_id)


def decide_synchronization(  # noqa: PLR0913, named by the contract
    *,
    token: Plain,
    transition: Plain,
    sibling_counts: Mapping[str, int],
    run_id: str,
    arrived_at: datetime | None = None,
    items: Plain = _NO_ITEMS,
    branch: Plain | None = None,
) -> Planned:
    """Decide about a token at a join; see `processors.graph.joins`.

    `sibling_counts` count branches and include the current arrival.
    """
    read = _transition(transition, items, branch)
    counts = {key: sibling_counts.get(key, 0) for key in _COUNTED}
    arrived = _token(token, read.to_node_ref)
    return _plain(
        joins.decide_synchronization(read, arrived, Counts(**counts), arrived_at=arrived_at), run_id
    )


_COUNTED: Final = ("total", "completed", "failed", "terminal")


def decide_timeout(
    *,
    waiting_tokens: Sequence[Plain],
    transition: Plain,
    run_id: str,
    items: Plain = _NO_ITEMS,
    branch: Plain | None = None,
) -> Planned:
    """Decide about the tokens that wait at a join when its time is over."""
    read = _transition(transition, items, branch)
    waiting = [_token(token, read.to_node_ref) for token in waiting_tokens]
    return _plain(joins.decide_timeout(read, waiting), run_id)


def decide_subworkflow_result(
    *,
    token: Plain,
    run_id: str,
    output: Any = None,  # noqa: ANN401, any JSON value
    error: str | None = None,
    items: Plain = _NO_ITEMS,
    branch: Plain | None = None,
) -> Planned:
    """Decide about a token whose child has ended; see `processors.graph.outcomes`.

    An end with an `error` is one `FAIL_FROM_SUBWORKFLOW`, any other one `RESUME_FROM_SUBWORKFLOW`.
    """
    _check_values(items, branch)
    at_node = _token(token, token.get("node_ref") or "")
    return _plain(outcomes.decide_subworkflow_result(at_node, output, error), run_id)


def decide_subworkflow_timeout(  # noqa: PLR0913, named by the contract
    *,
    token: Plain,
    node: Plain,
    run_id: str,
    elapsed_ms: int,
    subworkflow_run_id: str | None = None,
    items: Plain = _NO_ITEMS,
    branch: Plain | None = None,
) -> Planned:
    """Decide about a token whose child has run for some time; see `processors.graph.outcomes`.

    One `TIMEOUT_SUBWORKFLOW` once the `timeoutMs` of the node is over; nothing before, or without
    one.
    """
    _check_values(items, branch)
    read = read_part(node, Node, "node")
    _graph_around((), read.ref, node=read, items=items)
    at_node = _token(token, read.ref)
    if read.timeout_ms is None:
        return Planned([], [])
    child = subworkflow_run_id or f"{run_id}-{at_node.id}"
    decided = outcomes.decide_subworkflow_timeout(
        at_node, child, timeout_ms=read.timeout_ms, elapsed_ms=elapsed_ms
    )
    return _plain(decided, run_id)


def decide_cancel(
    *,
    tokens: Sequence[Plain],
    run_id: str,
    reason: str = "",
    items: Plain = _NO_ITEMS,
    branch: Plain | None = None,
) -> Planned:
    """Decide about the tokens of a run that is canceled: one `CANCEL_TOKENS` for the live ones."""
    _check_values(items, branch)
    live = [str(token["id"]) for token in tokens if token.get("status") not in TERMINAL]
    return _plain(outcomes.decide_cancel(live, reason), run_id)


def merge_branches(
    *,
    branches: Sequence[Plain],
    merge: Plain,
    items: Plain = _NO_ITEMS,
    branch: Plain | None = None,
) -> Planned:
    """Merge the outputs of branches into one `SET_CONTEXT`; see `processors.graph.data_flow`."""
    _check_values(items, branch)
    read = read_part(merge, Merge, "merge")
    joined = Synchronization(strategy="all", sibling_group="group", merge=read)
    way = Transition(ref="way", from_node_ref="a", to_node_ref="b", synchronization=joined)
    _graph_around([way], "a", shown={"transitions[0].synchronization.merge": "merge"})
    outputs = [
        data_flow.BranchOutput(output["branch_index"], output.get("output")) for output in branches
    ]
    merged = data_flow.merge_branches(read, outputs)
    return _plain(
        failed(merged.message, "MergeError")
        if isinstance(merged, EvaluationProblem)
        else Decided((merged,))
    )


def extract_output(
    *,
    mapping: Mapping[str, str] | None,
    context: Plain,
    items: Plain = _NO_ITEMS,
    branch: Plain | None = None,
) -> Planned:
    """Return the output of a run as one `COMPLETE_WORKFLOW`; see `data_flow.complete`."""
    shown = {"outputMapping": "mapping"}
    graph = _graph_around((), "a", mapping=mapping or {}, items=items, shown=shown)
    return _plain(data_flow.complete(graph.output, _scope(context, items, branch)))


# -- reading


def _graph_around(
    transitions: Sequence[Transition],
    node_ref: str,
    *,
    node: Node | None = None,
    mapping: Mapping[str, str] | None = None,
    items: Plain = _NO_ITEMS,
    shown: Mapping[str, str] | None = None,
) -> Graph:
    """Build a graph from a part of a definition; nodes that transitions name do nothing.

    Raises:
        DefinitionInvalid: Deploying refuses the part. The beginnings of paths are shown as `shown`
            names them.
    """
    refs = {
        ref
        for transition in transitions
        for ref in (transition.from_node_ref, transition.to_node_ref)
    } | {node_ref}
    known = () if node is None else (node,)
    others = sorted(refs - {other.ref for other in known})
    definition = Definition(
        name="plain",
        initial_node_ref=node_ref,
        nodes=(*known, *(Node(ref=ref, task="noop") for ref in others)),
        transitions=tuple(transitions),
        output_mapping=dict(mapping or {}),
    )
    try:
        return Graph(definition, whole=False, items=items)
    except DefinitionInvalid as error:
        names = {"nodes[0]": "node", **(shown or {})}
        raise DefinitionInvalid(_renamed(problem, names) for problem in error.problems) from None


def _renamed(problem: Problem, names: Mapping[str, str]) -> Problem:
    path = problem.path
    for name, shown in names.items():
        if path.startswith(name):
            path = shown + path.removeprefix(name)
    return msgspec.structs.replace(problem, path=path)


def _transition(transition: Plain, items: Plain, branch: Plain | None) -> Transition:
    """Read a single transition as deploying would."""
    _check_values(items, branch)
    read = read_part(transition, Transition, "transition")
    shown = {"transitions[0]": "transition"}
    _graph_around([read], read.from_node_ref, items=items, shown=shown)
    return read


def _check_values(items: Plain, branch: Plain | None) -> None:
    """Refuse names that expressions cannot have for the values of a fork."""
    problems = [
        Problem(INVALID_EXPRESSION, f"items.{name}"[:80], "expected a name that is not taken")
        for name in items
        if not may_be_item(name)
    ]
    known = Branch.__struct_fields__
    problems += [
        Problem(INVALID_EXPRESSION, "branch", f"expected {', '.join(known)}, found {name!r:.80}")
        for name in branch or {}
        if name not in known
    ]
    if problems:
        raise DefinitionInvalid(problems)


def _scope(context: Plain, items: Plain, branch: Plain | None, token: Token | None = None) -> Scope:
    """Return what expressions read; without `branch`, that of the token."""
    _check_values(items, branch)
    in_fork = token is not None and token.fork is not None
    seen: dict[str, Any] = {}
    if in_fork and token is not None:
        seen = {"index": token.branch_index, "total": token.branch_total}
    if branch is not None:
        seen = {"index": 0, "total": 1, **seen, **branch}
    return Scope(_context(context), Branch(**seen) if seen else None, items)


def _token(fields: Plain, node_ref: str) -> Token:
    group = fields.get("sibling_group")
    total = fields.get("branch_total") or 1
    return Token(
        id=str(fields["id"]),
        node_ref=node_ref,
        path_id=fields.get("path_id") or ROOT,
        parent_token_id=fields.get("parent_token_id"),
        sibling_group=group,
        branch_index=fields.get("branch_index") or 0,
        branch_total=total,
        iteration_counts=fields.get("iteration_counts") or NO_COUNTS,
        fork=_FORK if group is not None or total > 1 else None,
    )


def _fork_of(token: Token) -> ForkOf:
    """Return a lookup with the only fork that is known from a token alone."""
    origin = Token(id=token.parent_token_id or "", node_ref=token.node_ref)
    fork = Fork(id=_FORK, group=token.sibling_group, total=token.branch_total, origin=origin)
    return {_FORK: fork}.__getitem__


def _context(fields: Plain) -> Context:
    return Context(
        input=fields.get("input", {}),
        state=fields.get("state") or {},
        output=fields.get("output") or {},
    )


def _plain(planned: Decided, run_id: str | None = None) -> Planned:
    run = {} if run_id is None else {"run_id": run_id}
    decisions = [as_dict(item) for item in planned.decisions]
    for decision in decisions:
        if decision["type"] in _WITH_RUN_ID:
            decision.get("params", decision).update(run)
    return Planned(decisions, [as_dict(item) | run for item in planned.events])
