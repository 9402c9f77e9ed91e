"""What an author writes a workflow with: the decorator, and the values it passes around."""

import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from typing_extensions import override

from headwater.processors.replay.commands import RetryPolicy
from headwater.processors.replay.retries import ANY_NUMBER
from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import RETRIES_MAX, WORKFLOW_NAME_MAX, name_fault
from headwater.schemas.history import Json
from headwater.streams.authoring.params import Params, params_of

if TYPE_CHECKING:
    from headwater.streams.replay.step import Step

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
                "expected the backoff of a Retry to be constant, linear or exponential, "
                f"found {self.backoff!r}"
            )
        if not _is_number_of_retries(self.limit):
            raise ValueError(
                f"expected the limit of a Retry to be a whole number of retries, at most "
                f"{RETRIES_MAX:,}, or inf, found {self.limit!r}"
            )
        return RetryPolicy(
            ANY_NUMBER if self.limit == math.inf else int(self.limit),
            milliseconds_of("the delay of a Retry", self.delay),
            self.backoff,
        )


def _is_number_of_retries(limit: object) -> bool:
    # True is a number to Python, and authors who pass it mean something else.
    if not isinstance(limit, int | float) or isinstance(limit, bool):
        return False
    return limit == math.inf or (0 <= limit <= RETRIES_MAX and limit == int(limit))


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
        found = params_of(name, function, WorkflowEvent)
        #: None until all of the module is there: a type may be defined behind the workflow.
        self._params = None if found.fault else found

    def __call__(self, event: WorkflowEvent[Any], step: "Step") -> Awaitable[Any]:
        """Calls the author's function."""
        return self.function(event, step)

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def params_type(self) -> Params:
        """The type that the author declared for the payload.

        It is T where the first parameter is annotated `WorkflowEvent[T]`.
        """
        if self._params is None:
            self._params = params_of(self.name, self.function, WorkflowEvent)
        return self._params

    def check(self) -> None:
        """Sees that the type of the params is known, once everything is imported.

        Errors: TypeError.
        """
        fault = self.params_type().fault
        if fault:
            raise TypeError(fault)


def read_params(workflow: Workflow, params: Json) -> Any:  # noqa: ANN401, what the author declared
    """The payload of a run, as the type that its workflow declares, read-only.

    Errors: as `Params.read`.
    """
    return workflow.params_type().read(params)


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
