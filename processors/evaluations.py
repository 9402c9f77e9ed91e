"""Where expressions and schemas are evaluated: in this process, or in one with limits.

An evaluation with a small upper bound of time and memory is done immediately. Any other is a task
for an evaluator, which the caller passes in; it returns within its limits whatever the task is.
Without an evaluator everything is evaluated here, without limits: for tests, simulations and tools.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.cel_cost import Cost

#: Limits of an evaluation in this process. A round trip to another process takes 0.1 ms.
INLINE_NS: Final = 5_000_000
INLINE_BYTES: Final = 16 * 1024 * 1024
#: Limit of the sum of bounds of immediate evaluations of one decision, in ns.
DECISION_INLINE_NS: Final = 250_000_000
#: Processor time, in ns, of all tasks of one decision. A graph evaluates thousands of expressions.
DECISION_TASKS_NS: Final = 1_000_000_000


class EvaluationProblem(msgspec.Struct, frozen=True):
    """Why an expression has no value.

    Attributes:
        message: The reason.
        missing: Whether a field that the expression names is missing.
    """

    message: str
    missing: bool = False


class SharedValues:
    """JSON values of many tasks, compared by identity: an evaluator caches them converted."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


class ExpressionTask(msgspec.Struct, frozen=True, tag="expression"):
    """Evaluate an expression over shared values."""

    source: str
    #: Name of a member of `expressions.ResultKind`.
    result_kind: str
    #: Names of the shared values and local names with which it is compiled.
    names: tuple[str, ...]
    local: tuple[str, ...]
    #: Values of its local names, a JSON object.
    values: bytes


class SchemaTask(msgspec.Struct, frozen=True, tag="schema"):
    """Validate a JSON text; `root` is its name in messages. The result is a message or null."""

    schema: bytes
    text: bytes
    root: str
    #: Whether texts have to match the formats of params.
    formats: bool


Task: TypeAlias = ExpressionTask | SchemaTask


class TaskOutcome(msgspec.Struct, frozen=True):
    """The result of a task: a JSON value, or why there is none."""

    value: Any | EvaluationProblem
    cpu_ns: int


#: Executes a task within limits; it always returns and never raises.
Evaluator: TypeAlias = Callable[[Task, SharedValues | None], TaskOutcome]


class Evaluations:
    """Remaining evaluation budget of one decision."""

    __slots__ = ("_evaluator", "_inline_ns", "_limit_ns", "_tasks_ns")

    def __init__(
        self, evaluator: Evaluator | None = None, tasks_ns: int = DECISION_TASKS_NS
    ) -> None:
        self._evaluator = evaluator
        self._inline_ns: float = DECISION_INLINE_NS
        self._tasks_ns = self._limit_ns = tasks_ns

    def admits(self, cost: Cost) -> bool:
        """Return whether an evaluation is done in this process; its bound is then spent."""
        if self._evaluator is None:
            return True
        if cost.ns > min(INLINE_NS, self._inline_ns) or cost.memory > INLINE_BYTES:
            return False
        self._inline_ns -= cost.ns
        return True

    def run(self, task: Task, shared: SharedValues | None = None) -> Any | EvaluationProblem:  # noqa: ANN401, any JSON value
        """Execute a task in the evaluator."""
        assert self._evaluator is not None  # noqa: S101, without one `admits` returns True
        if self._tasks_ns <= 0:
            return EvaluationProblem(
                f"expected all evaluations of one decision to take at most {self._limit_ns / 1e9:g}"
                " s of processor time, they take longer; evaluate less, or over less data"
            )
        outcome = self._evaluator(task, shared)
        self._tasks_ns -= outcome.cpu_ns
        return outcome.value
