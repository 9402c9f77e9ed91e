"""Load an app: the workflows, tasks and schedules that an author's module declares.

`package.module` names every workflow, task and schedule in the module's namespace, including
schedules that are declared without being assigned to a name. `package.module:attribute` names only
that workflow, list, tuple, dict or submodule.
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

from headwater.processors.code.decide import KIND
from headwater.processors.graph.builder import GraphWorkflow
from headwater.processors.graph.state import KIND as GRAPH
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

#: A declaration of an app.
_Part: TypeAlias = Workflow | GraphWorkflow | Task | Schedule
#: A declaration that instances are created from.
_Runs: TypeAlias = Workflow | GraphWorkflow

_SPEC: Final = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::([^\W\d]\w*))?")


class AppNotLoaded(HeadwaterError):
    """An author's app could not be loaded. The message has the reason and the traceback."""

    disposition = Disposition.HALT
    code = "app_not_loaded"


class Declarations(msgspec.Struct, frozen=True):
    """The declarations of an app. If there was an error, it has no others."""

    #: Names of all workflows, including graphs.
    workflows: tuple[str, ...] = ()
    schedules: tuple[Declared, ...] = ()
    error: str = ""
    #: Graph definitions as JSON text, by name.
    graphs: dict[str, str] = {}
    #: Names of tasks.
    tasks: tuple[str, ...] = ()
    #: JSON Schemas of the params of workflows that declare a type for them, by name.
    params: dict[str, str] = {}
    #: Concurrency limits, by workflow name.
    concurrency: dict[str, Concurrency] = {}
    #: Topics that steps publish to, by the name of the workflow that declares them.
    publishes: dict[str, tuple[str, ...]] = {}
    #: Names of workflows with runs that follow the code (`versioning="latest"`).
    latest: tuple[str, ...] = ()

    @property
    def topics(self) -> set[str]:
        """Topics that steps of the workflows publish to."""
        return {topic for topics in self.publishes.values() for topic in topics}

    @property
    def kinds(self) -> dict[str, str]:
        """Kinds of runs, by workflow name."""
        return dict.fromkeys(self.workflows, KIND) | dict.fromkeys(self.graphs, GRAPH)


class App(NamedTuple):
    """A loaded app and its declarations."""

    workflows: dict[str, Workflow]
    schedules: tuple[Schedule, ...] = ()
    graphs: Mapping[str, GraphWorkflow] = {}
    tasks: Mapping[str, Task] = {}

    @property
    def declared(self) -> Declarations:
        """The declarations as data."""
        schedules = tuple(schedule.declared for schedule in self.schedules)
        names = tuple(sorted((*self.workflows, *self.graphs)))
        graphs = {name: json.dumps(graph.to_dict()) for name, graph in self.graphs.items()}
        return Declarations(
            names,
            schedules,
            graphs=graphs,
            tasks=tuple(sorted(self.tasks)),
            params=params_schemas(self.workflows.values()),
            concurrency=concurrency_limits(self.workflows.values()),
            publishes={
                n: tuple(sorted(w.publishes)) for n, w in self.workflows.items() if w.publishes
            },
            latest=tuple(sorted(n for n, w in self.workflows.items() if w.follows_code)),
        )


def params_schemas(workflows: Iterable[Workflow]) -> dict[str, str]:
    """Return the JSON Schemas of params, by name, of workflows that declare a type for them."""
    schemas = {workflow.name: workflow.params_type().schema() for workflow in workflows}
    return {name: schema for name, schema in schemas.items() if schema is not None}


def concurrency_limits(workflows: Iterable[Workflow]) -> dict[str, Concurrency]:
    """Return the concurrency limits of workflows that have one, by name."""
    return {
        workflow.name: workflow.concurrency
        for workflow in workflows
        if workflow.concurrency is not None
    }


def merge_declarations(apps: Mapping[str, Declarations]) -> Declarations:
    """Merge the declarations of several apps.

    Raises:
        AppNotLoaded: Two apps declare a workflow or a schedule of the same name.
    """
    names = {spec: declared.workflows for spec, declared in apps.items()}
    _check_unique("workflow", names)
    schedules = {spec: [s.schedule for s in declared.schedules] for spec, declared in apps.items()}
    _check_unique("schedule", schedules)
    return Declarations(
        tuple(sorted(name for app_names in names.values() for name in app_names)),
        tuple(schedule for declared in apps.values() for schedule in declared.schedules),
        graphs={name: text for declared in apps.values() for name, text in declared.graphs.items()},
        concurrency={
            n: limit for declared in apps.values() for n, limit in declared.concurrency.items()
        },
        publishes={
            n: topics for declared in apps.values() for n, topics in declared.publishes.items()
        },
    )


def _check_unique(what: str, names: Mapping[str, Iterable[str]]) -> None:
    owners: dict[str, str] = {}
    for app, app_names in names.items():
        for name in app_names:
            other = owners.setdefault(name, app)
            if other != app:
                raise AppNotLoaded(
                    f"expected each {what} in one app, found the {what} {name!r} in {other} and "
                    f"in {app}; give one of them another name"
                )


