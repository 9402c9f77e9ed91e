"""OpenAPI descriptions of the routes: keys, problems and example responses."""

from collections.abc import Sequence
from typing import Any, Final, TypedDict

from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Example, SecurityScheme

from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.workflows.authorization import Policy
from headwater.processors.api_keys import Scope
from headwater.schemas.answers import CommandsAccepted

SECURITY: Final = {
    "workflowKey": SecurityScheme(
        type="http", scheme="bearer", description="HEADWATER_WORKFLOW_KEY, unless hooks decide."
    ),
    "workflowKeyHeader": SecurityScheme(
        type="apiKey", name="x-api-key", security_scheme_in="header", description="The same key."
    ),
    "worldKey": SecurityScheme(type="http", scheme="bearer", description="HEADWATER_WORLD_KEY."),
    "tickKey": SecurityScheme(type="http", scheme="bearer", description="HEADWATER_TICK_KEY."),
}
#: Either key of the workflow service.
KEYS: Final[list[dict[str, list[str]]]] = [{"workflowKey": []}, {"workflowKeyHeader": []}]
WORLD_KEYS: Final[list[dict[str, list[str]]]] = [{"worldKey": []}]
_TICK_KEY: Final[list[dict[str, list[str]]]] = [{"tickKey": []}]

#: Problems of routes with a body, of routes that read, and of routes that write.
BODY_PROBLEMS: Final = (
    "invalid_body",
    "bad_request",
    "body_timeout",
    "body_too_large",
    "overloaded",
)
_READ_PROBLEMS: Final = ("store_unavailable", "position_not_reached")
_WRITE_PROBLEMS: Final = ("broker_unavailable", "outcome_unknown", "overloaded", "not_yet_readable")

_LAGS: Final = (
    "Done, but not readable yet: Postgres lags or is unavailable, or you preferred not to wait. "
    "Also: accepted, while no worker runs."
)
_SUCCESS: Final = "Success."
_JSON: Final = "application/json"


class WorldRouteSpec(TypedDict):
    """Arguments of a route's decorator that describe the route."""

    responses: dict[int, ResponseSpec]
    scope: Scope
    security: list[dict[str, list[str]]]
    status_code: int


class RouteSpec(WorldRouteSpec):
    """The same for a route with a `RequestGuard`, which reads the policy."""

    policy: Policy


#: Scope that a key needs for routes of a policy.
SCOPE_OF_POLICY: Final = {
    Policy.CREATE: Scope.INSTANCES_WRITE,
    Policy.READ: Scope.INSTANCES_READ,
    Policy.MANAGE: Scope.INSTANCES_WRITE,
    Policy.SEND_EVENT: Scope.INSTANCES_WRITE,
    Policy.WORK: Scope.JOBS_WORK,
    Policy.TICK: Scope.TICKS_WRITE,
}


def read_spec(
    answer: type,
    example: Any,  # noqa: ANN401 (JSON)
    *problems: str,
    media_type: str = _JSON,
) -> RouteSpec:
    """Describe a route that reads.

    Args:
        answer: Type of the response.
        example: Example response as JSON.
        problems: Codes of problems that only this route has.
        media_type: Media type of the response.
    """
    responses = {200: _response(answer, example, _SUCCESS, media_type)}
    return _route_spec(Policy.READ, responses, (*_READ_PROBLEMS, *problems))


def write_spec(
    policy: Policy,
    answer: type,
    example: Any,  # noqa: ANN401 (JSON)
    *problems: str,
) -> RouteSpec:
    """Describe a route that sends commands; arguments as for `read_spec`."""
    responses = {
        200: _response(answer, example, _SUCCESS),
        202: _response(answer | CommandsAccepted, example, _LAGS),
    }
    return _route_spec(policy, responses, (*BODY_PROBLEMS, *_WRITE_PROBLEMS, *problems))


def create_spec(answer: type, example: Any, *problems: str) -> RouteSpec:  # noqa: ANN401 (JSON)
    """Describe the route that creates runs; arguments as for `read_spec`."""
    responses = {
        201: _response(answer, example, "Created, by this request or an earlier one."),
        202: _response(answer, example, "Created, but not readable yet: Postgres lags."),
    }
    return _route_spec(Policy.CREATE, responses, (*BODY_PROBLEMS, *_WRITE_PROBLEMS, *problems))


def world_spec(answer: type, example: Any, *problems: str) -> WorldRouteSpec:  # noqa: ANN401 (JSON)
    """Describe a route of `/v1/world`; arguments as for `read_spec`."""
    return WorldRouteSpec(
        responses={200: _response(answer, example, _SUCCESS)}
        | problem_responses(*BODY_PROBLEMS, *_WRITE_PROBLEMS, *problems),
        scope=Scope.WORLD_WRITE,
        security=WORLD_KEYS,
        status_code=200,
    )


def world_read_spec(answer: type, example: Any, *problems: str) -> WorldRouteSpec:  # noqa: ANN401 (JSON)
    """Describe a route of `/v1/world` that reads; arguments as for `read_spec`."""
    return WorldRouteSpec(
        responses={200: _response(answer, example, _SUCCESS)}
        | problem_responses("store_unavailable", *problems),
        scope=Scope.WORLD_READ,
        security=WORLD_KEYS,
        status_code=200,
    )


def deploy_spec(answer: type, example: Any, *problems: str) -> RouteSpec:  # noqa: ANN401 (JSON)
    """Describe the route that deploys graphs; arguments as for `read_spec`."""
    responses = {
        200: _response(answer, example, "This is the newest version already."),
        201: _response(answer, example, "A new version."),
    }
    return _route_spec(
        Policy.MANAGE,
        responses,
        (*BODY_PROBLEMS, "broker_unavailable", "not_yet_readable", *problems),
        Scope.GRAPHS_WRITE,
    )


def job_spec(answer: type, example: Any, *problems: str) -> RouteSpec:  # noqa: ANN401 (JSON)
    """Describe a route of external workers; arguments as for `read_spec`."""
    responses = {200: _response(answer, example, _SUCCESS)}
    return _route_spec(Policy.WORK, responses, (*BODY_PROBLEMS, *_WRITE_PROBLEMS, *problems))


def tick_spec(answer: type, example: Any, *problems: str) -> RouteSpec:  # noqa: ANN401 (JSON)
    """Describe the route that ticks workers; arguments as for `read_spec`."""
    responses = {200: _response(answer, example, _SUCCESS)}
    return _route_spec(Policy.TICK, responses, (*BODY_PROBLEMS, *problems))


def _route_spec(
    policy: Policy,
    responses: dict[int, ResponseSpec],
    problems: Sequence[str],
    scope: Scope | None = None,
) -> RouteSpec:
    return RouteSpec(
        responses=responses | problem_responses("forbidden", *problems),
        scope=scope or SCOPE_OF_POLICY[policy],
        security=_TICK_KEY if policy is Policy.TICK else KEYS,
        status_code=200,
        policy=policy,
    )


def _response(
    answer: Any,  # noqa: ANN401 (a type, or a union of types)
    example: Any,  # noqa: ANN401 (JSON)
    description: str,
    media_type: str = _JSON,
) -> ResponseSpec:
    return ResponseSpec(answer, False, description, media_type, [Example(value=example)])
