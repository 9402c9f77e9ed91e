"""The routes as OpenAPI describes them: parameters, bodies, answers and problems, with examples.

Bodies and queries are read by `bodies` and `parameters`, which refuse more than a schema can say;
so they are described here by hand, and tests compare both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from litestar.openapi import ResponseSpec
from litestar.openapi.spec import (
    Example,
    OpenAPIMediaType,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    SecurityScheme,
)
from litestar.openapi.spec.enums import OpenAPIType

from headwater.gateway.http.problems import CODES, MEDIA_TYPE, ProblemDocument
from headwater.gateway.workflows import bodies
from headwater.gateway.workflows.entrance import INSTANCE, WORKFLOW
from headwater.gateway.workflows.parameters import LEVELS, ORDERS, PAGE_DEFAULT, PAGE_MAX, STATUSES
from headwater.gateway.workflows.positions import PARAMETER
from headwater.processors.runs.limits import (
    BATCH_MAX,
    EVENT_TYPE_MAX,
    INSTANCE_ID_MAX,
    LOG_CATEGORY_MAX,
    WORKFLOW_NAME_MAX,
)

SECURITY: Final = {
    "workflowKey": SecurityScheme(
        type="http", scheme="bearer", description="HEADWATER_WORKFLOW_KEY, unless hooks say else."
    ),
    "workflowKeyHeader": SecurityScheme(
        type="apiKey", name="x-api-key", security_scheme_in="header", description="The same key."
    ),
    "tickKey": SecurityScheme(type="http", scheme="bearer", description="HEADWATER_TICK_KEY."),
}
#: Either of them.
_KEYS: Final[list[dict[str, list[str]]]] = [{"workflowKey": []}, {"workflowKeyHeader": []}]

_NAME_PATTERN: Final = "^[a-zA-Z0-9_][a-zA-Z0-9_-]*$"
_JSON: Final = "application/json"


class Described(NamedTuple):
    """What a route's decorator takes to describe it."""

    operation_id: str
    summary: str
    description: str
    operation_class: type[Operation]
    responses: dict[int, ResponseSpec]
    security: list[dict[str, list[str]]]
    status_code: int = 200


def described(  # noqa: PLR0913 (what there is to say of a route)
    operation_id: str,
    summary: str,
    description: str,
    *,
    answer: type,
    example: Any,  # noqa: ANN401 (JSON)
    problems: Sequence[str],
    parameters: Sequence[Parameter] = (),
    body: RequestBody | None = None,
    accepted: str = "",
    media_type: str = _JSON,
) -> dict[str, Any]:
    """Describes a route.

    Shape:  problems are the codes of the route's own, beside those that every route has; accepted
            says what a 202 means, where there is one.
    """
    found = {200: ResponseSpec(answer, False, "As asked.", media_type, [Example(value=example)])}
    if accepted:
        found[202] = ResponseSpec(answer, False, accepted, media_type, [Example(value=example)])
    return Described(
        operation_id=operation_id,
        summary=summary,
        description=description,
        operation_class=_operation(parameters, body),
        responses=found | _problems([*_OF_ALL, *(_OF_BODIES if body else ()), *problems]),
        security=[{"tickKey": []}] if operation_id == "tick" else _KEYS,
    )._asdict()


#: Problems that every route has, and those of routes with a body.
_OF_ALL: Final = ("invalid_parameter", "unauthorized", "forbidden", "internal_error")
_OF_BODIES: Final = ("invalid_body", "bad_request", "body_timeout", "body_too_large", "overloaded")
#: Those of routes that read, and of routes that send commands.
OF_READS: Final = ("store_unavailable", "position_not_reached")
OF_WRITES: Final = ("broker_unavailable", "overloaded", "outcome_unknown")


def _problems(codes: Sequence[str]) -> dict[int, ResponseSpec]:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(CODES[code][0], []).append(code)
    return {
        status: ResponseSpec(
            ProblemDocument,
            False,
            "; ".join(f"{code}: {CODES[code][1]}" for code in of),
            MEDIA_TYPE,
        )
        for status, of in sorted(by_status.items())
    }


def _operation(parameters: Sequence[Parameter], body: RequestBody | None) -> type[Operation]:
    """An operation with parameters and a body that no signature tells of."""

    @dataclass
    class Documented(Operation):
        def __post_init__(self) -> None:
            ours = {parameter.name for parameter in parameters}
            given = [
                each for each in self.parameters or () if getattr(each, "name", "") not in ours
            ]
            self.parameters = [*given, *parameters] or None
            self.request_body = body or self.request_body

    return Documented


# --- parameters ---------------------------------------------------------------------------------


def _text(**more: Any) -> Schema:  # noqa: ANN401 (keywords of a schema)
    return Schema(type=OpenAPIType.STRING, **more)


def _integer(least: int, most: int, **more: Any) -> Schema:  # noqa: ANN401 (as above)
    return Schema(type=OpenAPIType.INTEGER, minimum=least, maximum=most, **more)


def _path(name: str, description: str, longest: int, example: str) -> Parameter:
    return Parameter(
        name=name,
        param_in="path",
        required=True,
        description=description,
        schema=_text(min_length=1, max_length=longest, pattern=_NAME_PATTERN),
        example=example,
    )


def _query(name: str, description: str, schema: Schema, example: Any = None) -> Parameter:  # noqa: ANN401
    return Parameter(
        name=name, param_in="query", description=description, schema=schema, example=example
    )


