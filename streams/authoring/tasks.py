"""Tasks: authors' functions that nodes of graphs call, and the decorator that declares them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from typing_extensions import ParamSpec, TypeVar, override

from headwater.processors.runs.limits import WORKFLOW_NAME_MAX, name_problem
from headwater.streams.authoring.arguments import signature_mismatch

#: Parameters of an author's function: the node's input and, optionally, `info`.
A = ParamSpec("A", default=...)
R = TypeVar("R", default=Any)
#: Without a default, which would replace parameters that are inferred.
F = ParamSpec("F")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """The current attempt, for a task that has a parameter `info`.

    Attributes:
        attempt: Number of the attempt, from 1.
        idempotency_token: The same for all attempts of this task at this token, also in a retry of
            the run, and unique to them.
        traceparent: W3C trace context of the attempt, for requests to other services.
    """

    workflow_name: str
    instance_id: str
    run_number: int
    token_id: str
    node_ref: str
    attempt: int
    idempotency_token: str
    traceparent: str = ""


class Task(Generic[A, R]):
    """An author's function and its name. Creating one registers nothing."""

    def __init__(self, name: str, function: Callable[A, R]) -> None:
        problem = name_problem("the name of a task", name, WORKFLOW_NAME_MAX)
        if problem:
            raise ValueError(problem)
        if not callable(function):
            raise TypeError(f"expected the task {name} to be a function, found {function!r}")
        self.name = name
        self.function = function
        self.takes_info = _takes_info(function)
        called: Callable[..., Any] = function
        mismatch = signature_mismatch(partial(called, info=None) if self.takes_info else called, 1)
        if mismatch is not None:
            raise TypeError(
                f"expected the task {name} to be a function (input), or (input, info), found "
                f"{function!r}: {mismatch}"
            )
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__

    def __call__(self, *args: A.args, **kwargs: A.kwargs) -> R:
        """Call the author's function."""
        return self.function(*args, **kwargs)

    @override
    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _takes_info(function: Callable[..., Any]) -> bool:
    try:
        return "info" in inspect.signature(function).parameters
    except ValueError:
        return False  # Some builtins have no signature.


def task(name: str) -> Callable[[Callable[F, T]], Task[F, T]]:
    """Declare a function (input), or (input, info), as a task.

    Args:
        name: 1 to 64 of a-z, A-Z, 0-9, _ and -, not beginning with -.

    Returns:
        A decorator. The function's `info` is the `TaskInfo` of the attempt.

    Raises:
        ValueError: The name breaks the rules.
    """
    if callable(name):
        raise TypeError('expected a name: write @task("name") above the function')

    def declare(function: Callable[F, T]) -> Task[F, T]:
        return Task(name, function)

    return declare
