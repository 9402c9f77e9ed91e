"""Mappings: the input of a node, and where its result is stored.

Branches have separate outputs: in a fork, `output.x` belongs to the branch, and only `state.x`
changes the shared context. Outside of all forks, `output.x` is the output section of the run.
"""

from typing import Any

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.decisions import (
    ApplyBranchOutput,
    Decision,
    Planned,
    SetContext,
    Trace,
    failed,
)
from headwater.processors.graph.graph import Graph, Mapped
from headwater.processors.graph.paths import (
    depth_problem,
    section_of,
    set_path,
    set_path_within_depth,
)
from headwater.processors.graph.scope import BRANCH, Scope
from headwater.processors.graph.tokens import Token


def mapped(mapping: Mapped, scope: Scope, what: str) -> dict[str, Any] | EvaluationProblem:
    """Return the object that a mapping produces; a dot in a target creates a nested object.

    Returns:
        The object, or a Fault that quotes the failed expression and names `what` was mapped.
    """
    values: dict[str, Any] = {}
    for target, expression in mapping:
        value = scope.value(expression)
        if isinstance(value, EvaluationProblem):
            return EvaluationProblem(f"{value.message} ({what}, {target})")
        updated = set_path_within_depth(values, target, value)
        if isinstance(updated, EvaluationProblem):
            return EvaluationProblem(f"{updated.message} ({what})")
        values = updated
    return values


def map_input(graph: Graph, node_ref: str, scope: Scope) -> dict[str, Any] | EvaluationProblem:
    """Return the input for the task or subworkflow of a node."""
    return mapped(graph.mappings(node_ref).inputs, scope, f"inputMapping of {node_ref!r}")


def map_output(graph: Graph, token: Token, scope: Scope, result: Any) -> Planned:  # noqa: ANN401
    """Decide where the result of a token's node is stored.

    Returns:
        Changes of the shared context, then the whole new output of the branch if it changed. All
            expressions see the values from before.
    """
    decisions: list[Decision] = []
    events: list[Trace] = []
    branch_output = scope.local[BRANCH].get("output", {})
    changed = False
    result_scope = scope.with_result(result)
    for target, expression in graph.mappings(token.node_ref).outputs:
        value = result_scope.value(expression)
        if isinstance(value, EvaluationProblem):
            where = f"outputMapping of {token.node_ref!r}, {target}"
            return failed(f"{value.message} ({where})", events=tuple(events))
        section, path = section_of(target)
        depth_fault = depth_problem(path, value)
        if depth_fault is not None:
            where = f"outputMapping of {token.node_ref!r}"
            return failed(f"{depth_fault.message} ({where})", events=tuple(events))
        payload = {"path": target, "branch": section == "output" and token.fork is not None}
        events.append(Trace("operation.context.field_set", token.id, token.node_ref, payload))
        if payload["branch"]:
            branch_output, changed = set_path(branch_output, path, value), True
        else:
            decisions.append(SetContext(path=target, value=value))
    if changed:
        decisions.append(ApplyBranchOutput(token_id=token.id, output=branch_output))
    return Planned(tuple(decisions), tuple(events))
