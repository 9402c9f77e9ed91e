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
OF_BODIES: Final = ("invalid_body", "bad_request", "body_timeout", "body_too_large", "overloaded")
_OF_READS: Final = ("store_unavailable", "position_not_reached")
_OF_WRITES: Final = ("broker_unavailable", "outcome_unknown", "overloaded", "not_yet_readable")

_LAGS: Final = (
    "Done, and not yet to be read: Postgres lags or is away, or you preferred not to wait. Then, "
    "too: accepted, while no worker runs."
)
_JSON: Final = "application/json"


class DescribedForWorld(TypedDict):
    """What a route's decorator takes to describe it."""

    responses: dict[int, ResponseSpec]
    security: list[dict[str, list[str]]]
    status_code: int


class Described(DescribedForWorld):
    """The same for a route with an entrance, for which the policy is."""

    policy: Policy


def reads(
    answer: type,
    example: Any,  # noqa: ANN401 (JSON)
    *problems: str,
    media_type: str = _JSON,
) -> Described:
    """Describes a route that reads, with the codes of its own problems."""
    answers = {200: _answer(answer, example, "As asked.", media_type)}
    return _described(Policy.READ, answers, (*_OF_READS, *problems))


def writes(
    policy: Policy,
    answer: type,
    example: Any,  # noqa: ANN401 (JSON)
    *problems: str,
) -> Described:
    """Describes a route that sends commands, with the codes of its own problems."""
    answers = {
        200: _answer(answer, example, "As asked."),
        202: _answer(answer | CommandsAccepted, example, _LAGS),
    }
    return _described(policy, answers, (*OF_BODIES, *_OF_WRITES, *problems))


def creates(answer: type, example: Any, *problems: str) -> Described:  # noqa: ANN401 (JSON)
    """Describes the route that creates runs, with the codes of its own problems."""
    answers = {
        201: _answer(answer, example, "It is created, by this request or by one before it."),
        202: _answer(answer, example, "It is created, and not yet to be read: Postgres lags."),
    }
    return _described(Policy.CREATE, answers, (*OF_BODIES, *_OF_WRITES, *problems))


def worlds(answer: type, example: Any, *problems: str) -> DescribedForWorld:  # noqa: ANN401 (JSON)
    """Describes a route of programs elsewhere, with the codes of its own problems."""
    return DescribedForWorld(
        responses={200: _answer(answer, example, "As asked.")}
        | problem_responses(*OF_BODIES, *_OF_WRITES, *problems),
        security=WORLD_KEYS,
        status_code=200,
    )


def deploys(answer: type, example: Any, *problems: str) -> Described:  # noqa: ANN401 (JSON)
    """Describes the route that deploys, with the codes of its own problems."""
    answers = {
        200: _answer(answer, example, "It is the newest version already."),
        201: _answer(answer, example, "It is a new version."),
    }
    return _described(
        Policy.MANAGE, answers, (*OF_BODIES, "broker_unavailable", "not_yet_readable", *problems)
    )


def works(answer: type, example: Any, *problems: str) -> Described:  # noqa: ANN401 (JSON)
    """Describes a route of workers outside, with the codes of its own problems."""
    answers = {200: _answer(answer, example, "As asked.")}
    return _described(Policy.WORK, answers, (*OF_BODIES, *_OF_WRITES, *problems))


def drives(answer: type, example: Any, *problems: str) -> Described:  # noqa: ANN401 (JSON)
    """Describes the route that drives a worker."""
    answers = {200: _answer(answer, example, "As asked.")}
    return _described(Policy.TICK, answers, (*OF_BODIES, *problems))


def _described(
    policy: Policy, answers: dict[int, ResponseSpec], problems: Sequence[str]
) -> Described:
    return Described(
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
