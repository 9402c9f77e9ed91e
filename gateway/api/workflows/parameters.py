"""Path, query and header parameters of requests, as Litestar's types."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from litestar.di import NamedDependency
from litestar.openapi.spec import Example
from litestar.params import HeaderParameter, PathParameter, QueryParameter

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import moment_of
from headwater.gateway.api.workflows.bodies import CURSOR_MAX
from headwater.gateway.api.workflows.positions import Positions, read_positions
from headwater.gateway.settings.patterns import KEY, NAME
from headwater.processors.canonical_json import canonical_hash
from headwater.processors.runs.limits import (
    FAILURE_NAME_MAX,
    INSTANCE_ID_MAX,
    LOG_CATEGORY_TOP,
    WORKFLOW_NAME_MAX,
    labels_problem,
)
from headwater.projections.workflows.queries import FOLLOWED, Order, TimeRange
from headwater.schemas.answers import END, STREAMED
from headwater.schemas.failures import INVALID_INSTANCE_ID
from headwater.schemas.history import Once
from headwater.schemas.statuses import RunStatus

PAGE_DEFAULT: Final = 50
#: Rows of a page; a row may contain a value of 1 MiB.
PAGE_MAX: Final = 100
#: Steps of a page that is read from the log. Every page reads the log of the run from the start, so
#: pages are large. `projections.workflows.trimmed_entries` bounds their size in bytes.
TRIMMED_PAGE_MAX: Final = 5_000
#: Largest offset of Kafka.
_OFFSET_MAX: Final = 2**63 - 1


def _path(description: str, longest: int, example: str) -> PathParameter:
    """Describe a name in a path. An invalid one leads to 404, like any unknown name."""
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
        description="Wait up to 10 seconds until these positions are applied, separated by commas. "
        "Every response states its positions in the header Headwater-Position.",
    ),
]
Prefer: TypeAlias = Annotated[
    str,
    HeaderParameter(
        name="Prefer",
        description="respond-async: return 202 as soon as the outcome is known, without waiting "
        "until it can be read.",
    ),
]
IdempotencyKey: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=KEY,
        description="Repeats of a request with the same key are executed once, for at least a day. "
        "The same key with a different body is refused.",
    ),
]
Status: TypeAlias = Annotated[
    RunStatus | None,
    QueryParameter(name="status", description="Only instances with this status."),
]
ErrorName: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="errorName",
        min_length=1,
        max_length=FAILURE_NAME_MAX,
        description="Only instances with an error of this name, such as `ValueError`.",
    ),
]
WithLabels: TypeAlias = Annotated[
    list[str] | None,
    QueryParameter(
        name="label",
        description="name=value: only instances with this label. Repeat it for several labels.",
    ),
]
UpdatedSince: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="updatedSince",
        description="RFC 3339: only instances that changed at this time or later.",
    ),
]
UpdatedBefore: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="updatedBefore",
        description="RFC 3339: only instances that have not changed since this time.",
    ),
]
PageSize: TypeAlias = Annotated[
    int, QueryParameter(name="pageSize", ge=1, le=PAGE_MAX, description="Maximum number of rows.")
]
HistoryPageSize: TypeAlias = Annotated[
    int,
    QueryParameter(
        name="pageSize",
        ge=1,
        le=TRIMMED_PAGE_MAX,
        description=f"Maximum number of rows; more than {PAGE_MAX} only with `includeTrimmed`.",
    ),
]
Cursor: TypeAlias = Annotated[str | None, _cursor("cursor", "The cursor of the previous page.")]
RunNumber: TypeAlias = Annotated[
    int | None,
    QueryParameter(
        name="runNumber",
        ge=0,
        le=2**31 - 1,
        description="Number of the run; by default the current one.",
    ),
]
PageOrder: TypeAlias = Annotated[
    Order, QueryParameter(name="order", description="Order of the rows.")
]
StepsCursor: TypeAlias = Annotated[
    str | None, _cursor("stepsCursor", "Cursor of the next page of steps.")
]
TokensCursor: TypeAlias = Annotated[
    str | None, _cursor("tokensCursor", "Cursor of the next page of tokens.")
]
EventsCursor: TypeAlias = Annotated[
    str | None, _cursor("eventsCursor", "Cursor of the next page of events.")
]
LogsCursor: TypeAlias = Annotated[
    str | None, _cursor("logsCursor", "Cursor of the next page of log lines.")
]
IncludeTrimmed: TypeAlias = Annotated[
    bool,
    QueryParameter(
        name="includeTrimmed",
        description="Include entries of trimmed loop iterations, read from the log.",
    ),
]
IncludeLogs: TypeAlias = Annotated[
    bool, QueryParameter(name="includeLogs", description="Include log lines.")
]
LogLevel: TypeAlias = Annotated[
    Literal["debug", "info", "warn", "error"] | None,
    QueryParameter(name="logLevel", description="Only log lines of this level."),
]
LogCategory: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="logCategory",
        min_length=1,
        max_length=LOG_CATEGORY_TOP,
        description="Only log lines of this category; `system` is the engine's.",
    ),
]
LastEventHeader: TypeAlias = Annotated[
    int | None,
    HeaderParameter(
        name="Last-Event-ID",
        ge=-1,
        le=_OFFSET_MAX,
        description="Id of the last message that was received; without it, the whole run.",
    ),
]
LastEventQuery: TypeAlias = Annotated[
    int | None,
    QueryParameter(
        name="lastEventId",
        ge=-1,
        le=_OFFSET_MAX,
        description="The same as Last-Event-ID, for clients that cannot set headers.",
    ),
]
MessageNames: TypeAlias = Annotated[
    list[str] | None,
    QueryParameter(
        name="names",
        description="Names of the messages to send, separated by commas: "
        f"{', '.join(name for name in STREAMED if name != END)}. By default "
        f"{', '.join(sorted(FOLLOWED))}. `end` is always sent.",
    ),
]


def message_names(names: Sequence[str] | None) -> frozenset[str]:
    """Return the names of messages that a stream sends, besides `end`.

    Raises:
        Problem: There is no message of a name.
    """
    if names is None:
        return FOLLOWED
    requested = {name for text in names for name in text.split(",")}
    known = [name for name in STREAMED if name != END]
    unknown = requested.difference(known)
    if unknown:
        message = f"names: expected some of {', '.join(known)}, found {min(unknown)[:64]!r}"
        raise Problem("invalid_parameter", message, field="names")
    return frozenset(requested)


#: Page of a listing under `/v1`. As many as comparable APIs return; a row of a listing is small.
V1_PAGE_DEFAULT: Final = 50
_V1_PAGE_MAX: Final = 1_000
V1Limit: TypeAlias = Annotated[
    int,
    QueryParameter(name="limit", ge=1, le=_V1_PAGE_MAX, description="Maximum number of results."),
]
V1Cursor: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="cursor",
        min_length=1,
        max_length=CURSOR_MAX,
        description="The cursor of the previous page.",
    ),
]

#: A name in the path, and the positions that a request requires, as `routes` provides them.
PathName: TypeAlias = NamedDependency[str]
Position: TypeAlias = NamedDependency[Positions]

#: Path parameters of routes about a workflow or an instance. Where an instance id is a literal in
#: the path, it is among the handler's options.
WORKFLOW: Final = "workflowName"
INSTANCE: Final = "instanceId"
#: Path of the instances of all workflows.
ALL_INSTANCES_PATH: Final = "/instances"
INSTANCES_PATH: Final = f"/workflows/{{{WORKFLOW}:str}}/instances"
#: Path of the route that changes many instances.
BULK_PATH: Final = f"/workflows/{{{WORKFLOW}:str}}/bulk"
#: Path of the route that creates many instances; also that of the instance with the id `batch`.
BATCH_ID: Final = "batch"
BATCH_PATH: Final = f"{INSTANCES_PATH}/{BATCH_ID}"


class InstancesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters and page of a listing of instances."""

    status: Status = None
    error_name: ErrorName = None
    label: WithLabels = None
    updated_since: UpdatedSince = None
    updated_before: UpdatedBefore = None
    page_size: PageSize = PAGE_DEFAULT
    cursor: Cursor = None


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters and pages of a history."""

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
    """Return the workflow name in a path."""
    return workflowName


async def instance_id(
    workflow: PathName,
    instanceId: InstanceInPath,  # noqa: N803 (as the path has it)
) -> str:
    """Return the instance id in a path.

    Litestar makes tasks of dependencies that could be resolved at once, so it waits for the name.
    """
    return instanceId


class RunReference(msgspec.Struct, frozen=True):
    """A run of an instance; the current one if the number is None."""

    workflow: str
    instance_id: str
    run_number: int | None


async def run_reference(
    workflow: PathName, instance_id: PathName, run_number: RunNumber = None
) -> RunReference:
    """Return the run that a path and a query name."""
    return RunReference(workflow, instance_id, run_number)


async def min_position(min_position: MinPosition = None) -> Mapping[int, int]:
    """Return the positions that a request requires; empty if it requires none.

    Raises:
        Problem: A position is invalid.
    """
    return read_positions(min_position or ())


def read_labels(texts: Sequence[str]) -> dict[str, str]:
    """Parse the labels of a query, in the form name=value.

    Raises:
        Problem: A label is invalid, or a name has two values.
    """
    pairs = [text.partition("=") for text in texts]
    labels = {name: value for name, _, value in pairs}
    problem = labels_problem(labels)
    for text, (name, sign, value) in zip(texts, pairs, strict=True):
        if not sign:
            problem = f"expected name=value, found {text[:120]!r}"
        elif labels[name] != value:
            problem = f"expected one value of {name[:120]!r}, found two"
    if problem:
        raise Problem("invalid_parameter", f"label: {problem}", field="label")
    return labels


def read_within(since: str | None, before: str | None) -> TimeRange:
    """Parse the time range of the last update of instances.

    Raises:
        Problem: A time is invalid.
    """
    return TimeRange(moment_of("updatedSince", since), moment_of("updatedBefore", before))


def prefers_async(prefer: str) -> bool:
    """Whether the caller prefers not to wait until the outcome can be read (RFC 7240)."""
    preferences = prefer.lower().split(",")
    return any(
        preference.partition(";")[0].strip() == "respond-async" for preference in preferences
    )


# -- Idempotency-Key

#: Sizes of the digest of a request, and of the digest from which an id is derived.
_DIGEST_BYTES: Final = 8
_ID_BYTES: Final = 16
_DERIVED_ID: Final = re.compile(rf"key-[0-9a-f]{{{2 * _ID_BYTES}}}")


def idempotency_of(key: str, *request: msgspec.Raw | str | Mapping[str, str]) -> Once | None:
    """Return what deduplicates a command; None without a key.

    Args:
        key: The idempotency key, scoped to its caller.
        request: Parts of the request, which are compared by their canonical JSON.
    """
    if not key:
        return None
    return Once(key, canonical_hash([_plain(part) for part in request])[: 2 * _DIGEST_BYTES])


def instance_id_of(key: str) -> str:
    """Derive the id of an instance from a key, when the request has no id.

    All creations under one key of one caller get the same id, so that one owner deduplicates them.

    Args:
        key: The key, scoped to its caller by `scoped_key`.
    """
    return f"key-{hashlib.blake2b(key.encode(), digest_size=_ID_BYTES).hexdigest()}"


def refuse_derived_id(instance_id: str | None, field: str) -> None:
    """Refuse a caller's own id that has the form of ids derived from idempotency keys.

    Otherwise a caller that guesses another caller's key could occupy the id derived from it.

    Raises:
        Problem: The id has that form.
    """
    if instance_id is not None and _DERIVED_ID.fullmatch(instance_id):
        raise Problem(
            INVALID_INSTANCE_ID,
            f"expected an id of your own, found {instance_id}: ids of this form are derived from "
            "idempotency keys; leave the id out and send the key",
            field=field,
        )


def _plain(part: object) -> Any:  # noqa: ANN401 (any JSON)
    return json.loads(bytes(part)) if isinstance(part, msgspec.Raw) else part
