"""Workflows: authors' functions, and the decorator that declares them."""

import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, Literal, TypeAlias, get_args

from typing_extensions import override

from headwater.processors.runs.limits import WORKFLOW_NAME_MAX, name_problem
from headwater.processors.runs.slots import Concurrency
from headwater.schemas.history import Json
from headwater.schemas.topics import author_topic_problem
from headwater.streams.authoring.arguments import signature_mismatch
from headwater.streams.authoring.value_types import ValueType, params_of, result_of
from headwater.streams.authoring.workflow_values import P_contra, R_co, WorkflowEvent, frozen
from headwater.streams.replay.step import Step

#: An author's function.
Author: TypeAlias = Callable[[WorkflowEvent[P_contra], Step], Awaitable[R_co]]


#: Whether runs stay on the deployment that they started on, or follow the code.
Versioning: TypeAlias = Literal["pinned", "latest"]


class Workflow(Generic[P_contra, R_co]):
    """An author's function and its name. Creating one registers nothing.

    Workflow[P, R] takes a WorkflowEvent[P] and returns R.
    """

    def __init__(  # noqa: PLR0913, the options of a workflow
        self,
        name: str,
        function: Author[P_contra, R_co],
        *,
        strict: bool,
        replayed_lines: bool = False,
        concurrency: Concurrency | int | None = None,
        publishes: Collection[str] | None = None,
        versioning: Versioning = "pinned",
    ) -> None:
        problem = name_problem("the name of a workflow", name, WORKFLOW_NAME_MAX)
        if problem:
            raise ValueError(problem)
        mismatch = signature_mismatch(function, 2) if inspect.iscoroutinefunction(function) else ""
        if mismatch is not None:
            raise TypeError(
                f"expected the workflow {name} to be an async function (event, step), "
                f"found {function!r}{mismatch and ': ' + mismatch}"
            )
        self.name = name
        self.function = function
        self.strict = strict
        self.replayed_lines = replayed_lines
        self.concurrency = _concurrency(name, concurrency)
        self.publishes = _publishes(name, publishes)
        self.follows_code = _follows_code(name, versioning)
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self._result: ValueType | None = None
        params = params_of(name, function, WorkflowEvent)
        #: None until the whole module is imported: a type may be defined after the workflow.
        self._params = None if params.problem else params

    def __call__(self, event: WorkflowEvent[P_contra], step: Step) -> Awaitable[R_co]:
        """Call the author's function."""
        return self.function(event, step)

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def params_type(self) -> ValueType:
        """Return the type of the params: T of `WorkflowEvent[T]`, as the function is annotated."""
        if self._params is None:
            self._params = params_of(self.name, self.function, WorkflowEvent)
        return self._params

    def check(self) -> None:
        """Check that params and output can be encoded and read. Call it after all imports.

        Raises:
            TypeError: A type is not supported.
        """
        self._check("params", self.params_type())
        self._check("output", self.result_type())

    def result_type(self) -> ValueType:
        """Return the type of the output, as the function is annotated."""
        if self._result is None:
            self._result = result_of(self.function)
        return self._result

    def _check(self, what: str, declared: ValueType) -> None:
        try:
            declared.check()
        except TypeError as error:
            if declared.problem:
                raise
            raise TypeError(
                f"expected the type of the {what} of the workflow {self.name}, {declared!r}, to be "
                f"one that JSON can be read as, found: {error}"
            ) from error


def _concurrency(name: str, value: object) -> Concurrency | None:
    if value is None or isinstance(value, Concurrency):
        return value
    if isinstance(value, int):
        return Concurrency(value)
    raise TypeError(
        f"expected the concurrency of the workflow {name} to be a number or a Concurrency, such as "
        f'Concurrency(3, key="params.region"), found {value!r:.80}'
    )


def _publishes(name: str, topics: object) -> frozenset[str] | None:
    if topics is None:
        return None
    listed = list(topics) if isinstance(topics, Collection) and not isinstance(topics, str) else [0]
    names = [topic for topic in listed if isinstance(topic, str)]
    if len(names) < len(listed):
        raise TypeError(
            f"expected the topics that steps of the workflow {name} publish to as a list of names, "
            f'such as publishes=["orders-kept"], found {topics!r:.80}'
        )
    for problem in filter(None, map(author_topic_problem, names)):
        raise ValueError(f"of the workflow {name}: {problem}")
    return frozenset(names)


def _follows_code(name: str, versioning: object) -> bool:
    if versioning not in get_args(Versioning):
        raise ValueError(
            f"expected the versioning of the workflow {name} to be "
            f"{' or '.join(map(repr, get_args(Versioning)))}, found {versioning!r:.80}"
        )
    return versioning == "latest"


def read_params(workflow: Workflow, params: Json) -> Any:  # noqa: ANN401, what the author declared
    """Read the payload of a run as the type that its workflow declares, read-only.

    Raises:
        msgspec.ValidationError: The params do not fit.
        TypeError: The type is not supported.
    """
    return frozen(workflow.params_type().read(params))


def workflow(
    name: str,
    *,
    strict: bool = False,
    replayed_lines: bool = False,
    concurrency: Concurrency | int | None = None,
    publishes: Collection[str] | None = None,
    versioning: Versioning = "pinned",
) -> Callable[[Author[P_contra, R_co]], Workflow[P_contra, R_co]]:
    """Declare an async function (event, step) as a workflow.

    Args:
        name: 1 to 64 of a-z, A-Z, 0-9, _ and -, not beginning with -.
        strict: Raise HistoryDivergedError for a name that repeats in a scope, and for a recorded
            entry that the code no longer visits.
        replayed_lines: Keep log lines that a replay repeats, marked as `is_replay`.
        concurrency: Largest number of runs at the same time. Others wait for a slot, in the order
            of their arrival.
        publishes: Topics that its steps may publish to; any by default. A worker reports at its
            start which of them are missing.
        versioning: Where code is deployed, a "pinned" run stays on the deployment that it started
            on. A "latest" run follows the code of the worker's app, or else of the active
            deployment.

    Raises:
        ValueError: The name is invalid, the limit is less than 1, or a topic is not permitted.
    """
    if callable(name):
        raise TypeError('expected a name: write @workflow("name") above the function')

    def declare(function: Author[P_contra, R_co]) -> Workflow[P_contra, R_co]:
        return Workflow(
            name,
            function,
            strict=strict,
            replayed_lines=replayed_lines,
            concurrency=concurrency,
            publishes=publishes,
            versioning=versioning,
        )

    return declare
