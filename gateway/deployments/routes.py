"""The routes of deployments, under /v1/deployments, and the active one as other programs ask it."""

import re
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Example, OpenAPIType, Schema
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter
from litestar.types import Guard

from headwater.gateway.deployments.deploying import NONE, Deploying
from headwater.gateway.http.checked_parameters import checked_parameters
from headwater.gateway.http.entity_tags import tag_of
from headwater.gateway.http.keys import (
    is_operator,
    operator_key_required,
    operators_only,
    programs_only,
)
from headwater.gateway.http.limited_bodies import BodyKind, BodySize, LimitedBodies
from headwater.gateway.http.openapi import ADMIN_KEY, OptionalBody, problem_responses, raw_body
from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.authorization import Policy
from headwater.gateway.workflows.bodies import Body
from headwater.gateway.workflows.entrance import BodyRequest, Entrance
from headwater.gateway.workflows.openapi import KEYS as WORKFLOW_KEYS
from headwater.gateway.workflows.openapi import OF_BODIES, WORLD_KEYS
from headwater.gateway.workflows.parameters import PAGE_DEFAULT, PAGE_MAX, Cursor
from headwater.schemas.deployment_answers import (
    Deployment,
    DeploymentActive,
    DeploymentId,
    DeploymentPage,
)
from headwater.schemas.failures import (
    ARTIFACT_INVALID,
    DEPLOYMENT_CHANGED,
    DEPLOYMENT_NOT_FOUND,
    NO_ACTIVE_DEPLOYMENT,
    NOTHING_TO_ROLL_BACK,
)

BASE: Final = "/v1/deployments"
WORLD: Final = "/v1/world"

_ID: Final = re.compile(rf'"(dep_[0-9a-f]{{20}}|{NONE})"')
_JSON: Final = "application/json"
_OF_LOG: Final = ("broker_unavailable", "not_yet_readable")

_ZIPS: Final = frozenset(
    {"application/zip", "application/x-zip-compressed", "application/octet-stream"}
)


def _is_zip(content_type: str | None) -> bool:
    return content_type is None or content_type.partition(";")[0].strip().lower() in _ZIPS


#: An artifact.
_ZIP: Final = BodyKind("application/zip", _is_zip, b"")

_IfMatch: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        description='The ETag of the deployment that has to be active until then, or "none"; '
        "else nothing is changed.",
    ),
]
_App: TypeAlias = Annotated[
    str,
    QueryParameter(
        description="The app in the artifact: package.module, or package.module:attribute."
    ),
]
_Limit: TypeAlias = Annotated[
    int, QueryParameter(ge=1, le=PAGE_MAX, description="How many, at most.")
]

_DEPLOYMENT: Final[dict[str, Any]] = {
    "id": "dep_5d41402abc4b2a76b971",
    "app": "orders",
    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "size": 1731,
    "workflows": [{"name": "order"}],
    "schedules": [{"name": "nightly", "workflow": "order", "cron": "0 2 * * *", "timezone": "UTC"}],
    "active": False,
    "deployedAt": "2026-07-01T08:00:00Z",
    "deployedBy": "admin:5baa61e4",
}
_ACTIVE: Final = _DEPLOYMENT | {"active": True, "activatedAt": "2026-07-01T09:00:00Z"}


class Rollback(Body, frozen=True, kw_only=True):
    """Where to go back to."""

    deployment_id: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None,
        msgspec.Meta(description="One that was active before; by default the last one that was."),
    ] = None


_ARTIFACT: Final = raw_body(
    _ZIP.media_type,
    Schema(
        type=OpenAPIType.STRING,
        content_media_type=_ZIP.media_type,
        description="A zip of Python modules, or a wheel: at most 10 MiB, and 100 unpacked.",
    ),
)


def deployment_routers(
    deploying: Deploying, entrance: Entrance, limited: LimitedBodies, admin_key: str, world_key: str
) -> list[Router]:
    """The routes: those that change something, those that read, and that of the world."""
    operators: dict[str, Any] = {
        "guards": [operators_only(admin_key), checked_parameters],
        "security": [{ADMIN_KEY: []}],
        "request_max_body_size": None,
    }
    deploys = Router(
        "/", route_handlers=[_deploy(deploying)], middleware=[limited.for_kind(_ZIP)], **operators
    )
    steers = Router(
        "/",
        route_handlers=[_activate(deploying), _rollback(deploying)],
        middleware=[limited],
        request_class=BodyRequest,
        **operators,
    )
    reads = Router(
        "/",
        route_handlers=_reads(deploying),
        guards=[_operators_or_users(admin_key, entrance), checked_parameters],
        security=[{ADMIN_KEY: []}, *WORKFLOW_KEYS],
        opt={"policy": Policy.READ},
    )
    world = Router(
        WORLD,
        route_handlers=[_active_id(deploying)],
        guards=[programs_only(world_key), checked_parameters],
        security=WORLD_KEYS,
        tags=["deployments"],
    )
    routes = Router(BASE, route_handlers=[deploys, steers, reads], tags=["deployments"])
    return [routes, world]


