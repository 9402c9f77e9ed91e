"""Loading an app: the workflows and schedules that a module of an author's declares.

An app is named `package.module`, which stands for every workflow and schedule in the module's
namespace, and those schedules that it declares without giving them a name; or
`package.module:attribute`, which stands for that workflow, list, tuple, dict or submodule alone.
"""

import importlib
import json
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.graph.builder import GraphWorkflow
from headwater.processors.graph.state import KIND as GRAPH
from headwater.processors.replay.decide import KIND
from headwater.processors.runs.limits import BUILTIN_PREFIX
from headwater.processors.runs.params import params_problem
from headwater.processors.runs.slot_keys import concurrency_problem
from headwater.processors.runs.slots import Concurrency
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.authoring.tasks import Task
from headwater.streams.code_host.schedules import (
    MODULE_LIST,
    SCHEDULE,
    SCHEDULED_FOR,
    Declared,
    Schedule,
    params_at,
)
from headwater.streams.replay.workflow import Workflow

#: What an app consists of.
_Part: TypeAlias = Workflow | GraphWorkflow | Task | Schedule
#: What instances are of.
_Runs: TypeAlias = Workflow | GraphWorkflow

_SPEC: Final = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::([^\W\d]\w*))?")


class AppNotLoaded(HeadwaterError):
    """An author's app could not be loaded; the message says why, with the author's traceback."""

    disposition = Disposition.HALT
    code = "app_not_loaded"


class Declarations(msgspec.Struct, frozen=True):
    """What an app declares; with an error, nothing."""

    #: The names of its workflows, graphs or not.
    workflows: tuple[str, ...] = ()
    schedules: tuple[Declared, ...] = ()
    error: str = ""
    #: The definitions of those that are graphs, JSON text, by their names.
    graphs: dict[str, str] = {}
    #: The names of its tasks.
    tasks: tuple[str, ...] = ()
    #: JSON Schemas of the params of those that declare a type for them, by their names.
    params: dict[str, str] = {}
    #: Limits of concurrency, by the names of workflows that have one.
    concurrency: dict[str, Concurrency] = {}
    #: The topics that steps publish to, by the names of workflows that declare them.
    publishes: dict[str, tuple[str, ...]] = {}
    #: The names of workflows whose runs follow the code (`versioning="latest"`).
    latest: tuple[str, ...] = ()

    @property
    def topics(self) -> set[str]:
        """The topics that steps of its workflows publish to."""
        return {topic for topics in self.publishes.values() for topic in topics}

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of the runs of its workflows, by their names."""
        return dict.fromkeys(self.workflows, KIND) | dict.fromkeys(self.graphs, GRAPH)


class App(NamedTuple):
    """An app that was loaded: what it declares, by name."""

    workflows: dict[str, Workflow]
    schedules: tuple[Schedule, ...] = ()
    graphs: Mapping[str, GraphWorkflow] = {}
    tasks: Mapping[str, Task] = {}

    @property
    def declared(self) -> Declarations:
        """What it declares."""
        schedules = tuple(each.declared for each in self.schedules)
        names = tuple(sorted((*self.workflows, *self.graphs)))
        graphs = {name: json.dumps(each.to_dict()) for name, each in self.graphs.items()}
        return Declarations(
            names,
            schedules,
            graphs=graphs,
            tasks=tuple(sorted(self.tasks)),
            params=schemas_of_params(self.workflows.values()),
            concurrency=limits_of(self.workflows.values()),
            publishes={
                n: tuple(sorted(w.publishes)) for n, w in self.workflows.items() if w.publishes
            },
            latest=tuple(sorted(n for n, w in self.workflows.items() if w.follows_code)),
        )


def schemas_of_params(workflows: Iterable[Workflow]) -> dict[str, str]:
    """The JSON Schemas of the params of workflows that declare a type for them, by name."""
    found = {each.name: each.params_type().schema() for each in workflows}
    return {name: schema for name, schema in found.items() if schema is not None}


def limits_of(workflows: Iterable[Workflow]) -> dict[str, Concurrency]:
    """The limits of concurrency of workflows that have one, by name."""
    return {each.name: each.concurrency for each in workflows if each.concurrency is not None}


def side_by_side(apps: Mapping[str, Declarations]) -> Declarations:
    """What several apps declare together.

    Errors: AppNotLoaded, when two of them declare a workflow or a schedule of the same name.
    """
    names = {spec: each.workflows for spec, each in apps.items()}
    _each_once("workflow", names)
    schedules = {spec: [s.schedule for s in each.schedules] for spec, each in apps.items()}
    _each_once("schedule", schedules)
    return Declarations(
        tuple(sorted(name for found in names.values() for name in found)),
        tuple(schedule for each in apps.values() for schedule in each.schedules),
        graphs={name: text for each in apps.values() for name, text in each.graphs.items()},
        concurrency={n: limit for each in apps.values() for n, limit in each.concurrency.items()},
        publishes={n: topics for each in apps.values() for n, topics in each.publishes.items()},
    )


def _each_once(what: str, names: Mapping[str, Iterable[str]]) -> None:
    owners: dict[str, str] = {}
    for app, found in names.items():
        for name in found:
            other = owners.setdefault(name, app)
            if other != app:
                raise AppNotLoaded(
                    f"expected each {what} in one app, found the {what} {name!r} in {other} and "
                    f"in {app}; give one of them another name"
                )


def read_spec(spec: str) -> tuple[str, str | None]:
    """The module of an app, and perhaps the attribute in it.

    Errors: AppNotLoaded.
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        hint = "; name the module, not its file" if "/" in spec or spec.endswith(".py") else ""
        raise AppNotLoaded(
            f"expected an app as package.module or package.module:attribute, found {spec!r}{hint}"
        )
    module, attribute = found.groups()
    return module, attribute


