"""Values of a run: the context and branch that expressions read, and the paths that set values.

Expressions read these names:

input, state, output    of the run, shared by all tokens
_branch                 index, total and output of the branch; empty outside of all forks
an item variable        the item of the branch; the innermost fork with this name wins
result                  the result of the task, only in its output mapping
error                   name and message of an error: in error transitions, and in the mappings of
                        the nodes that they lead to; empty where another transition led
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from headwater.processors.cel_programs import Names, ResultKind
from headwater.processors.evaluations import EvaluationProblem, Evaluations
from headwater.processors.expressions import NO_VALUES, WORDS, Expression, ExpressionValues
from headwater.schemas.history import NESTING_MAX, Failure

#: Maximum parts of a path. It is a quarter of the levels that a value may have, so a value that is
#: set may have the others; authors use fewer than ten.
SEGMENTS_MAX: Final = 32
#: Maximum characters of a path: events and error messages repeat it.
PATH_MAX: Final = 2_048
#: Sections of the shared context.
_SECTIONS: Final = ("state", "output")
_NAMES: Final = re.compile(r"[^.]++(?:\.[^.]++)*+")


def path_problem(path: str, *, shared: bool) -> str | None:
    """Return what is wrong with a path that a definition sets, if anything but its limits.

    Args:
        path: The target of a mapping or of a merge.
        shared: Whether it begins with a section of the shared context.
    """
    section, _, within = path.partition(".")
    if shared and (section not in _SECTIONS or not _NAMES.fullmatch(within)):
        return f"expected a target state.… or output.…, found {_shown(path)}"
    if not _NAMES.fullmatch(path):
        return f"expected a target of names with a dot between them, found {_shown(path)}"
    return None if is_text(path) else f"expected text that UTF-8 can hold, found {_shown(path)}"


def limit_problem(path: str) -> str | None:
    """Return which limit a path exceeds, or that it names an item of a list; None if neither."""
    shown = _shown(path)
    if len(path) > PATH_MAX:
        return f"expected a target of at most {PATH_MAX} characters, found {len(path)} in {shown}"
    if path.count(".") >= SEGMENTS_MAX:
        parts = path.count(".") + 1
        return f"expected a target of at most {SEGMENTS_MAX} parts, found {parts} in {shown}"
    if "[" in path or "]" in path:
        return f"expected a target of names, found {shown}: an item of a list cannot be set"
    return None


def overlapping(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield every path within another one, and that one: setting both depends on the order."""
    known = dict.fromkeys(paths)
    for path in known:
        parts = path.split(".")[:SEGMENTS_MAX]
        outer = (".".join(parts[:size]) for size in range(1, len(parts)))
        yield from ((path, shorter) for shorter in outer if shorter in known)


def _shown(path: str) -> str:
    return repr(path if len(path) <= 120 else f"{path[:120]}…")


