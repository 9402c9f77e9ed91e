"""Schedules as authors declare them: cron expressions that start workflows.

A schedule is checked where it is declared, and is data from there on; `schedule_runner` runs it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headwater.processors.cron import CatchUp, Cron, cron_problem
from headwater.processors.replay.errors import UnserialisableError
from headwater.processors.runs.durations import Duration, milliseconds
from headwater.processors.runs.labels import labels_problem
from headwater.processors.runs.limits import INSTANCE_ID_MAX, WORKFLOW_NAME_MAX, name_problem
from headwater.schemas.history import Artifact
from headwater.streams.authoring.values import encode
from headwater.streams.replay.workflow import Workflow

#: What is added to the params of an instance that a tick starts.
SCHEDULE: Final = "schedule"
SCHEDULED_FOR: Final = "scheduled_for"
#: Where a module keeps what was declared in it, also what it gave no name.
MODULE_LIST: Final = "__headwater_schedules__"

#: So that the id of an instance, name and tick, is not too long.
NAME_MAX: Final = INSTANCE_ID_MAX - len("-20260101T000000Z")
#: Characters of JSON, so that one step can start all the instances that are caught up.
PARAMS_MAX: Final = 8 * 1024


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as data.

    Shape:  again where a worker has said it before: of two workers that say different things, the
            one that started later holds.
    Units:  grace_ms, by how much a tick may be late and is no missed one.
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
        """When it is due."""
        return Cron(self.cron, self.timezone)


class FromDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """What the active deployment says of a schedule.

    Shape:  move counts the activations up to this one: of two, the one with more of them holds;
            declared is None where this deployment has no such schedule, and another had; again
            where a worker has said it before, so that an instance that is new was deleted.
    Units:  since_ms, when it was activated, Unix milliseconds.
    """

    schedule: str
    deployment: Artifact
    move: int
    since_ms: int
    declared: Declared | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of an app; made by `schedule(...)`."""

    declared: Declared
    #: Where it was declared, for messages.
    place: str


def schedule(  # noqa: PLR0913, all that a schedule has
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
    """Declares that a workflow of this app is started whenever a cron expression comes true.

    Shape:  name is 1 to 83 of a-z, A-Z, 0-9, _ and -, not beginning with -. Cron has five fields,
            or six with seconds first, in local time of a zone of the IANA database. Each tick
            starts the instance `<name>-<tick as 20260101T030000Z>` with `params`, a JSON object, to
            which `schedule` and `scheduled_for` (RFC 3339, UTC) are added, and with `labels`. A
            tick that is started later than `grace` was missed: catch_up `all` starts the latest
            100 of those, `latest` the last one unless another is on time, `skip` none.
    Errors: ValueError, which says what was expected and found.
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
    fault = declaration_fault(declared)
    if fault:
        raise ValueError(fault)
    frame = sys._getframe(1)  # noqa: SLF001, whose module it is declared in
    place = f"{frame.f_globals.get('__name__', '?')}:{frame.f_lineno}"
    made = Schedule(declared, place)
    # A call whose result is given no name declares a schedule all the same.
    frame.f_globals.setdefault(MODULE_LIST, []).append(made)
    return made


def _catch_up(name: object, found: str) -> CatchUp:
    try:
        return CatchUp(found)
    except ValueError:
        expected = ", ".join(CatchUp)
        raise ValueError(
            f"expected catch_up of the schedule {name!r} to be one of {expected}, found {found!r}"
        ) from None


def params_at(declared: Declared, tick: str) -> dict[str, Any]:
    """The params of the instance that a tick starts."""
    return {**declared.params, SCHEDULE: declared.schedule, SCHEDULED_FOR: tick}


def declaration_fault(declared: Declared) -> str | None:
    """What is wrong with a schedule, if anything."""
    fault = name_problem("the name of a schedule", declared.schedule, NAME_MAX)
    if fault:
        return fault
    what = f"the schedule {declared.schedule!r}"
    fault = name_problem(f"the workflow of {what}", declared.workflow, WORKFLOW_NAME_MAX)
    fault = fault or cron_problem(declared.at)
    taken = sorted(declared.params.keys() & {SCHEDULE, SCHEDULED_FOR})
    if not fault and taken:
        fault = f"expected params without {SCHEDULE} and {SCHEDULED_FOR}, found {', '.join(taken)}"
    fault = fault or labels_problem(declared.labels) or _params_fault(declared.params)
    return fault and (fault if what in fault else f"{what}: {fault}")


def _params_fault(params: Mapping[str, Any]) -> str | None:
    try:
        text = encode(params, "its params")
    except UnserialisableError as error:
        return str(error)
    if len(text) > PARAMS_MAX:
        return f"expected params of at most {PARAMS_MAX} characters of JSON, found {len(text)}"
    return None