def load_app(spec: str) -> App:
    """Imports an app.

    Errors: AppNotLoaded.
    """
    module_name, attribute = read_spec(spec)
    module = _import(module_name)
    parts = _parts(module, module_name, attribute)
    runs = _by_name(spec, [each for each in parts if isinstance(each, _Runs)])
    for each in runs.values():
        _check(each)
    schedules = [each for each in parts if isinstance(each, Schedule)]
    tasks: dict[str, Task] = {}
    for task in [each for each in parts if isinstance(each, Task)]:
        if tasks.setdefault(task.name, task) is not task:
            raise AppNotLoaded(f"expected each name once in {spec}, found two tasks {task.name!r}")
    if not runs and not tasks:
        raise AppNotLoaded(
            f'expected a workflow or a task in {spec}, an async function under @workflow("name") '
            'or @task("name"), found none'
        )
    return App(
        {name: each for name, each in runs.items() if isinstance(each, Workflow)},
        _schedules(spec, schedules, runs),
        {name: each for name, each in runs.items() if isinstance(each, GraphWorkflow)},
        tasks,
    )


def _check(workflow: _Runs) -> None:
    try:
        if isinstance(workflow, Workflow):
            workflow.check()
            check_concurrency(workflow)
        else:
            workflow.graph()
    except (TypeError, ValueError) as fault:
        raise AppNotLoaded(f"{fault} ({_place(workflow)})") from None


