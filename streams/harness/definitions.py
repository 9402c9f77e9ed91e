"""The definitions that a test is created with: workflows, graphs, tasks, and the start time."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from headwater.processors.graph.builder import GraphWorkflow
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.triggers.rules import read_rules
from headwater.streams.authoring.tasks import Task
from headwater.streams.code_host.apps import check_concurrency
from headwater.streams.code_host.queue_delivery import QueueDelivery
from headwater.streams.replay.workflow import Workflow


class Definitions(NamedTuple):
    """The workflows, graphs and tasks of a test, by name."""

    workflows: dict[str, Workflow]
    graphs: dict[str, Graph]
    tasks: dict[str, Task]

    @classmethod
    def of_test(cls, workflows: object, tasks: Iterable[object], rules: str) -> "Definitions":
        """Collect as `collect` does, and add the built-in workflow that delivers messages.

        Args:
            workflows: Workflows and graphs.
            tasks: Tasks.
            rules: Rules of queues, as TOML.
        """
        definitions = cls.collect(workflows, tasks)
        delivery = QueueDelivery(partial(read_rules, rules))
        definitions.workflows.setdefault(delivery.name, delivery)
        return definitions

    @classmethod
    def collect(cls, workflows: object, tasks: Iterable[object]) -> "Definitions":
        """Validate and collect the arguments of a test.

        Raises:
            TypeError: An object is not a workflow, graph or task.
            ValueError: A name is used twice, a graph is invalid (DefinitionInvalid), or the key of
                a concurrency limit is not a valid expression.
        """
        if not isinstance(workflows, Iterable) or isinstance(workflows, str | Mapping):
            raise TypeError(
                f"expected workflows, as in WorkflowTest([order]), found {workflows!r:.80}"
            )
        definitions = cls({}, {}, {})
        for candidate in workflows:
            definition = _workflow(candidate)
            name = definition.definition.name if isinstance(definition, Graph) else definition.name
            if name in definitions.workflows or name in definitions.graphs:
                raise ValueError(f"expected each name once, found two workflows {name!r}")
            if isinstance(definition, Graph):
                definitions.graphs[name] = definition
            else:
                definitions.workflows[name] = definition
        for task in map(_task, tasks):
            if definitions.tasks.setdefault(task.name, task) is not task:
                raise ValueError(f"expected each name once, found two tasks {task.name!r}")
        return definitions


def _workflow(candidate: object) -> Workflow | Graph:
    match candidate:
        case Workflow():
            candidate.check()
            check_concurrency(candidate)
            return candidate
        case GraphWorkflow():
            return candidate.graph()
        case Mapping():
            document: Mapping[str, Any] = candidate
            return graph_of(document)
        case _:
            raise TypeError(
                f"expected a workflow made by @workflow(...), or a graph, found {candidate!r}"
            )


def _task(candidate: object) -> Task:
    if not isinstance(candidate, Task):
        raise TypeError(f"expected a task made by @task(...), found {candidate!r}")
    return candidate


def start_time_ms(start: str | datetime | float) -> int:
    """Return the start of a test's clock in Unix milliseconds.

    Raises:
        ValueError: The text is not a time, or a time has no time zone.
    """
    if isinstance(start, str):
        start = datetime.fromisoformat(start)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(f"expected a start with a time zone, found {start.isoformat()}")
        return round(start.timestamp() * 1_000)
    return round(start)
