"""What the expressions of a graph see: the shared context, and what belongs to a branch.

input, state, output    the run's, shared by all tokens
_branch                 index, total and output of the branch; outside of all forks it is empty
an item variable        the item of the branch, of the innermost fork that has the name
result                  what a task gave, in its output mapping alone
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
#: Names that an item variable may not take.
RESERVED: Final = WORDS | {"input", "state", "output", BRANCH, RESULT}


class Context:
    """The shared context of a run, as it is at one time.

    Whoever keeps it makes a new one when something changes, and else hands over the same: it holds
    what was converted for expressions.
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
        """The context after a change. The input never changes, and is not converted again."""
        changed = Context(
            input=self.input,
            state=self.state if state is None else state,
            output=self.output if output is None else output,
        )
        changed._input_facts = self._input_facts
        return changed

    def facts_for(self, expression: Expression) -> ExpressionValues:
        """What an expression has to see of it."""
        if expression.roots.isdisjoint(("state", "output")):
            return self._input_facts
        if self._facts is None:
            values = {"input": self.input, "state": self.state, "output": self.output}
            self._facts = ExpressionValues(values, SHARED)
        return self._facts


class Branch(msgspec.Struct, frozen=True):
    """A branch, as its expressions see it."""

    index: int
    total: int
    output: Mapping[str, Any] = {}


class Scope:
    """What the expressions of one token see."""

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
        """The scope of an output mapping."""
        scope = Scope(self.context, evaluations=self.evaluations)
        scope.local = {**self.local, RESULT: result}
        return scope

    def value(self, expression: Expression) -> Any | EvaluationProblem:  # noqa: ANN401
        """What an expression gives; a missing field is null, or false for a condition.

        Shape:  an EvaluationProblem quotes the expression, and is never of a missing field.
        """
        facts = self.context.facts_for(expression)
        found = expression.evaluate(facts, self.local, self.evaluations)
        if not isinstance(found, EvaluationProblem):
            return found
        if found.missing:
            return False if expression.result_kind is ResultKind.CONDITION else None
        return EvaluationProblem(f"the expression `{expression.source}` failed: {found.message}")
