"""Values that expressions of a graph can read: the shared context and the branch.

input, state, output    of the run, shared by all tokens
_branch                 index, total and output of the branch; empty outside of all forks
an item variable        the item of the branch; the innermost fork with this name wins
result                  the result of the task, only in its output mapping
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headwater.processors.evaluations import EvaluationProblem, Evaluations
from headwater.processors.expressions import (
    NO_VALUES,
    WORDS,
    Expression,
    ExpressionValues,
    Names,
    ResultKind,
)

SHARED: Final = Names("input", "state", "output")
BRANCH: Final = "_branch"
RESULT: Final = "result"
#: Names that an item variable must not have.
RESERVED: Final = WORDS | {"input", "state", "output", BRANCH, RESULT}


class Context:
    """The shared context of a run at one time.

    Its keeper creates a new one when a value changes and otherwise reuses it, because it caches
    values that were converted for expressions.
    """

    __slots__ = ("_facts", "_input_facts", "input", "output", "state")

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
        self._input_facts = ExpressionValues({"input": input}, SHARED)

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
            values = {"input": self.input, "state": self.state, "output": self.output}
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
    ) -> None:
        self.context = context
        self.evaluations = evaluations
        self.local: dict[str, Any] = {
            **items,
            BRANCH: msgspec.structs.asdict(branch) if branch else {},
        }

    def with_result(self, result: Any) -> "Scope":  # noqa: ANN401
        """Return the scope of an output mapping."""
        scope = Scope(self.context, evaluations=self.evaluations)
        scope.local = {**self.local, RESULT: result}
        return scope

    def value(self, expression: Expression) -> Any | EvaluationProblem:  # noqa: ANN401
        """Evaluate an expression. A missing field is null, or false for a condition.

        Returns:
            The value, or a Fault that quotes the expression.
        """
        facts = self.context.facts_for(expression)
        value = expression.evaluate(facts, self.local, self.evaluations)
        if not isinstance(value, EvaluationProblem):
            return value
        if value.missing:
            return False if expression.result_kind is ResultKind.CONDITION else None
        return EvaluationProblem(f"the expression `{expression.source}` failed: {value.message}")
