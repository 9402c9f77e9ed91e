"""Loading an app: the workflows and schedules that a module of an author's declares.

An app is named `package.module`, which stands for every workflow and schedule in the module's
namespace, and those schedules that it declares without giving them a name; or
`package.module:attribute`, which stands for that workflow, list, tuple, dict or submodule alone.
"""

import importlib
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.replay.decide import KIND
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.code_host.schedule_runner import RUNNER, ScheduleRunner
from headwater.streams.code_host.schedules import MODULE_LIST, Declared, Schedule
from headwater.streams.replay.workflow import Workflow

#: What an app consists of.
_Part: TypeAlias = Workflow | Schedule

_SPEC: Final = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::([^\W\d]\w*))?")


class AppNotLoaded(HeadwaterError):
    """An author's app could not be loaded; the message says why, with the author's traceback."""

    disposition = Disposition.HALT
    code = "app_not_loaded"


class Declarations(msgspec.Struct, frozen=True):
    """What an app declares; with an error, nothing."""

    workflows: tuple[str, ...] = ()
    schedules: tuple[Declared, ...] = ()
    error: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The workflows that there is code for: with the one that runs schedules."""
        return frozenset((*self.workflows, RUNNER) if self.schedules else self.workflows)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of the runs of each of them."""
        return dict.fromkeys(self.names, KIND)


def declarations_in(workflows: Mapping[str, Workflow]) -> Declarations:
    """What an app declares that was loaded."""
    schedules = tuple(each.declared for each in schedules_of(workflows))
    return Declarations(tuple(sorted(workflows.keys() - {RUNNER})), schedules)


def load_app(spec: str) -> dict[str, Workflow]:
    """Imports an app and gives its workflows by name.

    Shape:  with a ScheduleRunner among them if the app has schedules.
    Errors: AppNotLoaded.
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        hint = "; name the module, not its file" if "/" in spec or spec.endswith(".py") else ""
        raise AppNotLoaded(
            f"expected an app as package.module or package.module:attribute, found {spec!r}{hint}"
        )
    module_name, attribute = found.groups()
    module = _import(module_name)
    parts = _parts(module, module_name, attribute)
    workflows = _by_name(spec, [each for each in parts if isinstance(each, Workflow)])
    for each in workflows.values():
        try:
            each.check()
        except TypeError as fault:
            raise AppNotLoaded(f"{fault} ({_place(each)})") from None
    schedules = _schedules(spec, [each for each in parts if isinstance(each, Schedule)], workflows)
    if schedules:
        workflows[RUNNER] = ScheduleRunner(schedules)
    return workflows


def schedules_of(workflows: Mapping[str, Workflow]) -> tuple[Schedule, ...]:
    """The schedules of an app that was loaded."""
    runner = workflows.get(RUNNER)
    return runner.schedules if isinstance(runner, ScheduleRunner) else ()


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
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
        case Workflow() as workflow:
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


def _by_name(spec: str, workflows: list[Workflow]) -> dict[str, Workflow]:
    found: dict[str, Workflow] = {}
    for each in workflows:
        other = found.setdefault(each.name, each)
        if other is not each:
            raise AppNotLoaded(
                f"expected each name once in {spec}, found two workflows {each.name!r}: "
                f"{_place(other)} and {_place(each)}"
            )
    if not found:
        raise AppNotLoaded(
            f'expected a workflow in {spec}, an async function under @workflow("name"), found none'
        )
    if RUNNER in found:
        raise AppNotLoaded(
            f"expected no workflow of the name {RUNNER}, which runs schedules, "
            f"found {_place(found[RUNNER])}"
        )
    return found


def _schedules(
    spec: str, schedules: list[Schedule], workflows: Mapping[str, Workflow]
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
    return tuple(found.values())


def _place(workflow: Workflow) -> str:
    return f"{workflow.__module__}.{workflow.__name__}"