def is_text(text: str) -> bool:
    """Return whether records can hold a text: it has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def set_path(
    values: Mapping[str, Any],
    path: str,
    value: Any,  # noqa: ANN401, any JSON value
) -> dict[str, Any]:
    """Return a copy with a value at a path.

    Only the objects along the path are copied; anything else in its way is replaced by an object.
    """
    *outer, last = path.split(".")
    root = inner = dict(values)
    for name in outer:
        nested = inner.get(name)
        inner[name] = dict(nested) if isinstance(nested, Mapping) else {}
        inner = inner[name]
    inner[last] = value
    return root


def set_path_within_depth(
    values: Mapping[str, Any],
    path: str,
    value: Any,  # noqa: ANN401
) -> dict[str, Any] | EvaluationProblem:
    """Return a copy as `set_path` does, or a problem if the result has too many levels."""
    return depth_problem(path, value) or set_path(values, path, value)


def depth_problem(path: str, value: Any) -> EvaluationProblem | None:  # noqa: ANN401
    """Return a problem if a value set at this path is nested too deeply."""
    levels = NESTING_MAX - path.count(".") - 1
    if not is_deeper(value, levels):
        return None
    return EvaluationProblem(
        f"expected at most {NESTING_MAX} levels of lists and objects with {path!r} set, found more"
    )


def is_deeper(value: Any, levels: int) -> bool:  # noqa: ANN401
    """Return whether lists and objects are nested in more than this many levels."""
    layer = [value] if isinstance(value, list | dict) else []
    for _ in range(levels):
        if not layer:
            return False
        layer = [
            inner for outer in layer for inner in _parts(outer) if isinstance(inner, list | dict)
        ]
    return bool(layer)


def _parts(value: list[Any] | dict[str, Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def section_of(path: str) -> tuple[str, str]:
    """Return the section of a path of the shared context, and the path within it."""
    section, _, rest = path.partition(".")
    return section, rest


# -- context and branch

SHARED: Final = Names("input", "state", "output")
BRANCH: Final = "_branch"
RESULT: Final = "result"
ERROR: Final = "error"
#: Names that an item variable must not have.
RESERVED: Final = WORDS | {"input", "state", "output", BRANCH, RESULT, ERROR}


class Context:
    """The shared context of a run at one time.

    Its keeper creates a new one when a value changes and otherwise reuses it, because it caches
    values that were converted for expressions.
    """

    __slots__ = ("_facts", "_input", "_input_facts", "input", "output", "state")

    def __init__(
        self,
        *,
        input: Any,  # noqa: A002, ANN401, the name that expressions have for it
        state: Mapping[str, Any],
        output: Mapping[str, Any],
    ) -> None:
        self.input = input
        self.state = state
        self.output = output
        self._facts: ExpressionValues | None = None
        # So that every field of them is missing, as it is in params without the field.
        self._input = {} if input is None else input
        self._input_facts = ExpressionValues({"input": self._input}, SHARED)

    def with_changes(
        self, *, state: Mapping[str, Any] | None = None, output: Mapping[str, Any] | None = None
    ) -> "Context":
        """Return the context after a change. The input never changes and is not converted again."""
        changed = Context(
            input=self.input,
            state=self.state if state is None else state,
            output=self.output if output is None else output,
        )
        changed._input_facts = self._input_facts
        return changed

    def facts_for(self, expression: Expression) -> ExpressionValues:
        """Return the part of the context that an expression reads."""
        if expression.roots.isdisjoint(("state", "output")):
            return self._input_facts
        if self._facts is None:
            values = {"input": self._input, "state": self.state, "output": self.output}
            self._facts = ExpressionValues(values, SHARED)
        return self._facts


class Branch(msgspec.Struct, frozen=True):
    """A branch, as expressions see it."""

    index: int
    total: int
    output: Mapping[str, Any] = {}


class Scope:
    """The values that expressions of one token can read."""

    __slots__ = ("context", "evaluations", "local")

    def __init__(
        self,
        context: Context,
        branch: Branch | None = None,
        items: Mapping[str, Any] = NO_VALUES,
        evaluations: Evaluations | None = None,
        error: Failure | None = None,
    ) -> None:
        self.context = context
        self.evaluations = evaluations
        self.local: dict[str, Any] = {
            **items,
            BRANCH: msgspec.structs.asdict(branch) if branch else {},
            ERROR: {"name": error.name, "message": error.message} if error else {},
        }

    def with_result(self, result: Any) -> "Scope":  # noqa: ANN401
        """Return the scope of an output mapping."""
        scope = Scope(self.context, evaluations=self.evaluations)
        scope.local = {**self.local, RESULT: result}
        return scope

    def value(self, expression: Expression) -> Any | EvaluationProblem:  # noqa: ANN401
        """Evaluate an expression. A missing field is null, or false for a condition.

        Returns:
            The value, or a problem that quotes the expression.
        """
        facts = self.context.facts_for(expression)
        value = expression.evaluate(facts, self.local, self.evaluations)
        if not isinstance(value, EvaluationProblem):
            return value
        if value.missing:
            return False if expression.result_kind is ResultKind.CONDITION else None
        return EvaluationProblem(f"the expression `{expression.source}` failed: {value.message}")