def check_concurrency(workflow: Workflow) -> None:
    """Sees that the key of a workflow's limit can be computed.

    Errors: ValueError.
    """
    fault = concurrency_problem(workflow.concurrency) if workflow.concurrency else None
    if fault is not None:
        raise ValueError(f"of the workflow {workflow.name}: {fault}")


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        # PYTHONPATH may name it, too, behind another folder with a module of this name.
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            hint = "; name the module, not its file" if name.endswith(".py") else ""
            raise AppNotLoaded(
                f"expected a module {name} in {here} or on PYTHONPATH, found no {missing}{hint}"
            ) from None
        raise _failed(name, error) from error
    # Also SystemExit: a script without `if __name__ == "__main__"` ends whoever imports it.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> AppNotLoaded:
    """The error of a module that raises while it is imported, with the frames of its own code."""
    report = traceback.TracebackException.from_exception(error)
    frames = [
        index
        for index, frame in enumerate(report.stack)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    report.stack = traceback.StackSummary.from_list([report.stack[index] for index in frames])
    cause = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    trace = "".join(report.format()).rstrip()
    return AppNotLoaded(f"expected to import {name}, found that it raises {cause}\n{trace}")


def _parts(module: ModuleType, name: str, attribute: str | None) -> list[_Part]:
    if attribute is None:
        return _declared(module)
    if not hasattr(module, attribute):
        raise AppNotLoaded(f"expected {name} to have {attribute}, found no such name in it")
    match getattr(module, attribute):
        case Workflow() | GraphWorkflow() as workflow:
            return [workflow]
        case ModuleType() as inner:
            return _declared(inner)
        case list() | tuple() as several:
            return _only(name, attribute, several)
        case dict() as several:
            return _only(name, attribute, several.values())
        case other:
            raise AppNotLoaded(
                f"expected {name}:{attribute} to be a workflow, made by @workflow(...), or a list, "
                f"tuple or dict of workflows and schedules, found {other!r}"
            )


def _declared(module: ModuleType) -> list[_Part]:
    inside: dict[str, Any] = vars(module)
    values = [*inside.values(), *inside.get(MODULE_LIST, ())]
    return [value for value in values if isinstance(value, _Part)]


def _only(name: str, attribute: str, values: Iterable[object]) -> list[_Part]:
    parts = []
    for value in values:
        if not isinstance(value, _Part):
            raise AppNotLoaded(
                f"expected only workflows, made by @workflow(...), in {name}:{attribute}, "
                f"found {value!r}; schedules, made by schedule(...), may be there, too"
            )
        parts.append(value)
    return parts


def _by_name(spec: str, workflows: list[_Runs]) -> dict[str, _Runs]:
    found: dict[str, _Runs] = {}
    for each in workflows:
        other = found.setdefault(each.name, each)
        if other is not each:
            raise AppNotLoaded(
                f"expected each name once in {spec}, found two workflows {each.name!r}: "
                f"{_place(other)} and {_place(each)}"
            )
    for name, each in found.items():
        if name.startswith(BUILTIN_PREFIX):
            raise AppNotLoaded(
                f"expected no workflow whose name begins with {BUILTIN_PREFIX}, as those do that "
                f"come with Headwater, found {name} ({_place(each)})"
            )
    return found


def _schedules(
    spec: str, schedules: list[Schedule], workflows: Mapping[str, object]
) -> tuple[Schedule, ...]:
    found: dict[str, Schedule] = {}
    for each in schedules:
        name, workflow = each.declared.schedule, each.declared.workflow
        other = found.setdefault(name, each)
        if other is not each:
            raise AppNotLoaded(
                f"expected each name once in {spec}, found two schedules {name!r}: "
                f"{other.place} and {each.place}"
            )
        if workflow not in workflows:
            known = ", ".join(sorted(workflows))
            raise AppNotLoaded(
                f"expected the workflow of the schedule {name!r} ({each.place}) to be one of "
                f"{spec}: {known}; found {workflow!r}"
            )
        _check_params(each, workflows[workflow])
    return tuple(found.values())


def _check_params(schedule: Schedule, workflow: object) -> None:
    schema = workflow.params_type().schema() if isinstance(workflow, Workflow) else None
    declared = schedule.declared
    fault = params_problem(schema, json.dumps(params_at(declared, "2026-01-01T00:00:00Z")))
    if fault:
        raise AppNotLoaded(
            f"expected the params of the schedule {declared.schedule!r} ({schedule.place}), to "
            f"which {SCHEDULE} and {SCHEDULED_FOR} are added, to be what {declared.workflow} "
            f"takes, found {fault}"
        )


def _place(workflow: _Runs) -> str:
    if isinstance(workflow, GraphWorkflow):
        return f"the graph {workflow.name}"
    return f"{workflow.__module__}.{workflow.__name__}"
