"""A task: an author's function that a node of a graph names, and the decorator that makes one."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from typing_extensions import override

from headwater.processors.runs.limits import WORKFLOW_NAME_MAX, name_fault

#: What an author writes: a function of the node's input. It may be async.
TaskFunction: TypeAlias = Callable[[Any], Awaitable[Any] | Any]


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
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__

    def __call__(self, given: Any) -> Awaitable[Any] | Any:  # noqa: ANN401, the author's own
        """Calls the author's function."""
        return self.function(given)

    @override
    def __repr__(self) -> str:
        return f"<task {self.name}>"


def task(name: str) -> Callable[[TaskFunction], Task]:
    """Declares a function (input) as a task.

    Shape:  name is 1 to 64 of a-z, A-Z, 0-9, _ and -, not beginning with -.
    Errors: ValueError for the name.
    """
    if callable(name):
        raise TypeError('expected a name: write @task("name") above the function')

    def declare(function: TaskFunction) -> Task:
        return Task(name, function)

    return declare
