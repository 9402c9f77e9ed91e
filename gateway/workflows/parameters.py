"""What requests ask in their paths, queries and headers, as Litestar's types."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from litestar.di import NamedDependency
from litestar.openapi.spec import Example
from litestar.params import HeaderParameter, PathParameter, QueryParameter

from headwater.gateway.http.moments import moment_of
from headwater.gateway.http.problems import Problem
from headwater.gateway.patterns import KEY_OR_NONE, NAME
from headwater.gateway.workflows.bodies import CURSOR_MAX
from headwater.gateway.workflows.positions import Positions, read_positions
from headwater.processors.runs.labels import labels_fault
from headwater.processors.runs.limits import (
    INSTANCE_ID_MAX,
    LOG_CATEGORY_TOP,
    WORKFLOW_NAME_MAX,
)
from headwater.projections.workflows.queries import Order, Within
from headwater.schemas.statuses import RunStatus

PAGE_DEFAULT: Final = 50
#: Rows of a page; each may carry a value of 1 MiB.
PAGE_MAX: Final = 100
#: Steps of a page that is read from the log. It is read whole for each page, so pages are large;
#: what they hold has a bound in bytes (`projections.workflows.untrimmed`).
TRIMMED_PAGE_MAX: Final = 5_000
#: The largest offset that Kafka can have.
_OFFSET_MAX: Final = 2**63 - 1


def _path(description: str, longest: int, example: str) -> PathParameter:
    """A name in a path; one that breaks the rules is simply not found."""
    rules = {"min_length": 1, "max_length": longest, "pattern": NAME}
    return PathParameter(
        description=description, schema_extra=rules, examples=[Example(value=example)]
    )


def _cursor(name: str, description: str) -> QueryParameter:
    return QueryParameter(name=name, description=description, min_length=1, max_length=CURSOR_MAX)


WorkflowInPath: TypeAlias = Annotated[str, _path("The workflow.", WORKFLOW_NAME_MAX, "order")]
InstanceInPath: TypeAlias = Annotated[str, _path("The instance.", INSTANCE_ID_MAX, "order-1")]

MinPosition: TypeAlias = Annotated[
    list[str] | None,
    QueryParameter(
        name="min_position",
        description="Waits, up to 10 seconds, until these positions are applied. Every answer "
        "states its own in the header Headwater-Position; several are separated by commas.",
    ),
]
Prefer: TypeAlias = Annotated[
    str,
    HeaderParameter(
        name="Prefer",
        description="respond-async: answer 202 as soon as the outcome is known, without waiting "
        "until it can be read.",
    ),
]
IdempotencyKey: TypeAlias = Annotated[
    str,
    HeaderParameter(
        name="Idempotency-Key",
        max_length=255,
        pattern=KEY_OR_NONE,
        description="What is sent again under the same key is done once, for a day at least. "
        "A key with another body is refused.",
    ),
]
Status: TypeAlias = Annotated[
    RunStatus | None,
    QueryParameter(name="status", description="Only instances that stand so."),
]
WithLabels: TypeAlias = Annotated[
    list[str] | None,
    QueryParameter(
        name="label",
        description="name=value: only instances that have this label; several times for several.",
    ),
]
UpdatedSince: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="updatedSince",
        description="RFC 3339: only those to which something happened then or later.",
    ),
]
UpdatedBefore: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="updatedBefore",
        description="RFC 3339: only those to which nothing has happened since then.",
    ),
]
PageSize: TypeAlias = Annotated[
    int, QueryParameter(name="pageSize", ge=1, le=PAGE_MAX, description="How many, at most.")
]
HistoryPageSize: TypeAlias = Annotated[
    int,
    QueryParameter(
        name="pageSize",
        ge=1,
        le=TRIMMED_PAGE_MAX,
        description=f"How many, at most; more than {PAGE_MAX} with `includeTrimmed` alone.",
    ),
]
Cursor: TypeAlias = Annotated[str | None, _cursor("cursor", "The cursor of the previous page.")]
RunNumber: TypeAlias = Annotated[
    int | None,
    QueryParameter(
        name="runNumber", ge=0, le=2**31 - 1, description="Which run; the current one by default."
    ),
]
PageOrder: TypeAlias = Annotated[Order, QueryParameter(name="order", description="From which end.")]
StepsCursor: TypeAlias = Annotated[str | None, _cursor("stepsCursor", "Where steps go on.")]
TokensCursor: TypeAlias = Annotated[str | None, _cursor("tokensCursor", "Where tokens go on.")]
EventsCursor: TypeAlias = Annotated[str | None, _cursor("eventsCursor", "Where events go on.")]
LogsCursor: TypeAlias = Annotated[str | None, _cursor("logsCursor", "Where lines go on.")]
IncludeTrimmed: TypeAlias = Annotated[
    bool,
    QueryParameter(
        name="includeTrimmed",
        description="Also entries of iterations that a loop has forgotten, read from the log.",
    ),
]
IncludeLogs: TypeAlias = Annotated[
    bool, QueryParameter(name="includeLogs", description="Lines, too.")
]
LogLevel: TypeAlias = Annotated[
    Literal["debug", "info", "warn", "error"] | None,
    QueryParameter(name="logLevel", description="Only lines of this level."),
]
LogCategory: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="logCategory",
        min_length=1,
        max_length=LOG_CATEGORY_TOP,
        description="Only lines of this category; `system` is the engine's.",
    ),
]
LastEventHeader: TypeAlias = Annotated[
    int | None,
    HeaderParameter(
        name="Last-Event-ID",
        ge=-1,
        le=_OFFSET_MAX,
        description="The id of the last message that was heard; without one, all of the run.",
    ),
]
LastEventQuery: TypeAlias = Annotated[
    int | None,
    QueryParameter(
        name="lastEventId",
        ge=-1,
        le=_OFFSET_MAX,
        description="The same, for those who cannot set headers.",
    ),
]

#: A name of the path, and what a reader asks to have applied, as `routes` provides them.
PathName: TypeAlias = NamedDependency[str]
Position: TypeAlias = NamedDependency[Positions]

#: Of routes about a workflow or an instance: parameters of their paths. A path that spells an
#: instance out has it among the handler's options.
WORKFLOW: Final = "workflowName"
INSTANCE: Final = "instanceId"
#: Instances of all workflows.
ALL_INSTANCES: Final = "/instances"
OF_WORKFLOW: Final = f"/workflows/{{{WORKFLOW}:str}}/instances"
#: Where many instances are changed at a time.
BULK_PATH: Final = f"/workflows/{{{WORKFLOW}:str}}/bulk"
#: Where batches are created, and where the instance of that id is found.
BATCH_ID: Final = "batch"
BATCH: Final = f"{OF_WORKFLOW}/{BATCH_ID}"


class InstancesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which instances are asked for."""

    status: Status = None
    label: WithLabels = None
    updated_since: UpdatedSince = None
    updated_before: UpdatedBefore = None
    page_size: PageSize = PAGE_DEFAULT
    cursor: Cursor = None


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a history is asked for."""

    run_number: RunNumber = None
    page_size: HistoryPageSize = PAGE_DEFAULT
    order: PageOrder = "asc"
    steps_cursor: StepsCursor = None
    tokens_cursor: TokensCursor = None
    events_cursor: EventsCursor = None
    include_trimmed: IncludeTrimmed = False
    include_logs: IncludeLogs = False
    logs_cursor: LogsCursor = None
    log_level: LogLevel = None
    log_category: LogCategory = None


async def workflow_name(workflowName: WorkflowInPath) -> str:  # noqa: N803 (as the path has it)
    """The workflow in a path."""
    return workflowName


async def instance_id(instanceId: InstanceInPath) -> str:  # noqa: N803 (as the path has it)
    """The instance in a path."""
    return instanceId


class RunReference(msgspec.Struct, frozen=True):
    """Which run is asked about; the current one if no number is given."""

    workflow: str
    instance_id: str
    run_number: int | None


async def run_reference(
    workflow: PathName, instance_id: PathName, run_number: RunNumber = None
) -> RunReference:
    """The run that a path and a query name."""
    return RunReference(workflow, instance_id, run_number)


async def min_position(min_position: MinPosition = None) -> Mapping[int, int]:
    """The positions that an answer must have; empty when any will do.

    Errors: Problem.
    """
    return read_positions(min_position or ())


def read_labels(given: Sequence[str]) -> dict[str, str]:
    """Labels of a query, each name=value.

    Errors: Problem.
    """
    pairs = [each.partition("=") for each in given]
    labels = {name: value for name, _, value in pairs}
    fault = labels_fault(labels)
    for each, (name, sign, value) in zip(given, pairs, strict=True):
        if not sign:
            fault = f"expected name=value, found {each[:120]!r}"
        elif labels[name] != value:
            fault = f"expected one value of {name[:120]!r}, found two"
    if fault:
        raise Problem("invalid_parameter", f"label: {fault}", field="label")
    return labels


def read_within(since: str | None, before: str | None) -> Within:
    """The time within which instances were updated.

    Errors: Problem.
    """
    return Within(moment_of("updatedSince", since), moment_of("updatedBefore", before))


def prefers_async(prefer: str) -> bool:
    """Whether the caller prefers not to wait until what was done can be read (RFC 7240)."""
    preferences = prefer.lower().split(",")
    return any(each.partition(";")[0].strip() == "respond-async" for each in preferences)
