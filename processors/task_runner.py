"""Executes tasks of an evaluator, within the process that has limits for them."""

from functools import lru_cache
from typing import Any, Final

import msgspec

from headwater.processors.cel_programs import ExpressionInvalid, Names, ResultKind
from headwater.processors.evaluations import EvaluationProblem, ExpressionTask, Task
from headwater.processors.expressions import Expression, ExpressionValues
from headwater.processors.json_schemas import JsonSchema, SchemaInvalid
from headwater.processors.runs.params import FORMATS

#: Bytes of a result as JSON. Values of workflows may have a megabyte.
RESULT_MAX: Final = 4 * 1024 * 1024
#: Compiled expressions and schemas that are cached.
_COMPILED_MAX: Final = 1_024
#: Converted shared values that are cached: a graph has its input, and its whole context.
SHARED_KEPT: Final = 2
#: Larger values, in bytes, are cached alone.
SHARED_LARGE: Final = 1024 * 1024


class TaskRequest(msgspec.Struct, frozen=True):
    """A task, and the id of its shared values, which are sent with the first task that has them."""

    task: Task
    shared: int = 0
    values: bytes | None = None


class TaskResponse(msgspec.Struct, frozen=True):
    """The result of a task as JSON, or why there is none."""

    value: bytes | None
    problem: EvaluationProblem | None = None
    cpu_ns: int = 0
    #: Whether the process exits after it, which drops the cached shared values.
    last: bool = False


#: Numbers such as 1e308 are parsed by Python, as in `read_json`. Nesting was checked before.
decode: Final = msgspec.json.Decoder(float_hook=float).decode
_encode: Final = msgspec.json.Encoder().encode


def keep_shared(cache: dict[int, Any], key: int, value: Any, size: int) -> None:  # noqa: ANN401
    """Cache shared values under an id, and evict older ones; both processes do the same."""
    if size > SHARED_LARGE:
        cache.clear()
    while len(cache) >= SHARED_KEPT:
        del cache[next(iter(cache))]
    cache[key] = value


class TaskRunner:
    """Executes tasks one after the other."""

    def __init__(self) -> None:
        self._shared: dict[int, tuple[Any, dict[tuple[str, ...], ExpressionValues]]] = {}

    def run(self, request: TaskRequest) -> TaskResponse:
        """Execute a task; it may take any time and memory."""
        task = request.task
        if isinstance(task, ExpressionTask):
            result = self._evaluate(request, task)
        else:
            result = _schema(task.schema, task.formats).problem(decode(task.text), task.root)
        if isinstance(result, EvaluationProblem):
            return TaskResponse(None, result)
        text = _encode(result)
        if len(text) > RESULT_MAX:
            message = f"expected a result of at most {RESULT_MAX} bytes as JSON, found {len(text)}"
            return TaskResponse(None, EvaluationProblem(message))
        return TaskResponse(text)

    def _evaluate(self, request: TaskRequest, task: ExpressionTask) -> Any | EvaluationProblem:  # noqa: ANN401
        if request.values is not None:
            value: Any = decode(request.values)
            keep_shared(self._shared, request.shared, (value, {}), len(request.values))
        values, by_names = self._shared[request.shared]
        facts = by_names.get(task.names)
        if facts is None:
            facts = by_names[task.names] = ExpressionValues(values, _names(task.names))
        expression = _expression(task.source, task.result_kind, task.names, task.local)
        return expression.evaluate(facts, decode(task.values))


def failure_of(error: Exception) -> TaskResponse:
    """Return the response for a task that raised an error."""
    known = isinstance(error, ExpressionInvalid | SchemaInvalid)
    return TaskResponse(
        None, EvaluationProblem(str(error) if known else f"the evaluation has failed: {error!r}")
    )


@lru_cache
def _names(names: tuple[str, ...]) -> Names:
    return Names(*names)


@lru_cache(_COMPILED_MAX)
def _expression(
    source: str, result_kind: str, names: tuple[str, ...], local: tuple[str, ...]
) -> Expression:
    return Expression(source, ResultKind[result_kind], _names(names), local)


@lru_cache(_COMPILED_MAX)
def _schema(text: bytes, formats: bool) -> JsonSchema:
    return JsonSchema(decode(text), FORMATS if formats else None)
