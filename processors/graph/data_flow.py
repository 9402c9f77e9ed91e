"""Flow of values: a node's input and result, the merged outputs of branches, a run's output.

Branches have separate outputs: in a fork, `output.x` belongs to the branch, and only `state.x`
changes the shared context. Outside of all forks, `output.x` is the output section of the run.

Branches are merged in the order of their indexes, whatever the order of arrival. A merge reads
`_branch.output` or a field of it; a branch without the field contributes null.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.context import (
    BRANCH,
    Scope,
    depth_problem,
    section_of,
    set_path,
    set_path_within_depth,
)
from headwater.processors.graph.definition import Merge
from headwater.processors.graph.graph import Graph, Mapped
from headwater.processors.graph.planning import (
    ApplyBranchOutput,
    CompleteWorkflow,
    Decision,
    InnerPath,
    Planned,
    SetContext,
    Token,
    Trace,
    failed,
)

_SHOWN: Final = 80


class BranchOutput(msgspec.Struct, frozen=True):
    """Output of a branch."""

    branch_index: int
    output: Any


class _Missing:
    """Represents a field that a branch does not have."""


_MISSING: Final = _Missing()

_Values: TypeAlias = Sequence[tuple[int, Any]]


def merge_branches(
    merge: Merge, branches: Sequence[BranchOutput]
) -> SetContext | EvaluationProblem:
    """Merge the outputs of branches into one value.

    Strategies:

    append              concatenates lists, or collects the values unless all are lists
    collect             keeps all values in a list
    merge_object        merges objects; the higher index wins
    keyed_by_branch     an object of the values by index, as text
    last_wins           the value of the highest index that has one; {} without any

    Returns:
        The change of the context. A problem if merge_object merges anything but objects and null.
    """
    values = {branch.branch_index: source_value(merge.source, branch.output) for branch in branches}
    return merge_values(merge, values)


def merge_values(merge: Merge, values: Mapping[int, Any]) -> SetContext | EvaluationProblem:
    """Like `merge_branches`, for source values by branch index."""
    merged = _STRATEGIES[merge.strategy](sorted(values.items(), key=itemgetter(0)))
    return (
        merged
        if isinstance(merged, EvaluationProblem)
        else SetContext(path=merge.target, value=merged)
    )


class Arrived(NamedTuple):
    """A token at a join."""

    transition: str
    branch: int
    #: Output of its whole branch; of a token that left a nested fork, that of its branch there.
    output: Mapping[str, Any]
    #: Of a token that left nested forks: its branches there.
    inner: InnerPath = ()


def merge_arrivals(
    merges: Mapping[str, Merge], arrivals: Iterable[Arrived]
) -> list[SetContext] | EvaluationProblem:
    """Merge the outputs of the branches at a join.

    `merges` are by the transition that a token took. Merges into the same target are one merge, in
    which a branch counts once, whichever of its tokens arrived first. The output of a branch of
    which tokens left a nested fork is the list of the outputs there, in the order of the branches.

    Returns:
        The changes, or a problem as in `merge_branches`.
    """
    by_target: dict[str, tuple[Merge, dict[int, Any]]] = {}
    for arrival in sorted(arrivals, key=attrgetter("transition")):
        merge = merges.get(arrival.transition)
        if merge is not None:
            _, values = by_target.setdefault(merge.target, (merge, {}))
            if not arrival.inner:
                values.setdefault(arrival.branch, source_value(merge.source, arrival.output))
                continue
            nested = values.get(arrival.branch)
            if not isinstance(nested, _InnerOutputs):
                nested = values[arrival.branch] = _InnerOutputs(merge.source)
            nested.outputs[arrival.inner] = arrival.output
    sets: list[SetContext] = []
    for merge, values in by_target.values():
        plain = {
            branch: value.value() if isinstance(value, _InnerOutputs) else value
            for branch, value in values.items()
        }
        merged = merge_values(merge, plain)
        if isinstance(merged, EvaluationProblem):
            return merged
        sets.append(merged)
    return sets


class _InnerOutputs:
    """Outputs of branches of nested forks, which are the output of an outer branch."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.outputs: dict[InnerPath, Any] = {}

    def value(self) -> Any:  # noqa: ANN401, any JSON value
        """Return the merged value: a list of the outputs has no fields."""
        if self.source != f"{BRANCH}.output":
            return _MISSING
        return _nested(sorted(self.outputs.items()), 0)


