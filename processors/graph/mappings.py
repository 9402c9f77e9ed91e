"""Mappings: what a node is given, and where its result goes.

Outputs of branches stay apart: in a fork `output.x` is the branch's own, and only `state.x` reaches
the shared context. Outside of all forks `output.x` is the output section of the run.
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
from headwater.processors.graph.paths import depth_problem, placed, section_of, set_path
from headwater.processors.graph.scope import BRANCH, Scope
from headwater.processors.graph.tokens import Token


def mapped(mapping: Mapped, scope: Scope, what: str) -> dict[str, Any] | EvaluationProblem:
    """The object that a mapping gives; a dot in a target goes into an object.

    Errors: an EvaluationProblem, which quotes the expression and says what of.
    """
    values: dict[str, Any] = {}
    for target, expression in mapping:
        found = scope.value(expression)
        if isinstance(found, EvaluationProblem):
            return EvaluationProblem(f"{found.message} ({what}, {target})")
        changed = placed(values, target, found)
        if isinstance(changed, EvaluationProblem):
            return EvaluationProblem(f"{changed.message} ({what})")
        values = changed
    return values


def map_input(graph: Graph, node_ref: str, scope: Scope) -> dict[str, Any] | EvaluationProblem:
    """What the task or subworkflow of a node is given."""
    return mapped(graph.mappings(node_ref).inputs, scope, f"inputMapping of {node_ref!r}")


def map_output(graph: Graph, token: Token, scope: Scope, result: Any) -> Planned:  # noqa: ANN401
    """Where the result of a token's node goes.

    Shape:  sets of the shared context, then the branch's whole new output, if it has a new one.
            All expressions see what was there before.
    """
    decisions: list[Decision] = []
    events: list[Trace] = []
    own = scope.local[BRANCH].get("output", {})
    changed = False
    seen = scope.with_result(result)
    for target, expression in graph.mappings(token.node_ref).outputs:
        found = seen.value(expression)
        if isinstance(found, EvaluationProblem):
            where = f"outputMapping of {token.node_ref!r}, {target}"
            return failed(f"{found.message} ({where})", events=tuple(events))
        section, path = section_of(target)
        deep = depth_problem(path, found)
        if deep is not None:
            where = f"outputMapping of {token.node_ref!r}"
            return failed(f"{deep.message} ({where})", events=tuple(events))
        payload = {"path": target, "branch": section == "output" and token.fork is not None}
        events.append(Trace("operation.context.field_set", token.id, token.node_ref, payload))
        if payload["branch"]:
            own, changed = set_path(own, path, found), True
        else:
            decisions.append(SetContext(path=target, value=found))
    if changed:
        decisions.append(ApplyBranchOutput(token_id=token.id, output=own))
    return Planned(tuple(decisions), tuple(events))