def _operators_or_users(admin_key: str, entrance: Entrance) -> Guard:
    """A guard that lets in those who deploy, and those who may read of workflows."""

    async def guard(
        connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        if is_operator(connection, admin_key):
            return
        try:
            await entrance.guard(connection, handler)
        except Problem as problem:
            # Whoever has brought an operators' key is told of that one.
            if problem.code == "unauthorized" and connection.headers.get("x-admin-key"):
                raise operator_key_required() from problem
            raise

    return guard


def _deploy(deploying: Deploying) -> HTTPRouteHandler:
    @post(
        "/",
        audit="deployments.deploy",
        body=BodySize.ARTIFACT,
        operation_id="deploy",
        operation_class=_ARTIFACT,
        summary="Deploy an app",
        description="It is imported once, to see that it can be run, and changes nothing until it "
        "is activated. The same app and artifact are one deployment, however often they come.",
        status_code=200,
        responses={
            200: _answers(Deployment, _DEPLOYMENT, "It was deployed before."),
            201: _answers(Deployment, _DEPLOYMENT, "It is deployed."),
            **problem_responses(*OF_BODIES, *_OF_LOG, ARTIFACT_INVALID),
        },
    )
    async def deploy(request: Request[Any, Any, Any], app: _App) -> Response[bytes]:
        return await deploying.deploy(app, await request.body())

    return deploy


def _activate(deploying: Deploying) -> HTTPRouteHandler:
    @post(
        "/{deploymentId:str}/activate",
        audit="deployments.activate",
        operation_id="activateDeployment",
        summary="Activate a deployment",
        description="New runs begin on it as soon as this is answered; those under way stay on the "
        "deployment that they began on.",
        status_code=200,
        responses={
            200: _answers(DeploymentActive, _ACTIVE, "It is active."),
            **problem_responses(*_OF_LOG, DEPLOYMENT_NOT_FOUND, DEPLOYMENT_CHANGED),
        },
    )
    async def activate(
        deploymentId: FromPath[str],  # noqa: N803 (as the path has it)
        if_match: _IfMatch = None,
    ) -> Response[bytes]:
        return await deploying.activate(deploymentId, _replaced(if_match))

    return activate


def _rollback(deploying: Deploying) -> HTTPRouteHandler:
    @post(
        "/rollback",
        audit="deployments.rollback",
        operation_id="rollBackDeployment",
        operation_class=OptionalBody,
        summary="Go back to a deployment that was active before",
        description="To the last one, unless another is named; then to the one before that. With "
        "If-Match it is safe to repeat.",
        status_code=200,
        responses={
            200: _answers(DeploymentActive, _ACTIVE, "It is active again."),
            **problem_responses(
                *OF_BODIES,
                *_OF_LOG,
                DEPLOYMENT_NOT_FOUND,
                DEPLOYMENT_CHANGED,
                NOTHING_TO_ROLL_BACK,
            ),
        },
    )
    async def rollback(data: JSONBody[Rollback], if_match: _IfMatch = None) -> Response[bytes]:
        return await deploying.rollback(data.deployment_id, _replaced(if_match))

    return rollback


def _reads(deploying: Deploying) -> list[HTTPRouteHandler]:
    @get(
        "/",
        operation_id="listDeployments",
        summary="The deployments, the newest first",
        responses={
            200: _answers(
                DeploymentPage, {"deployments": [_DEPLOYMENT], "hasNextPage": False}, "A page."
            ),
            **problem_responses("forbidden", "invalid_cursor", *_OF_LOG),
        },
    )
    async def list_deployments(
        limit: _Limit = PAGE_DEFAULT, cursor: Cursor = None
    ) -> Response[bytes]:
        return await deploying.page(limit, cursor)

    @get(
        "/active",
        operation_id="getActiveDeployment",
        summary="The deployment that new runs begin on",
        description="Its ETag is for If-Match.",
        responses={
            200: _answers(Deployment, _ACTIVE, "It is active."),
            **problem_responses("forbidden", NO_ACTIVE_DEPLOYMENT, *_OF_LOG),
        },
    )
    async def get_active() -> Response[bytes]:
        return await deploying.active()

    @get(
        "/{deploymentId:str}",
        operation_id="getDeployment",
        summary="One deployment",
        responses={
            200: _answers(Deployment, _DEPLOYMENT, "As it was deployed."),
            **problem_responses("forbidden", DEPLOYMENT_NOT_FOUND, *_OF_LOG),
        },
    )
    async def get_deployment(
        deploymentId: FromPath[str],  # noqa: N803 (as the path has it)
    ) -> Response[bytes]:
        return await deploying.one(deploymentId)

    return [list_deployments, get_active, get_deployment]


def _active_id(deploying: Deploying) -> HTTPRouteHandler:
    @get(
        "/deployment-id",
        operation_id="getActiveDeploymentId",
        summary="The id of the active deployment",
        responses={
            200: _answers(DeploymentId, {"deploymentId": _ACTIVE["id"]}, "It is active."),
            **problem_responses(NO_ACTIVE_DEPLOYMENT, *_OF_LOG),
        },
    )
    async def get_active_id() -> Response[bytes]:
        return await deploying.active_id()

    return get_active_id


def _answers(kind: type, example: Any, description: str) -> ResponseSpec:  # noqa: ANN401 (JSON)
    return ResponseSpec(kind, False, description, _JSON, [Example(value=example)])


def _replaced(if_match: str | None) -> str:
    """Return the deployment that is to be replaced; "" for any.

    Raises:
        Problem: The header is not the tag of a deployment.
    """
    return tag_of(if_match, _ID, f'"dep_…" or "{NONE}", the quotes included')