def _nested(outputs: Sequence[tuple[InnerPath, Any]], level: int) -> list[Any]:
    """Return the outputs of sorted paths that are equal up to a level, as a list of lists."""
    listed: list[Any] = []
    for _, group in groupby(outputs, lambda entry: entry[0][: level + 1]):
        inner = list(group)
        path, output = inner[0]
        listed.append(output if len(path) == level + 1 else _nested(inner, level + 1))
    return listed


def source_value(source: str, output: Any) -> Any:  # noqa: ANN401
    """Return the value of a merge source in a branch's output, or a marker if it has none."""
    value = output
    for field in source.removeprefix("_branch.output").split(".")[1:]:
        # The check of a type's name is what most values need, and takes no call.
        if (type(value) is not dict and not isinstance(value, Mapping)) or field not in value:
            return _MISSING
        value = value[field]
    return value


def _or_null(value: Any) -> Any:  # noqa: ANN401
    return None if value is _MISSING else value


def _collect(values: _Values) -> list[Any]:
    return [_or_null(value) for _, value in values]


def _append(values: _Values) -> list[Any]:
    if all(isinstance(value, list) for _, value in values):
        return [item for _, value in values for item in value]
    return _collect(values)


def _merge_object(values: _Values) -> dict[str, Any] | EvaluationProblem:
    merged: dict[str, Any] = {}
    for index, value in values:
        if value is _MISSING or value is None:
            continue
        if not isinstance(value, Mapping):
            return EvaluationProblem(
                f"expected objects to merge, found {_shown(value)} in branch {index}; "
                "collect takes any value"
            )
        merged.update(value)
    return merged


def _keyed_by_branch(values: _Values) -> dict[str, Any]:
    return {str(index): _or_null(value) for index, value in values}


def _last_wins(values: _Values) -> Any:  # noqa: ANN401
    return next((value for _, value in reversed(values) if value is not _MISSING), {})


_STRATEGIES: Final[Mapping[str, Callable[[_Values], Any]]] = {
    "append": _append,
    "collect": _collect,
    "merge_object": _merge_object,
    "keyed_by_branch": _keyed_by_branch,
    "last_wins": _last_wins,
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# -- mappings


def mapped(mapping: Mapped, scope: Scope, what: str) -> dict[str, Any] | EvaluationProblem:
    """Return the object that a mapping produces; a dot in a target creates a nested object.

    Returns:
        The object, or a problem that quotes the failed expression and names `what` was mapped.
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
    outputs = graph.mappings(token.node_ref).outputs
    if not outputs:
        return Planned()
    decisions: list[Decision] = []
    events: list[Trace] = []
    branch_output = scope.local[BRANCH].get("output", {})
    changed = False
    result_scope = scope.with_result(result)
    for target, expression in outputs:
        value = result_scope.value(expression)
        if isinstance(value, EvaluationProblem):
            where = f"outputMapping of {token.node_ref!r}, {target}"
            return failed(f"{value.message} ({where})", events=tuple(events))
        section, path = section_of(target)
        too_deep = depth_problem(path, value)
        if too_deep is not None:
            where = f"outputMapping of {token.node_ref!r}"
            return failed(f"{too_deep.message} ({where})", events=tuple(events))
        payload = {"path": target, "branch": section == "output" and token.fork is not None}
        events.append(Trace("operation.context.field_set", token.id, token.node_ref, payload))
        if payload["branch"]:
            branch_output, changed = set_path(branch_output, path, value), True
        else:
            decisions.append(SetContext(path=target, value=value))
    if changed:
        decisions.append(ApplyBranchOutput(token_id=token.id, output=branch_output))
    return Planned(tuple(decisions), tuple(events))


# -- output of a run


def decide_completion(graph: Graph, scope: Scope) -> Planned:
    """Decide the end of a run without live tokens: a completion, or a failed expression."""
    return complete(graph.output, scope)


def complete(mapping: Mapped, scope: Scope) -> Planned:
    """Like `decide_completion`; without a mapping, the output is the output section."""
    started = Trace("decision.completion.start", payload={"fields": [name for name, _ in mapping]})
    if not mapping:
        return Planned((CompleteWorkflow(output=dict(scope.context.output)),), (started,))
    output = mapped(mapping, scope, "outputMapping")
    if isinstance(output, EvaluationProblem):
        return failed(output.message, events=(started,))
    return Planned((CompleteWorkflow(output=output),), (started,))
