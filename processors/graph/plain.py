"""The planners over plain dictionaries, for tests and tools: a thin layer over the typed core.

Tokens have the keys of a run's tokens, transitions those of a definition, and the context is
`{"input", "state", "output"}`. Decisions are returned as dictionaries with their `type` and all
fields. They are not batched; `batch` does that.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph import data_flow, joins, routing
from headwater.processors.graph.context import Branch, Context, Scope
from headwater.processors.graph.definition import Definition, Merge, Node, Transition, read_part
from headwater.processors.graph.graph import Graph, compile_mapping
from headwater.processors.graph.planning import (
    NO_COUNTS,
    ROOT,
    Counts,
    Fork,
    ForkOf,
    Token,
    as_dict,
    failed,
)
from headwater.processors.graph.planning import Planned as Decided

#: A dictionary from the caller.
Plain: TypeAlias = Mapping[str, Any]

_FORK: Final = "fork"
_COUNTS: Final = ("total", "completed", "failed", "terminal")
#: Decisions that contain the run's id; others name a token, or concern the whole run.
_WITH_RUN_ID: Final = frozenset({"CREATE_TOKEN", "ACTIVATE_FAN_IN"})


class Planned(NamedTuple):
    """A planner's result: decisions, and traces of how it reached them."""

    decisions: list[dict[str, Any]]
    events: list[dict[str, Any]]


def decide_routing(
    *,
    completed_token: Plain,
    run_id: str,
    node_ref: str,
    transitions: Sequence[Plain],
    context: Plain,
) -> Planned:
    """Decide where a completed token continues; see `processors.graph.routing`.

    Only transitions that leave `node_ref` are considered. Returns a single failure if an expression
    fails.

    Raises:
        DefinitionInvalid: The transitions contradict each other.
    """
    token = _token(completed_token, node_ref)
    read = [read_part(part, Transition, f"transitions[{i}]") for i, part in enumerate(transitions)]
    graph = _graph_around(read, node_ref)
    branch = Branch(token.branch_index, token.branch_total) if token.fork else None
    scope = Scope(_context(context), branch)
    return _plain(routing.decide_routing(graph, token, scope, _fork_of(token)), run_id)


def decide_synchronization(
    *, token: Plain, transition: Plain, sibling_counts: Mapping[str, int], run_id: str
) -> Planned:
    """Decide about a token at a join; see `processors.graph.joins`.

    `sibling_counts` count branches and include the current arrival.
    """
    read = read_part(transition, Transition, "transition")
    counts = {key: sibling_counts.get(key, 0) for key in _COUNTS}
    arrived = _token(token, read.to_node_ref)
    return _plain(joins.decide_synchronization(read, arrived, Counts(**counts)), run_id)


def decide_timeout(*, waiting_tokens: Sequence[Plain], transition: Plain, run_id: str) -> Planned:
    """Decide about the tokens that wait at a join when its time is over."""
    read = read_part(transition, Transition, "transition")
    waiting = [_token(token, read.to_node_ref) for token in waiting_tokens]
    return _plain(joins.decide_timeout(read, waiting), run_id)


def merge_branches(*, branches: Sequence[Plain], merge: Plain) -> Planned:
    """Merge the outputs of branches into one `SET_CONTEXT`; see `processors.graph.data_flow`."""
    merged = data_flow.merge_branches(
        read_part(merge, Merge, "merge"),
        [
            data_flow.BranchOutput(branch["branch_index"], branch.get("output"))
            for branch in branches
        ],
    )
    return _plain(
        failed(merged.message, "MergeError")
        if isinstance(merged, EvaluationProblem)
        else Decided((merged,))
    )


def extract_output(*, mapping: Mapping[str, str] | None, context: Plain) -> Planned:
    """Return the output of a run as one `COMPLETE_WORKFLOW`; see `data_flow.complete`."""
    scope = Scope(_context(context))
    return _plain(data_flow.complete(compile_mapping("mapping", mapping or {}), scope))


def _graph_around(transitions: Sequence[Transition], node_ref: str) -> Graph:
    """Build a graph from transitions alone; nodes that they name do nothing."""
    refs = {
        ref
        for transition in transitions
        for ref in (transition.from_node_ref, transition.to_node_ref)
    }
    nodes = tuple(Node(ref=ref, task="noop") for ref in sorted(refs | {node_ref}))
    definition = Definition(
        name="plain", initial_node_ref=node_ref, nodes=nodes, transitions=tuple(transitions)
    )
    return Graph(definition, whole=False)


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
