"""What a test is given: workflows of code, definitions of graphs, the tasks of these, a start."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from headwater.processors.graph.builder import GraphWorkflow
from headwater.processors.graph.graph import Graph, graph_of
from headwater.streams.authoring.tasks import Task
from headwater.streams.code_host.apps import check_concurrency
from headwater.streams.replay.workflow import Workflow


class Given(NamedTuple):
    """What a test was given, by name."""

    workflows: dict[str, Workflow]
    graphs: dict[str, Graph]
    tasks: dict[str, Task]

    @classmethod
    def of(cls, workflows: object, tasks: Iterable[object]) -> "Given":
        """Checks it.

        Errors: TypeError, for what is none of these; ValueError, for a name that comes twice;
                DefinitionInvalid, a ValueError, for a graph that contradicts itself, and another
                for a limit of concurrency whose key is no expression.
        """
        if not isinstance(workflows, Iterable) or isinstance(workflows, str | Mapping):
            raise TypeError(
                f"expected workflows, as in WorkflowTest([order]), found {workflows!r:.80}"
            )
        given = cls({}, {}, {})
        for each in workflows:
            found = _workflow(each)
            name = found.definition.name if isinstance(found, Graph) else found.name
            if name in given.workflows or name in given.graphs:
                raise ValueError(f"expected each name once, found two workflows {name!r}")
            if isinstance(found, Graph):
                given.graphs[name] = found
            else:
                given.workflows[name] = found
        for task in map(_task, tasks):
            if given.tasks.setdefault(task.name, task) is not task:
                raise ValueError(f"expected each name once, found two tasks {task.name!r}")
        return given


def _workflow(given: object) -> Workflow | Graph:
    match given:
        case Workflow():
            given.check()
            check_concurrency(given)
            return given
        case GraphWorkflow():
            return given.graph()
        case Mapping():
            document: Mapping[str, Any] = given
            return graph_of(document)
        case _:
            raise TypeError(
                f"expected a workflow made by @workflow(...), or a graph, found {given!r}"
            )


def _task(given: object) -> Task:
    if not isinstance(given, Task):
        raise TypeError(f"expected a task made by @task(...), found {given!r}")
    return given


def when(start: str | datetime | float) -> int:
    """When its world begins, in Unix milliseconds.

    Errors: ValueError.
    """
    if isinstance(start, str):
        start = datetime.fromisoformat(start)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(f"expected a start with a time zone, found {start.isoformat()}")
        return round(start.timestamp() * 1_000)
    return round(start)
