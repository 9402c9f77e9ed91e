"""A workflow: an author's function with its name, and the decorator that makes one."""

import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, Literal, TypeAlias, get_args

from typing_extensions import override

from headwater.processors.runs.limits import WORKFLOW_NAME_MAX, name_fault
from headwater.processors.runs.slots import Concurrency
from headwater.schemas.history import Json
from headwater.schemas.topics import authors_topic_fault
from headwater.streams.authoring.arguments import signature_mismatch
from headwater.streams.authoring.params import params_of, result_of
from headwater.streams.authoring.read_only import frozen
from headwater.streams.authoring.value_types import ValueType
from headwater.streams.authoring.workflow_values import P_contra, R_co, WorkflowEvent
from headwater.streams.replay.step import Step

#: What an author writes.
Author: TypeAlias = Callable[[WorkflowEvent[P_contra], Step], Awaitable[R_co]]


#: Whether runs stay on the deployment that they began on, or follow the code.
Versioning: TypeAlias = Literal["pinned", "latest"]


class Workflow(Generic[P_contra, R_co]):
    """A workflow: an author's function and its name. Nothing is registered by making one.

    Shape:  Workflow[P, R] takes a WorkflowEvent[P] and returns R.
    """

    def __init__(  # noqa: PLR0913, what its author says of it
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
        fault = name_fault("the name of a workflow", name, WORKFLOW_NAME_MAX)
        if fault:
            raise ValueError(fault)
        misfit = signature_mismatch(function, 2) if inspect.iscoroutinefunction(function) else ""
        if misfit is not None:
            raise TypeError(
                f"expected the workflow {name} to be an async function (event, step), "
                f"found {function!r}{misfit and ': ' + misfit}"
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
        found = params_of(name, function, WorkflowEvent)
        #: None until all of the module is there: a type may be defined after the workflow.
        self._params = None if found.problem else found

    def __call__(self, event: WorkflowEvent[P_contra], step: Step) -> Awaitable[R_co]:
        """Calls the author's function."""
        return self.function(event, step)

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def params_type(self) -> ValueType:
        """The type that the author declared for the payload.

        It is T where the first parameter is annotated `WorkflowEvent[T]`.
        """
        if self._params is None:
            self._params = params_of(self.name, self.function, WorkflowEvent)
        return self._params

    def check(self) -> None:
        """See that params and output can be written and read, once everything is imported.

        Raises:
            TypeError: A type cannot be.
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


def _concurrency(name: str, given: object) -> Concurrency | None:
    if given is None or isinstance(given, Concurrency):
        return given
    if isinstance(given, int):
        return Concurrency(given)
    raise TypeError(
        f"expected the concurrency of the workflow {name} to be a number or a Concurrency, such as "
        f'Concurrency(3, key="params.region"), found {given!r:.80}'
    )


def _publishes(name: str, given: object) -> frozenset[str] | None:
    if given is None:
        return None
    listed = list(given) if isinstance(given, Collection) and not isinstance(given, str) else [0]
    names = [each for each in listed if isinstance(each, str)]
    if len(names) < len(listed):
        raise TypeError(
            f"expected the topics that steps of the workflow {name} publish to as a list of names, "
            f'such as publishes=["orders-kept"], found {given!r:.80}'
        )
    for fault in filter(None, map(authors_topic_fault, names)):
        raise ValueError(f"of the workflow {name}: {fault}")
    return frozenset(names)


def _follows_code(name: str, given: object) -> bool:
    if given not in get_args(Versioning):
        raise ValueError(
            f"expected the versioning of the workflow {name} to be "
            f"{' or '.join(map(repr, get_args(Versioning)))}, found {given!r:.80}"
        )
    return given == "latest"


def read_params(workflow: Workflow, params: Json) -> Any:  # noqa: ANN401, what the author declared
    """The payload of a run, as the type that its workflow declares, read-only.

    Errors: as `ValueType.read`.
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
    """Declares an async function (event, step) as a workflow.

    Shape:  name is 1 to 64 of a-z, A-Z, 0-9, _ and -, not beginning with -. With `strict`, a name
            that repeats in a scope, and an entry in history that the code no longer visits, raise
            HistoryDivergedError. With `replayed_lines`, what a replay logs again is kept, too,
            marked as `is_replay`. With `concurrency`, no more runs than that are under way at once:
            others wait for a slot, in the order of their arrival. With `publishes`, its steps may
            publish to these topics alone, and a worker says at its start which of them are missing.
            Where code is deployed, a run stays on the deployment that it began on; with
            versioning "latest" it follows the code: that of the worker's app, or else of the active
            deployment.
    Errors: ValueError for the name, for a limit below 1, and for a topic that cannot be.
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
