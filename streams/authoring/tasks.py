"""A task: an author's function that a node of a graph names, and the decorator that makes one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from typing_extensions import ParamSpec, TypeVar, override

from headwater.processors.runs.limits import WORKFLOW_NAME_MAX, name_problem
from headwater.streams.authoring.arguments import misfit_of

#: Of what an author writes: a function of the node's input. It may be async, and have `info`, too.
A = ParamSpec("A", default=...)
R = TypeVar("R", default=Any)
#: Of one that is not said: a default would take its place.
F = ParamSpec("F")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """The attempt at hand, for a task that has a parameter `info`.

    Shape:  attempts are counted from 1. The idempotency token is the same for all attempts of this
            task at this token, also in a retry of its run, and nobody else's.
    """

    workflow_name: str
    instance_id: str
    run_number: int
    token_id: str
    node_ref: str
    attempt: int
    idempotency_token: str


class Task(Generic[A, R]):
    """A task: an author's function and its name. Nothing is registered by making one."""

    def __init__(self, name: str, function: Callable[A, R]) -> None:
        fault = name_problem("the name of a task", name, WORKFLOW_NAME_MAX)
        if fault:
            raise ValueError(fault)
        if not callable(function):
            raise TypeError(f"expected the task {name} to be a function, found {function!r}")
        self.name = name
        self.function = function
        self.takes_info = _takes_info(function)
        called: Callable[..., Any] = function
        misfit = misfit_of(partial(called, info=None) if self.takes_info else called, 1)
        if misfit is not None:
            raise TypeError(
                f"expected the task {name} to be a function (input), or (input, info), found "
                f"{function!r}: {misfit}"
            )
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__

    def __call__(self, *given: A.args, **info: A.kwargs) -> R:
        """Calls the author's function."""
        return self.function(*given, **info)

    @override
    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _takes_info(function: Callable[..., Any]) -> bool:
    try:
        return "info" in inspect.signature(function).parameters
    except ValueError:
        return False  # A builtin does not tell.


def task(name: str) -> Callable[[Callable[F, T]], Task[F, T]]:
    """Declares a function (input), or (input, info), as a task.

    Shape:  info is the `TaskInfo` of the attempt. name is 1 to 64 of a-z, A-Z, 0-9, _ and -, not
            beginning with -.
    Errors: ValueError for the name.
    """
    if callable(name):
        raise TypeError('expected a name: write @task("name") above the function')

    def declare(function: Callable[F, T]) -> Task[F, T]:
        return Task(name, function)

    return declare
