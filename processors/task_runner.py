"""Carries out tasks of an evaluator, within the process that has limits for them."""

from functools import lru_cache
from typing import Any, Final

import msgspec

from headwater.processors.evaluations import EvaluationProblem, ExpressionTask, Task
from headwater.processors.expressions import Expression, ExpressionInvalid, Facts, Gives, Names
from headwater.processors.json_schemas import JsonSchema, SchemaInvalid
from headwater.processors.runs.params import FORMATS

#: Bytes of JSON of a result. Values of workflows may have a megabyte.
RESULT_MAX: Final = 4 * 1024 * 1024
#: Expressions and schemas that stay compiled.
_COMPILED_MAX: Final = 1_024
#: Shared values that stay converted: a graph has its input, and all of its context.
SHARED_KEPT: Final = 2
#: Above so many bytes they are kept alone.
SHARED_LARGE: Final = 1024 * 1024


class Request(msgspec.Struct, frozen=True):
    """A task, and a name for the shared values of it, which come with the first task over them."""

    task: Task
    shared: int = 0
    values: bytes | None = None


class Response(msgspec.Struct, frozen=True):
    """The result of a task, as JSON, or why there is none."""

    value: bytes | None
    fault: EvaluationProblem | None = None
    cpu_ns: int = 0
    #: Whether the process ends after it, and with it the shared values that it has kept.
    last: bool = False


#: Numbers such as 1e308 are read by Python, as by `read_json`. Levels were counted before.
decode: Final = msgspec.json.Decoder(float_hook=float).decode
_encode: Final = msgspec.json.Encoder().encode


def keep_shared(kept: dict[int, Any], key: int, value: Any, size: int) -> None:  # noqa: ANN401
    """Keep shared values under their name, and drop older ones; both processes do the same."""
    if size > SHARED_LARGE:
        kept.clear()
    while len(kept) >= SHARED_KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


class TaskRunner:
    """Carries out tasks one after the other."""

    def __init__(self) -> None:
        self._shared: dict[int, tuple[Any, dict[tuple[str, ...], Facts]]] = {}

    def run(self, request: Request) -> Response:
        """Carry out a task; it may take any time and memory."""
        task = request.task
        if isinstance(task, ExpressionTask):
            found = self._evaluate(request, task)
        else:
            found = _schema(task.schema, task.formats).problem(decode(task.text), task.root)
        if isinstance(found, EvaluationProblem):
            return Response(None, found)
        text = _encode(found)
        if len(text) > RESULT_MAX:
            message = f"expected a result of at most {RESULT_MAX} bytes as JSON, found {len(text)}"
            return Response(None, EvaluationProblem(message))
        return Response(text)

    def _evaluate(self, request: Request, task: ExpressionTask) -> Any | EvaluationProblem:  # noqa: ANN401
        if request.values is not None:
            value: Any = decode(request.values)
            keep_shared(self._shared, request.shared, (value, {}), len(request.values))
        values, known = self._shared[request.shared]
        facts = known.get(task.names)
        if facts is None:
            facts = known[task.names] = Facts(values, _names(task.names))
        expression = _expression(task.source, task.gives, task.names, task.local)
        return expression.evaluate(facts, decode(task.values))


def failure_of(error: Exception) -> Response:
    """What an error of a task comes to."""
    known = isinstance(error, ExpressionInvalid | SchemaInvalid)
    return Response(
        None, EvaluationProblem(str(error) if known else f"the evaluation has failed: {error!r}")
    )


@lru_cache
def _names(names: tuple[str, ...]) -> Names:
    return Names(*names)


@lru_cache(_COMPILED_MAX)
def _expression(
    source: str, gives: str, names: tuple[str, ...], local: tuple[str, ...]
) -> Expression:
    return Expression(source, Gives[gives], _names(names), local)


@lru_cache(_COMPILED_MAX)
def _schema(text: bytes, formats: bool) -> JsonSchema:
    return JsonSchema(decode(text), FORMATS if formats else None)
