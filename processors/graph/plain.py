"""The planners over plain dictionaries, for tests and tools: a thin face of the typed core.

Tokens have the keys of a run's tokens, transitions those of a definition, and the context is
`{"input", "state", "output"}`. Decisions come back as dictionaries with their `type`, and with
nothing left out; a batch is made of them by `batch`, which these do not do.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph import completion, routing, synchronization
from headwater.processors.graph import merge as merging
from headwater.processors.graph.decisions import Planned as Decided
from headwater.processors.graph.decisions import as_dict, failed
from headwater.processors.graph.definition import Definition, Merge, Node, Transition, read_part
from headwater.processors.graph.graph import Graph, ready_mapping
from headwater.processors.graph.scope import Branch, Context, Scope
from headwater.processors.graph.tokens import NO_COUNTS, ROOT, Counts, Fork, ForkOf, Token

#: A dictionary from outside.
Plain: TypeAlias = Mapping[str, Any]

_FORK: Final = "fork"
#: Decisions that say which run they are for; the others name a token, or stand for the whole run.
_OF_THE_RUN: Final = frozenset({"CREATE_TOKEN", "ACTIVATE_FAN_IN"})


class Planned(NamedTuple):
    """What a planner answers: decisions, and the traces of how it came to them."""

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
    """Where a completed token goes on; see `processors.graph.routing`.

    Shape:  of the transitions, those that leave node_ref. A single failure if an expression fails.
    Errors: DefinitionInvalid, for transitions that contradict themselves.
    """
    token = _token(completed_token, node_ref)
    read = [read_part(each, Transition, f"transitions[{i}]") for i, each in enumerate(transitions)]
    graph = _graph_around(read, node_ref)
    branch = Branch(token.branch_index, token.branch_total) if token.fork else None
    scope = Scope(_context(context), branch)
    return _plain(routing.decide_routing(graph, token, scope, _fork_of(token)), run_id)


def decide_synchronization(
    *, token: Plain, transition: Plain, sibling_counts: Mapping[str, int], run_id: str
) -> Planned:
    """What becomes of a token at a meeting point; see `processors.graph.synchronization`.

    Shape:  the counts are of branches and hold the arrival at hand.
    """
    read = read_part(transition, Transition, "transition")
    known = {key: sibling_counts.get(key, 0) for key in Counts.__struct_fields__}
    arrived = _token(token, read.to_node_ref)
    return _plain(synchronization.decide_synchronization(read, arrived, Counts(**known)), run_id)


def decide_timeout(*, waiting_tokens: Sequence[Plain], transition: Plain, run_id: str) -> Planned:
    """What becomes of those who wait when their time is over."""
    read = read_part(transition, Transition, "transition")
    waiting = [_token(each, read.to_node_ref) for each in waiting_tokens]
    return _plain(synchronization.decide_timeout(read, waiting), run_id)


def merge_branches(*, branches: Sequence[Plain], merge: Plain) -> Planned:
    """What the outputs of branches become: one `SET_CONTEXT`; see `processors.graph.merge`."""
    found = merging.merge_branches(
        read_part(merge, Merge, "merge"),
        [merging.BranchOutput(each["branch_index"], each.get("output")) for each in branches],
    )
    return _plain(
        failed(found.message, "MergeError")
        if isinstance(found, EvaluationProblem)
        else Decided((found,))
    )


def extract_output(*, mapping: Mapping[str, str] | None, context: Plain) -> Planned:
    """The output of a run: one `COMPLETE_WORKFLOW`; see `processors.graph.completion`."""
    scope = Scope(_context(context))
    return _plain(completion.complete(ready_mapping("mapping", mapping or {}), scope))


def _graph_around(transitions: Sequence[Transition], node_ref: str) -> Graph:
    """The transitions as a graph of their own: whatever they name is there, and does nothing."""
    refs = {ref for each in transitions for ref in (each.from_node_ref, each.to_node_ref)}
    nodes = tuple(Node(ref=ref, task="noop") for ref in sorted(refs | {node_ref}))
    definition = Definition(
        name="plain", initial_node_ref=node_ref, nodes=nodes, transitions=tuple(transitions)
    )
    return Graph(definition, whole=False)


def _token(found: Plain, node_ref: str) -> Token:
    group = found.get("sibling_group")
    total = found.get("branch_total") or 1
    return Token(
        id=str(found["id"]),
        node_ref=node_ref,
        path_id=found.get("path_id") or ROOT,
        parent_token_id=found.get("parent_token_id"),
        sibling_group=group,
        branch_index=found.get("branch_index") or 0,
        branch_total=total,
        iteration_counts=found.get("iteration_counts") or NO_COUNTS,
        fork=_FORK if group is not None or total > 1 else None,
    )


def _fork_of(token: Token) -> ForkOf:
    """The one fork that is known of a token by itself."""
    origin = Token(id=token.parent_token_id or "", node_ref=token.node_ref)
    fork = Fork(id=_FORK, group=token.sibling_group, total=token.branch_total, origin=origin)
    return {_FORK: fork}.__getitem__


def _context(found: Plain) -> Context:
    return Context(
        input=found.get("input", {}),
        state=found.get("state") or {},
        output=found.get("output") or {},
    )


def _plain(planned: Decided, run_id: str | None = None) -> Planned:
    about = {} if run_id is None else {"run_id": run_id}
    decisions = [as_dict(each) for each in planned.decisions]
    for decision in decisions:
        if decision["type"] in _OF_THE_RUN:
            decision.get("params", decision).update(about)
    return Planned(decisions, [as_dict(each) | about for each in planned.events])
