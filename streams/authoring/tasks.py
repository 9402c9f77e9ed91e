"""A task: an author's function that a node of a graph names, and the decorator that makes one."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from typing_extensions import override

from headwater.processors.runs.limits import WORKFLOW_NAME_MAX, name_fault

#: What an author writes: a function of the node's input. It may be async, and have `info`, too.
TaskFunction: TypeAlias = Callable[..., Awaitable[Any] | Any]


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


class Task:
    """A task: an author's function and its name. Nothing is registered by making one."""

    def __init__(self, name: str, function: TaskFunction) -> None:
        fault = name_fault("the name of a task", name, WORKFLOW_NAME_MAX)
        if fault:
            raise ValueError(fault)
        if not callable(function):
            raise TypeError(f"expected the task {name} to be a function, found {function!r}")
        self.name = name
        self.function = function
        self.takes_info = _takes_info(function)
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__

    def __call__(self, given: Any, **info: Any) -> Awaitable[Any] | Any:  # noqa: ANN401, their own
        """Calls the author's function."""
        return self.function(given, **info)

    @override
    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _takes_info(function: TaskFunction) -> bool:
    try:
        return "info" in inspect.signature(function).parameters
    except ValueError:
        return False  # A builtin does not tell.


def task(name: str) -> Callable[[TaskFunction], Task]:
    """Declares a function (input), or (input, info), as a task.

    Shape:  info is the `TaskInfo` of the attempt. name is 1 to 64 of a-z, A-Z, 0-9, _ and -, not
            beginning with -.
    Errors: ValueError for the name.
    """
    if callable(name):
        raise TypeError('expected a name: write @task("name") above the function')

    def declare(function: TaskFunction) -> Task:
        return Task(name, function)

    return declare
