"""What becomes of the outputs of branches where they meet.

Branches are taken in the order of their indexes, so it does not matter who arrived first. The
source is `_branch.output` or a field of it; a branch that lacks the field gives null.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.decisions import SetContext
from headwater.processors.graph.definition import Merge

_SHOWN: Final = 80


class BranchOutput(msgspec.Struct, frozen=True):
    """What a branch gave."""

    branch_index: int
    output: Any


class _Missing:
    """Stands for a field that a branch does not have."""


_MISSING: Final = _Missing()

_Values: TypeAlias = Sequence[tuple[int, Any]]


def merge_branches(
    merge: Merge, branches: Sequence[BranchOutput]
) -> SetContext | EvaluationProblem:
    """Merges the outputs of branches into one value.

    Shape:  append joins lists by one level if every branch gave one, and else keeps each value;
            collect keeps each value; merge_object puts objects together, the higher index wins;
            keyed_by_branch keys values by index, as text; last_wins is the value of the highest
            index that gave one, and {} without any.
    Errors: an EvaluationProblem, for merge_object over anything but objects and null.
    """
    return merge_values(
        merge, {each.branch_index: sought(merge.source, each.output) for each in branches}
    )


def merge_values(merge: Merge, values: Mapping[int, Any]) -> SetContext | EvaluationProblem:
    """As `merge_branches`, of values by index that were `sought` already."""
    merged = _STRATEGIES[merge.strategy](sorted(values.items(), key=itemgetter(0)))
    return (
        merged
        if isinstance(merged, EvaluationProblem)
        else SetContext(path=merge.target, value=merged)
    )


class Arrived(NamedTuple):
    """A token at a meeting point."""

    transition: str
    branch: int
    #: Of its whole branch.
    output: Mapping[str, Any]


def merge_arrivals(
    merges: Mapping[str, Merge], arrivals: Iterable[Arrived]
) -> list[SetContext] | EvaluationProblem:
    """Merges what branches bring to a meeting point.

    Shape:  merges are by the transition that a token came by. Those of one target are one merge,
            in which a branch counts once; which of its tokens came first does not matter.
    Errors: as `merge_branches`.
    """
    by_target: dict[str, tuple[Merge, dict[int, Any]]] = {}
    for each in sorted(arrivals, key=attrgetter("transition")):
        merge = merges.get(each.transition)
        if merge is not None:
            _, values = by_target.setdefault(merge.target, (merge, {}))
            values.setdefault(each.branch, sought(merge.source, each.output))
    sets: list[SetContext] = []
    for merge, values in by_target.values():
        done = merge_values(merge, values)
        if isinstance(done, EvaluationProblem):
            return done
        sets.append(done)
    return sets


def sought(source: str, output: Any) -> Any:  # noqa: ANN401
    """What a source names of the output of a branch; a mark of its own where that has no such."""
    found = output
    for field in source.removeprefix("_branch.output").split(".")[1:]:
        if not isinstance(found, Mapping) or field not in found:
            return _MISSING
        found = found[field]
    return found


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