_OF_WORKFLOW: Final = _path(WORKFLOW, "The workflow.", WORKFLOW_NAME_MAX, "order")
OF_WORKFLOW: Final = (_OF_WORKFLOW,)
OF_INSTANCE: Final = (
    _OF_WORKFLOW,
    _path(INSTANCE, "The instance.", INSTANCE_ID_MAX, "order-1"),
)
MIN_POSITION: Final = _query(
    PARAMETER,
    "Waits, up to 10 seconds, until these positions are applied. Every answer states its own in "
    "the header Headwater-Position; several are separated by commas.",
    _text(),
    "workflow-history/0@0",
)
PREFER: Final = Parameter(
    name="Prefer",
    param_in="header",
    description="respond-async: answer 202 as soon as the outcome is known, without waiting until "
    "it can be read.",
    schema=_text(),
    example="respond-async",
)
_PAGE_SIZE: Final = _query(
    "pageSize", "How many, at most.", _integer(1, PAGE_MAX, default=PAGE_DEFAULT), 50
)
LISTING: Final = (
    _query("status", "Only instances that stand so.", _text(enum=list(STATUSES)), "waiting"),
    _PAGE_SIZE,
    _query("cursor", "The cursor of the previous page.", _text(min_length=1)),
    MIN_POSITION,
)
HISTORY: Final = (
    _query("runNumber", "Which run; the current one by default.", _integer(0, 2**31 - 1), 0),
    _PAGE_SIZE,
    _query("order", "From which end.", _text(enum=list(ORDERS), default="asc"), "asc"),
    _query("stepsCursor", "Where steps go on.", _text(min_length=1)),
    _query("eventsCursor", "Where events go on.", _text(min_length=1)),
    _query("includeLogs", "Lines, too.", Schema(type=OpenAPIType.BOOLEAN, default=False), True),
    _query("logsCursor", "Where lines go on.", _text(min_length=1)),
    _query("logLevel", "Only lines of this level.", _text(enum=list(LEVELS)), "info"),
    _query(
        "logCategory",
        "Only lines of this category; `system` is the engine's.",
        _text(min_length=1, max_length=LOG_CATEGORY_MAX),
        "system",
    ),
    MIN_POSITION,
)
TAIL: Final = (
    Parameter(
        name="Last-Event-ID",
        param_in="header",
        description="The id of the last message that was heard; without one, all of the run.",
        schema=_integer(-1, 2**63 - 1),
    ),
    _query("lastEventId", "The same, for those who cannot set headers.", _integer(-1, 2**63 - 1)),
    MIN_POSITION,
)


# --- bodies -------------------------------------------------------------------------------------


def _body(
    required: Sequence[str],
    example: Any,  # noqa: ANN401 (JSON)
    **properties: Schema,
) -> RequestBody:
    return RequestBody(
        content={_JSON: OpenAPIMediaType(schema=_object(required, **properties), example=example)},
        required=bool(required),
    )


def _object(required: Sequence[str], **properties: Schema) -> Schema:
    return Schema(
        type=OpenAPIType.OBJECT,
        properties=dict(properties) or None,
        required=list(required) or None,
        additional_properties=False,
    )


def _nullable(kind: OpenAPIType, **more: Any) -> Schema:  # noqa: ANN401 (keywords of a schema)
    return Schema(type=[kind, OpenAPIType.NULL], **more)


_ID: Final[Mapping[str, Any]] = {
    "min_length": 1,
    "max_length": INSTANCE_ID_MAX,
    "pattern": _NAME_PATTERN,
}
_PARAMS: Final = Schema(description="Any JSON, of at most 1 MiB; null by default.")
_MORE: Final = {"minimum": 1, "maximum": bodies.TICK_MAX}

CREATE_BODY: Final = _body(
    (),
    {"id": "order-1", "params": {"sku": "x"}},
    id=_nullable(OpenAPIType.STRING, **_ID, description="Unique in the workflow; made if absent."),
    params=_PARAMS,
)
BATCH_BODY: Final = _body(
    ("instances",),
    {"instances": [{"id": "order-1", "params": {"sku": "x"}}, {"id": "order-2"}]},
    instances=Schema(
        type=OpenAPIType.ARRAY,
        min_items=1,
        max_items=BATCH_MAX,
        items=_object(("id",), id=_text(**_ID), params=_PARAMS),
        description="Each id once.",
    ),
)
EVENT_BODY: Final = _body(
    ("type",),
    {"type": "approval", "payload": {"by": "amara"}},
    type=_text(min_length=1, max_length=EVENT_TYPE_MAX, pattern=_NAME_PATTERN),
    payload=Schema(description="Any JSON, of at most 1 MiB; null by default."),
    startIfMissing=Schema(
        type=[OpenAPIType.OBJECT, OpenAPIType.NULL],
        properties={"params": _PARAMS},
        additional_properties=False,
        description="Begins the instance, if there is none, with the event in its mailbox.",
    ),
)
RETRY_BODY: Final = _body(
    (),
    {"fromStep": "charge"},
    fromStep=_nullable(
        OpenAPIType.STRING,
        min_length=1,
        max_length=bodies.STEP_KEY_MAX,
        description="Key of the first step that is done again; by default the one that failed.",
    ),
)
TICK_BODY: Final = _body(
    (),
    {"maxInstances": 10, "maxSteps": 100},
    maxInstances=_nullable(OpenAPIType.INTEGER, **_MORE),
    maxSteps=_nullable(OpenAPIType.INTEGER, **_MORE),
)
NO_BODY: Final = _body((), {})
