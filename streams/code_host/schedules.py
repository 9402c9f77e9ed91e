"""Declaration of schedules: cron expressions that start workflows.

A schedule is validated where it is declared, and is data from then on. `builtin_app` runs it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headwater.processors.code.errors import UnserialisableError
from headwater.processors.cron import CatchUp, Cron, cron_problem
from headwater.processors.runs.durations import Duration, milliseconds
from headwater.processors.runs.limits import (
    INSTANCE_ID_MAX,
    WORKFLOW_NAME_MAX,
    labels_problem,
    name_problem,
)
from headwater.schemas.history import Artifact
from headwater.streams.authoring.values import encode
from headwater.streams.replay.workflow import Workflow

#: Keys added to the params of an instance that a tick starts.
SCHEDULE: Final = "schedule"
SCHEDULED_FOR: Final = "scheduled_for"
#: Attribute of a module with its schedules, including those that are not assigned to a name.
MODULE_LIST: Final = "__headwater_schedules__"

#: Keeps the id of an instance, which is the name and the tick, within its limit.
NAME_MAX: Final = INSTANCE_ID_MAX - len("-20260101T000000Z")
#: Characters of JSON, so that one step can start all instances that are caught up.
PARAMS_MAX: Final = 8 * 1024


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as data.

    Attributes:
        grace_ms: How late a tick may start without counting as missed, in milliseconds.
        again: Whether a worker repeats the declaration. If two workers declare different things,
            the one that started later takes precedence.
    """

    schedule: str
    cron: str
    timezone: str
    workflow: str
    params: dict[str, Any] = {}
    labels: dict[str, str] = {}
    catch_up: CatchUp
    grace_ms: int
    again: bool = False

    @property
    def at(self) -> Cron:
        """The times at which it is due."""
        return Cron(self.cron, self.timezone)


class FromDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """Declaration of a schedule by the active deployment.

    Attributes:
        move: Number of activations up to this one. The greater takes precedence.
        since_ms: Time of the activation in Unix milliseconds.
        declared: None if this deployment has no such schedule and an earlier one had.
        again: Whether a worker repeats the declaration; a new instance then replaces a deleted one.
    """

    schedule: str
    deployment: Artifact
    move: int
    since_ms: int
    declared: Declared | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of an app, created by `schedule(...)`."""

    declared: Declared
    #: Module and line of the declaration, for messages.
    location: str


def schedule(  # noqa: PLR0913, the options of a schedule
    name: str,
    *,
    cron: str,
    workflow: str | Workflow,
    params: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    timezone: str = "UTC",
    catch_up: str = "latest",
    grace: Duration = "60 seconds",
) -> Schedule:
    """Declare that a workflow of this app is started at the times of a cron expression.

    A tick starts the instance `<name>-<tick as 20260101T030000Z>`.

    Args:
        name: 1 to 83 of a-z, A-Z, 0-9, _ and -, not beginning with -.
        cron: Five fields, or six with seconds first, in local time of `timezone`.
        workflow: A workflow or its name.
        params: JSON object with the params of the instances. `schedule` and `scheduled_for`
            (RFC 3339, UTC) are added.
        labels: Labels of the instances.
        timezone: Name of a zone in the IANA database.
        catch_up: What to start of missed ticks: `all` the latest 100, `latest` the last one unless
            another is on time, `skip` none.
        grace: How late a tick may start without counting as missed.

    Raises:
        ValueError: An argument is invalid.
    """
    declared = Declared(
        schedule=name,
        cron=cron,
        timezone=timezone,
        workflow=str(getattr(workflow, "name", workflow)),
        params=dict(params or {}),
        labels=dict(labels or {}),
        catch_up=_catch_up(name, catch_up),
        grace_ms=milliseconds(grace),
    )
    problem = declaration_problem(declared)
    if problem:
        raise ValueError(problem)
    frame = sys._getframe(1)  # noqa: SLF001, the module of the declaration
    location = f"{frame.f_globals.get('__name__', '?')}:{frame.f_lineno}"
    declared_schedule = Schedule(declared, location)
    # The schedule counts even if the result of the call is not assigned to a name.
    frame.f_globals.setdefault(MODULE_LIST, []).append(declared_schedule)
    return declared_schedule


def _catch_up(name: object, value: str) -> CatchUp:
    try:
        return CatchUp(value)
    except ValueError:
        expected = ", ".join(CatchUp)
        raise ValueError(
            f"expected catch_up of the schedule {name!r} to be one of {expected}, found {value!r}"
        ) from None


def params_at(declared: Declared, tick: str) -> dict[str, Any]:
    """Return the params of the instance that a tick starts."""
    return {**declared.params, SCHEDULE: declared.schedule, SCHEDULED_FOR: tick}


def declaration_problem(declared: Declared) -> str | None:
    """Return what is wrong with a schedule, or None."""
    problem = name_problem("the name of a schedule", declared.schedule, NAME_MAX)
    if problem:
        return problem
    what = f"the schedule {declared.schedule!r}"
    problem = name_problem(f"the workflow of {what}", declared.workflow, WORKFLOW_NAME_MAX)
    problem = problem or cron_problem(declared.at)
    reserved = sorted(declared.params.keys() & {SCHEDULE, SCHEDULED_FOR})
    if not problem and reserved:
        problem = (
            f"expected params without {SCHEDULE} and {SCHEDULED_FOR}, found {', '.join(reserved)}"
        )
    problem = problem or labels_problem(declared.labels) or _params_problem(declared.params)
    return problem and (problem if what in problem else f"{what}: {problem}")


def _params_problem(params: Mapping[str, Any]) -> str | None:
    try:
        text = encode(params, "its params")
    except UnserialisableError as error:
        return str(error)
    if len(text) > PARAMS_MAX:
        return f"expected params of at most {PARAMS_MAX} characters of JSON, found {len(text)}"
    return None