def parse_app_spec(spec: str) -> tuple[str, str | None]:
    """Split the name of an app into its module and, optionally, an attribute.

    Raises:
        AppNotLoaded: It is not a valid name.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        hint = "; name the module, not its file" if "/" in spec or spec.endswith(".py") else ""
        raise AppNotLoaded(
            f"expected an app as package.module or package.module:attribute, found {spec!r}{hint}"
        )
    module, attribute = match.groups()
    return module, attribute


def load_app(spec: str, deployed: Path | None = None) -> App:
    """Import an app.

    Args:
        spec: Name of the app.
        deployed: Folder of the app if it was deployed; by default the current directory.

    Raises:
        AppNotLoaded: The app cannot be imported, or its declarations are invalid.
    """
    module_name, attribute = parse_app_spec(spec)
    if deployed is not None:
        _check_not_loaded(deployed)
    module = _import(module_name, deployed or Path.cwd())
    parts = _parts(module, module_name, attribute)
    runs = _by_name(spec, [part for part in parts if isinstance(part, _Runs)])
    for workflow in runs.values():
        _check(workflow)
    schedules = [part for part in parts if isinstance(part, Schedule)]
    tasks: dict[str, Task] = {}
    for task in [part for part in parts if isinstance(part, Task)]:
        if tasks.setdefault(task.name, task) is not task:
            raise AppNotLoaded(f"expected each name once in {spec}, found two tasks {task.name!r}")
    if not runs and not tasks:
        raise AppNotLoaded(
            f'expected a workflow or a task in {spec}, an async function under @workflow("name") '
            'or @task("name"), found none'
        )
    return App(
        {name: run for name, run in runs.items() if isinstance(run, Workflow)},
        _schedules(spec, schedules, runs),
        {name: run for name, run in runs.items() if isinstance(run, GraphWorkflow)},
        tasks,
    )


def _check(workflow: _Runs) -> None:
    try:
        if isinstance(workflow, Workflow):
            workflow.check()
            check_concurrency(workflow)
        else:
            workflow.graph()
    except (TypeError, ValueError) as error:
        raise AppNotLoaded(f"{error} ({_location(workflow)})") from None


def check_concurrency(workflow: Workflow) -> None:
    """Check that the key of a workflow's concurrency limit can be computed.

    Raises:
        ValueError: It cannot.
    """
    problem = concurrency_problem(workflow.concurrency) if workflow.concurrency else None
    if problem is not None:
        raise ValueError(f"of the workflow {workflow.name}: {problem}")


def _check_not_loaded(folder: Path) -> None:
    """Check that this process has not loaded another module of a name in a folder.

    It would replace that of the folder, without a message.

    Raises:
        AppNotLoaded: It has.
    """
    for path in sorted(folder.iterdir()):
        is_module = path.suffix in {".py", ".so"} or (path / "__init__.py").is_file()
        name = path.name.partition(".")[0]
        loaded = sys.modules.get(name) if is_module and name != "__main__" else None
        if loaded is not None:
            version = getattr(loaded, "__version__", "")
            raise AppNotLoaded(
                f"expected no module {path.name} at the top of the artifact: the process that runs "
                f"it uses {name}{version and f' {version}'} of {loaded.__file__ or 'Python'}; for "
                "another version of a package, list it in requirements.txt with its hashes; give a "
                "module of your own another name"
            )


def _import(name: str, folder: Path) -> ModuleType:
    here = str(folder)
    if sys.path[:1] != [here]:
        # PYTHONPATH may contain it too, but after a folder with another module of this name.
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
    # Also SystemExit: a script without `if __name__ == "__main__"` exits when it is imported.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> AppNotLoaded:
    """Return the error for a module that raises during import, with the frames of its own code."""
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
        case list() | tuple() as values:
            return _only(name, attribute, values)
        case dict() as values:
            return _only(name, attribute, values.values())
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
    by_name: dict[str, _Runs] = {}
    for workflow in workflows:
        other = by_name.setdefault(workflow.name, workflow)
        if other is not workflow:
            raise AppNotLoaded(
                f"expected each name once in {spec}, found two workflows {workflow.name!r}: "
                f"{_location(other)} and {_location(workflow)}"
            )
    for name, workflow in by_name.items():
        if name.startswith(BUILTIN_PREFIX):
            raise AppNotLoaded(
                f"expected no workflow whose name begins with {BUILTIN_PREFIX}, which is "
                f"reserved for built-in workflows, found {name} ({_location(workflow)})"
            )
    return by_name


def _schedules(
    spec: str, schedules: list[Schedule], workflows: Mapping[str, object]
) -> tuple[Schedule, ...]:
    by_name: dict[str, Schedule] = {}
    for schedule in schedules:
        name, workflow = schedule.declared.schedule, schedule.declared.workflow
        other = by_name.setdefault(name, schedule)
        if other is not schedule:
            raise AppNotLoaded(
                f"expected each name once in {spec}, found two schedules {name!r}: "
                f"{other.location} and {schedule.location}"
            )
        if workflow not in workflows:
            known = ", ".join(sorted(workflows))
            raise AppNotLoaded(
                f"expected the workflow of the schedule {name!r} ({schedule.location}) to be one "
                f"of {spec}: {known}; found {workflow!r}"
            )
        _check_params(schedule, workflows[workflow])
    return tuple(by_name.values())


def _check_params(schedule: Schedule, workflow: object) -> None:
    schema = workflow.params_type().schema() if isinstance(workflow, Workflow) else None
    declared = schedule.declared
    problem = params_problem(schema, json.dumps(params_at(declared, "2026-01-01T00:00:00Z")))
    if problem:
        raise AppNotLoaded(
            f"expected the params of the schedule {declared.schedule!r} ({schedule.location}), to "
            f"which {SCHEDULE} and {SCHEDULED_FOR} are added, to be what {declared.workflow} "
            f"takes, found {problem}"
        )


def _location(workflow: _Runs) -> str:
    if isinstance(workflow, GraphWorkflow):
        return f"the graph {workflow.name}"
    return f"{workflow.__module__}.{workflow.__name__}"
