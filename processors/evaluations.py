"""Where expressions and schemas are evaluated: here, or in a process with limits.

An evaluation whose upper bound of time and memory is small is done at once. Any other is a task for
an evaluator, which the shell passes in; it returns within its limits, whatever the task is. Without
an evaluator everything is evaluated here, without limits: for tests, simulations and tools.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.cel_cost import Cost

#: What may be evaluated where it is needed. A round trip to another process takes 0.1 ms.
INLINE_NS: Final = 5_000_000
INLINE_BYTES: Final = 16 * 1024 * 1024
#: The sum of the bounds of what one decision evaluates at once; beyond, the process measures.
DECISION_INLINE_NS: Final = 250_000_000
#: Processor time of all tasks of one decision. A graph evaluates up to thousands of expressions.
DECISION_TASKS_NS: Final = 1_000_000_000


class EvaluationProblem(msgspec.Struct, frozen=True):
    """Why an expression has no value for some facts; `missing`: they lack what it names."""

    message: str
    missing: bool = False


class SharedValues:
    """Values of many tasks as JSON, told apart by identity: an evaluator keeps them converted."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


class ExpressionTask(msgspec.Struct, frozen=True, tag="expression"):
    """An expression to evaluate over shared values."""

    source: str
    #: Name of `expressions.Gives`.
    gives: str
    #: Names of the shared values, and of the expression's own, as it is compiled with them.
    names: tuple[str, ...]
    local: tuple[str, ...]
    #: Values of its own names, a JSON object.
    values: bytes


class SchemaTask(msgspec.Struct, frozen=True, tag="schema"):
    """A JSON text to check; `root` is what messages call it. The result is a message or null."""

    schema: bytes
    text: bytes
    root: str
    #: Whether texts have to have the formats of params.
    formats: bool


Task: TypeAlias = ExpressionTask | SchemaTask


class Outcome(msgspec.Struct, frozen=True):
    """The result of a task: a value of JSON, or why there is none."""

    value: Any | EvaluationProblem
    cpu_ns: int


#: Carries out a task within limits. Whatever happens, it returns, and raises nothing.
Evaluator: TypeAlias = Callable[[Task, SharedValues | None], Outcome]


class Evaluations:
    """What one decision may still spend on evaluations."""

    __slots__ = ("_evaluator", "_inline_ns", "_limit_ns", "_tasks_ns")

    def __init__(
        self, evaluator: Evaluator | None = None, tasks_ns: int = DECISION_TASKS_NS
    ) -> None:
        self._evaluator = evaluator
        self._inline_ns: float = DECISION_INLINE_NS
        self._tasks_ns = self._limit_ns = tasks_ns

    def admits(self, cost: Cost) -> bool:
        """Whether an evaluation is done here; its bound is then spent."""
        if self._evaluator is None:
            return True
        if cost.ns > min(INLINE_NS, self._inline_ns) or cost.memory > INLINE_BYTES:
            return False
        self._inline_ns -= cost.ns
        return True

    def run(self, task: Task, shared: SharedValues | None = None) -> Any | EvaluationProblem:  # noqa: ANN401, any JSON value
        """Have the evaluator carry out a task."""
        assert self._evaluator is not None  # noqa: S101, without one everything is admitted
        if self._tasks_ns <= 0:
            return EvaluationProblem(
                f"expected all evaluations of one decision to take at most {self._limit_ns / 1e9:g}"
                " s of processor time, they take longer; evaluate less, or over less data"
            )
        outcome = self._evaluator(task, shared)
        self._tasks_ns -= outcome.cpu_ns
        return outcome.value
