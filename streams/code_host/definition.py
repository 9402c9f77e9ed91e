"""What an author writes a workflow with: the decorator, and the values it passes around."""

import inspect
import math
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec
from typing_extensions import override

from processors.replay.commands import RetryPolicy
from processors.replay.retries import ANY_NUMBER
from processors.runs.durations import Duration, milliseconds
from processors.runs.limits import RETRIES_MAX, WORKFLOW_NAME_MAX, name_fault
from schemas.history import Json
from streams.code_host.values import decode, frozen

if TYPE_CHECKING:
    from streams.code_host.step import Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowEvent(Generic[T]):
    """What a run was started with.

    Shape:  payload is read-only; timestamp is aware; the first run has number 0.
    """

    payload: T
    timestamp: datetime
    instance_id: str
    workflow_name: str
    run_number: int


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and how soon, a failed step is tried again.

    Shape:  limit retries after the first attempt, `math.inf` for any number. Delay before retry k:
            constant d, linear d*k, exponential d*2^(k-1), counted from the failure.
    """

    limit: float = 5
    delay: Duration = "10 seconds"
    backoff: Literal["constant", "linear", "exponential"] = "exponential"

    def policy(self) -> RetryPolicy:
        """The same as plain numbers.

        Errors: ValueError.
        """
        if self.backoff not in ("constant", "linear", "exponential"):
            raise ValueError(
                f"expected backoff constant, linear or exponential, found {self.backoff!r}"
            )
        if self.limit != math.inf and not (
            0 <= self.limit <= RETRIES_MAX and self.limit == int(self.limit)
        ):
            raise ValueError(
                f"expected a whole number of retries, at most {RETRIES_MAX:,}, or inf, "
                f"found {self.limit!r}"
            )
        limit = ANY_NUMBER if self.limit == math.inf else int(self.limit)
        return RetryPolicy(limit, milliseconds(self.delay), self.backoff)


@dataclass(frozen=True, slots=True)
class Continue:
    """Returned by the body of a loop: go on, with this state."""

    state: Any = None


@dataclass(frozen=True, slots=True)
class Break:
    """Returned by the body of a loop: end it, with this value."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Won:
    """What a race gives: the name of the branch that completed first, and its value."""

    winner: str
    value: Any


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event that a wait has taken."""

    type: str
    payload: Any
    timestamp: datetime


Author = Callable[[WorkflowEvent[Any], "Step"], Awaitable[Any]]


class Workflow:
    """A workflow: an author's function and its name. Nothing is registered by making one."""

    def __init__(self, name: str, function: Author, *, strict: bool) -> None:
        fault = name_fault("the name of a workflow", name, WORKFLOW_NAME_MAX)
        if fault:
            raise ValueError(fault)
        if not inspect.iscoroutinefunction(function):
            raise TypeError(
                f"expected the workflow {name} to be an async function (event, step), "
                f"found {function!r}"
            )
        self.name = name
        self.function = function
        self.strict = strict
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self._declared: list[Any] = []

    def __call__(self, event: WorkflowEvent[Any], step: "Step") -> Awaitable[Any]:
        """Calls the author's function."""
        return self.function(event, step)

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def params_type(self) -> Any:  # noqa: ANN401, a type form
        """The type that the author declared for the payload, or Any.

        It is T where the first parameter is annotated `WorkflowEvent[T]`.
        """
        if not self._declared:
            self._declared.append(_declared(self.function))
        return self._declared[0]


def _declared(function: Author) -> Any:  # noqa: ANN401, a type form
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):
        return Any
    first = next(iter(inspect.signature(function).parameters), "")
    arguments = typing.get_args(hints.get(first))
    if not arguments or isinstance(arguments[0], TypeVar):
        return Any
    return arguments[0]


def read_params(workflow: Workflow, params: Json) -> Any:  # noqa: ANN401, what the author declared
    """The payload of a run, as the type that its workflow declares, read-only.

    Shape:  none are None, whatever the type.
    Errors: msgspec.ValidationError, which says where it does not fit; TypeError for a type that
            says of no JSON what it is.
    """
    declared = workflow.params_type()
    value = decode(params)
    if declared is not Any and value is not None:
        value = msgspec.convert(value, declared)
    return frozen(value)


def workflow(name: str, *, strict: bool = False) -> Callable[[Author], Workflow]:
    """Declares an async function (event, step) as a workflow.

    Shape:  name is 1 to 64 of a-z, A-Z, 0-9, _ and -, not beginning with -. With `strict`, a name
            that repeats in a scope, and an entry in history that the code no longer visits, raise
            HistoryDivergedError.
    Errors: ValueError for the name.
    """
    if callable(name):
        raise TypeError('expected a name: write @workflow("name") above the function')

    def declare(function: Author) -> Workflow:
        return Workflow(name, function, strict=strict)

    return declare
