"""What the types of the routes do not say: who may ask, what goes wrong, and examples."""

from collections.abc import Sequence
from typing import Any, Final, TypedDict

from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Example, SecurityScheme

from headwater.gateway.http.openapi import problem_responses
from headwater.gateway.workflows.authorization import Policy
from headwater.schemas.answers import CommandsAccepted

SECURITY: Final = {
    "workflowKey": SecurityScheme(
        type="http", scheme="bearer", description="HEADWATER_WORKFLOW_KEY, unless hooks say else."
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

#: Problems of routes with a body, of those that read and of those that write.
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
    "Done, and not yet to be read: Postgres lags or is away, or you preferred not to wait. Then, "
    "too: accepted, while no worker runs."
)
_JSON: Final = "application/json"


class WorldRouteSpec(TypedDict):
    """What a route's decorator takes to describe it."""

    responses: dict[int, ResponseSpec]
    security: list[dict[str, list[str]]]
    status_code: int


class RouteSpec(WorldRouteSpec):
    """The same for a route with an entrance, for which the policy is."""

    policy: Policy


def read_spec(
    answer: type,
    example: Any,  # noqa: ANN401 (JSON)
    *problems: str,
    media_type: str = _JSON,
) -> RouteSpec:
    """Describes a route that reads, with the codes of its own problems."""
    answers = {200: _answer(answer, example, "As asked.", media_type)}
    return _route_spec(Policy.READ, answers, (*_READ_PROBLEMS, *problems))


def write_spec(
    policy: Policy,
    answer: type,
    example: Any,  # noqa: ANN401 (JSON)
    *problems: str,
) -> RouteSpec:
    """Describes a route that sends commands, with the codes of its own problems."""
    answers = {
        200: _answer(answer, example, "As asked."),
        202: _answer(answer | CommandsAccepted, example, _LAGS),
    }
    return _route_spec(policy, answers, (*BODY_PROBLEMS, *_WRITE_PROBLEMS, *problems))


def create_spec(answer: type, example: Any, *problems: str) -> RouteSpec:  # noqa: ANN401 (JSON)
    """Describes the route that creates runs, with the codes of its own problems."""
    answers = {
        201: _answer(answer, example, "It is created, by this request or by one before it."),
        202: _answer(answer, example, "It is created, and not yet to be read: Postgres lags."),
    }
    return _route_spec(Policy.CREATE, answers, (*BODY_PROBLEMS, *_WRITE_PROBLEMS, *problems))


def world_spec(answer: type, example: Any, *problems: str) -> WorldRouteSpec:  # noqa: ANN401 (JSON)
    """Describes a route of programs elsewhere, with the codes of its own problems."""
    return WorldRouteSpec(
        responses={200: _answer(answer, example, "As asked.")}
        | problem_responses(*BODY_PROBLEMS, *_WRITE_PROBLEMS, *problems),
        security=WORLD_KEYS,
        status_code=200,
    )


def deploy_spec(answer: type, example: Any, *problems: str) -> RouteSpec:  # noqa: ANN401 (JSON)
    """Describes the route that deploys, with the codes of its own problems."""
    answers = {
        200: _answer(answer, example, "It is the newest version already."),
        201: _answer(answer, example, "It is a new version."),
    }
    return _route_spec(
        Policy.MANAGE,
        answers,
        (*BODY_PROBLEMS, "broker_unavailable", "not_yet_readable", *problems),
    )


def job_spec(answer: type, example: Any, *problems: str) -> RouteSpec:  # noqa: ANN401 (JSON)
    """Describes a route of workers outside, with the codes of its own problems."""
    answers = {200: _answer(answer, example, "As asked.")}
    return _route_spec(Policy.WORK, answers, (*BODY_PROBLEMS, *_WRITE_PROBLEMS, *problems))


def tick_spec(answer: type, example: Any, *problems: str) -> RouteSpec:  # noqa: ANN401 (JSON)
    """Describes the route that drives a worker."""
    answers = {200: _answer(answer, example, "As asked.")}
    return _route_spec(Policy.TICK, answers, (*BODY_PROBLEMS, *problems))


def _route_spec(
    policy: Policy, answers: dict[int, ResponseSpec], problems: Sequence[str]
) -> RouteSpec:
    return RouteSpec(
        responses=answers | problem_responses("forbidden", *problems),
        security=_TICK_KEY if policy is Policy.TICK else KEYS,
        status_code=200,
        policy=policy,
    )


def _answer(
    answer: Any,  # noqa: ANN401 (a type, or a union of types)
    example: Any,  # noqa: ANN401 (JSON)
    description: str,
    media_type: str = _JSON,
) -> ResponseSpec:
    return ResponseSpec(answer, False, description, media_type, [Example(value=example)])
