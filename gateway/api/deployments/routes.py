"""Routes of deployments, under /v1/deployments, and of the active one, under /v1/world."""

import re
from typing import Annotated, Any, Final, TypeAlias

from litestar import Request, Response, Router, delete, get, post
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Example, OpenAPIType, Schema
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter

from headwater.gateway.api.deployments.bodies import Activation, Rollback
from headwater.gateway.api.deployments.deployment_examples import (
    ACTIVE,
    ACTIVE_WITH_SHARE,
    DEPLOYMENT,
    READ,
    REPORT,
)
from headwater.gateway.api.deployments.deployment_service import DeploymentService
from headwater.gateway.api.deployments.removals import Removals
from headwater.gateway.api.json_bodies import BodyKind, BodySize, LimitedBodies
from headwater.gateway.api.key_guards import OPERATORS, OPERATORS_OR_WORKFLOWS, PROGRAMS, KeyGuard
from headwater.gateway.api.openapi import ADMIN_KEY, OptionalBody, problem_responses, raw_body
from headwater.gateway.api.request_parameters import (
    tag_of,
    with_checked_parameters,
)
from headwater.gateway.api.request_scope import AnyConnection, AnyRequest, AsyncGuard
from headwater.gateway.api.workflows.authorization import Policy
from headwater.gateway.api.workflows.openapi import BODY_PROBLEMS, WORLD_KEYS
from headwater.gateway.api.workflows.openapi import KEYS as WORKFLOW_KEYS
from headwater.gateway.api.workflows.parameters import PAGE_DEFAULT, PAGE_MAX, Cursor
from headwater.gateway.api.workflows.request_guard import BodyRequest, RequestGuard
from headwater.processors.api_keys import Scope
from headwater.processors.deployments import NONE
from headwater.schemas.failures import (
    ARTIFACT_INVALID,
    DEPLOYMENT_ACTIVE,
    DEPLOYMENT_CHANGED,
    DEPLOYMENT_IN_USE,
    DEPLOYMENT_NOT_FOUND,
    DEPLOYMENT_NOT_LOADED,
    DEPLOYMENT_REMOVED,
    NO_ACTIVE_DEPLOYMENT,
    NOTHING_TO_ROLL_BACK,
    REPLAY_DIVERGED,
    SHARE_TAKEN,
)
from headwater.schemas.replay_answers import ReplayReport
from headwater.schemas.v1_answers import Deployment, DeploymentActive, DeploymentId, DeploymentPage

BASE: Final = "/v1/deployments"
WORLD: Final = "/v1/world"

_ONE: Final = "dep_[0-9a-f]{20}"
#: An id, with the share of another deployment if there is one.
_TAG: Final = re.compile(rf'"({_ONE}(?:\+{_ONE}@[0-9]{{1,2}})?|{NONE})"')
_JSON: Final = "application/json"
_LOG_PROBLEMS: Final = ("broker_unavailable", "not_yet_readable")

_ZIPS: Final = frozenset(
    {"application/zip", "application/x-zip-compressed", "application/octet-stream"}
)


def _is_zip(content_type: str | None) -> bool:
    return content_type is None or content_type.partition(";")[0].strip().lower() in _ZIPS


#: Content type of artifacts.
_ZIP: Final = BodyKind("application/zip", _is_zip, b"")

_IfMatch: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        description='ETag of a deployment, or "none": change something only if that is the active '
        "deployment.",
    ),
]
_App: TypeAlias = Annotated[
    str,
    QueryParameter(description="App in the artifact: package.module, or package.module:attribute."),
]
_Limit: TypeAlias = Annotated[
    int, QueryParameter(ge=1, le=PAGE_MAX, description="Maximum number of deployments.")
]

_Wait: TypeAlias = Annotated[
    int,
    QueryParameter(
        ge=0,
        le=60,
        description="Seconds to wait until its runs have ended. From the request on, no new run "
        "begins on it; by default, the request is refused if runs are open, and changes nothing.",
    ),
]


_ARTIFACT: Final = raw_body(
    _ZIP.media_type,
    Schema(
        type=OpenAPIType.STRING,
        content_media_type=_ZIP.media_type,
        description="A zip of Python modules, or a wheel: at most 10 MiB, and 100 MiB unpacked.",
    ),
)


def deployment_routers(
    deployment_service: DeploymentService,
    removals: Removals,
    request_guard: RequestGuard,
    limited: LimitedBodies,
    keys: KeyGuard,
) -> list[Router]:
    """Return the routers of deployments and of `/v1/world`."""
    operators: dict[str, Any] = {
        "guards": [with_checked_parameters(keys.requires(OPERATORS))],
        "security": [{ADMIN_KEY: []}],
        "request_max_body_size": None,
    }
    deploys = Router(
        "/",
        route_handlers=[_deploy_route(deployment_service)],
        middleware=[limited.for_kind(_ZIP)],
        **operators,
    )
    changes = Router(
        "/",
        route_handlers=[
            _install_route(deployment_service),
            _activate_route(deployment_service),
            _check_route(deployment_service),
            _rollback_route(deployment_service),
            _remove_route(removals),
        ],
        middleware=[limited],
        request_class=BodyRequest,
        **operators,
    )
    reads = Router(
        "/",
        route_handlers=_read_routes(deployment_service),
        guards=[with_checked_parameters(_operators_or_users(keys, request_guard))],
        security=[{ADMIN_KEY: []}, *WORKFLOW_KEYS],
        opt={"policy": Policy.READ, "scope": Scope.DEPLOYMENTS_READ},
    )
    world = Router(
        WORLD,
        route_handlers=[_active_id_route(deployment_service)],
        guards=[with_checked_parameters(keys.requires(PROGRAMS))],
        security=WORLD_KEYS,
        tags=["deployments"],
    )
    routes = Router(BASE, route_handlers=[deploys, changes, reads], tags=["deployments"])
    return [routes, world]


def _operators_or_users(keys: KeyGuard, request_guard: RequestGuard) -> AsyncGuard:
    """Return a guard that allows operators, and callers whom keys or hooks let read workflows."""

    async def guard(connection: AnyConnection, handler: BaseRouteHandler) -> None:
        is_operator = keys.admits(connection, Scope.DEPLOYMENTS_ACTIVATE)
        if is_operator or connection.headers.get("x-admin-key"):
            await keys.authenticate(connection, handler, OPERATORS_OR_WORKFLOWS)
        else:
            await request_guard.guard(connection, handler)

    return guard


def _deploy_route(deployment_service: DeploymentService) -> HTTPRouteHandler:
    @post(
        "/",
        scope=Scope.DEPLOYMENTS_WRITE,
        audit="deployments.deploy",
        audits_attempt=True,
        body=BodySize.ARTIFACT,
        operation_id="deploy",
        operation_class=_ARTIFACT,
        summary="Deploy an app",
        description="The app is imported once to check it. A deployment has no effect until it is "
        "activated. Deploying the same app and artifact again creates no new deployment.",
        status_code=200,
        responses={
            200: _response_spec(Deployment, DEPLOYMENT, "Deployed before."),
            201: _response_spec(Deployment, DEPLOYMENT, "Deployed."),
            **problem_responses(*BODY_PROBLEMS, *_LOG_PROBLEMS, ARTIFACT_INVALID),
        },
    )
    async def deploy(request: Request[Any, Any, Any], app: _App) -> Response[bytes]:
        return await deployment_service.deploy(request, app, await request.body())

    return deploy


def _install_route(deployment_service: DeploymentService) -> HTTPRouteHandler:
    @post(
        "/{deploymentId:str}/install",
        scope=Scope.DEPLOYMENTS_WRITE,
        audit="deployments.install",
        audits_attempt=True,
        operation_id="installDeployment",
        summary="Try again to install the environment of a deployment",
        description="Workers on which the installation of its requirements failed try again. Does "
        "nothing on others, and for a deployment without requirements.",
        status_code=200,
        responses={
            200: _response_spec(Deployment, DEPLOYMENT, "Requested."),
            **problem_responses(*_LOG_PROBLEMS, DEPLOYMENT_NOT_FOUND),
        },
    )
    async def install(
        request: AnyRequest,
        deploymentId: FromPath[str],  # noqa: N803 (as the path has it)
    ) -> Response[bytes]:
        return await deployment_service.install(request, deploymentId)

    return install


def _activate_route(deployment_service: DeploymentService) -> HTTPRouteHandler:
    @post(
        "/{deploymentId:str}/activate",
        scope=Scope.DEPLOYMENTS_ACTIVATE,
        audit="deployments.activate",
        audits_attempt=True,
        operation_id="activateDeployment",
        operation_class=OptionalBody,
        summary="Activate a deployment",
        description="New runs begin on it as soon as this request has returned, all of them or a "
        "percentage. Existing runs stay on the deployment that they began on.",
        status_code=200,
        responses={
            200: _response_spec(DeploymentActive, ACTIVE, "Active."),
            **problem_responses(
                *BODY_PROBLEMS,
                *_LOG_PROBLEMS,
                DEPLOYMENT_NOT_FOUND,
                DEPLOYMENT_REMOVED,
                DEPLOYMENT_CHANGED,
                DEPLOYMENT_NOT_LOADED,
                DEPLOYMENT_ACTIVE,
                NO_ACTIVE_DEPLOYMENT,
                SHARE_TAKEN,
                REPLAY_DIVERGED,
                "store_unavailable",
            ),
        },
    )
    async def activate(
        request: AnyRequest,
        deploymentId: FromPath[str],  # noqa: N803 (as the path has it)
        data: JSONBody[Activation],
        if_match: _IfMatch = None,
    ) -> Response[bytes]:
        after = _expected_active(if_match)
        return await deployment_service.activate(
            request, deploymentId, after, data.percent, data.forced()
        )

    return activate


def _check_route(deployment_service: DeploymentService) -> HTTPRouteHandler:
    @post(
        "/{deploymentId:str}/check",
        audit="deployments.check",
        scope=Scope.DEPLOYMENTS_ACTIVATE,
        operation_id="checkDeployment",
        summary="Check how runs fit a deployment",
        description="Replays open runs of its workflows, and some ended ones, against its code. No "
        "step is called. Every worker is requested to load the code. An activation does the same, "
        "and is refused if a worker cannot, or if a run that would continue on it does not fit.",
        status_code=200,
        responses={
            200: _response_spec(ReplayReport, REPORT, "The report."),
            **problem_responses(*_LOG_PROBLEMS, "store_unavailable", DEPLOYMENT_NOT_FOUND),
        },
    )
    async def check(
        deploymentId: FromPath[str],  # noqa: N803 (as the path has it)
    ) -> Response[bytes]:
        return await deployment_service.check(deploymentId)

    return check


def _rollback_route(deployment_service: DeploymentService) -> HTTPRouteHandler:
    @post(
        "/rollback",
        scope=Scope.DEPLOYMENTS_ACTIVATE,
        audit="deployments.rollback",
        audits_attempt=True,
        operation_id="rollBackDeployment",
        operation_class=OptionalBody,
        summary="Roll back to an earlier deployment",
        description="Activates the previous deployment, or a named earlier one. While another "
        "deployment has a share of the new runs, a rollback ends the share. A second rollback "
        "goes back further. With If-Match a request is safe to repeat.",
        status_code=200,
        responses={
            200: _response_spec(DeploymentActive, ACTIVE, "Active again."),
            **problem_responses(
                *BODY_PROBLEMS,
                *_LOG_PROBLEMS,
                DEPLOYMENT_NOT_FOUND,
                DEPLOYMENT_REMOVED,
                DEPLOYMENT_CHANGED,
                NOTHING_TO_ROLL_BACK,
                "store_unavailable",
                DEPLOYMENT_NOT_LOADED,
                REPLAY_DIVERGED,
            ),
        },
    )
    async def rollback(
        request: AnyRequest, data: JSONBody[Rollback], if_match: _IfMatch = None
    ) -> Response[bytes]:
        after = _expected_active(if_match)
        return await deployment_service.rollback(request, data.deployment_id, after, data.forced())

    return rollback


def _remove_route(removals: Removals) -> HTTPRouteHandler:
    @delete(
        "/{deploymentId:str}",
        scope=Scope.DEPLOYMENTS_WRITE,
        audit="deployments.remove",
        audits_attempt=True,
        operation_id="removeDeployment",
        summary="Remove a deployment",
        description="Deletes its artifact and its declarations, if it gets no new runs and all of "
        "its runs have ended. Ended runs of it stay readable. The same app and artifact may be "
        "deployed again.",
        status_code=204,
        responses={
            **problem_responses(
                *_LOG_PROBLEMS,
                "outcome_unknown",
                "store_unavailable",
                DEPLOYMENT_NOT_FOUND,
                DEPLOYMENT_REMOVED,
                DEPLOYMENT_ACTIVE,
                DEPLOYMENT_IN_USE,
            ),
        },
    )
    async def remove(
        request: AnyRequest,
        deploymentId: FromPath[str],  # noqa: N803 (as the path has it)
        wait: _Wait = 0,
    ) -> None:
        await removals.remove(request, deploymentId, wait)

    return remove


def _read_routes(deployment_service: DeploymentService) -> list[HTTPRouteHandler]:
    @get(
        "/",
        operation_id="listDeployments",
        summary="List deployments, the newest first",
        responses={
            200: _response_spec(
                DeploymentPage, {"deployments": [READ], "hasNextPage": False}, "A page."
            ),
            **problem_responses("forbidden", "invalid_cursor", *_LOG_PROBLEMS),
        },
    )
    async def list_deployments(
        limit: _Limit = PAGE_DEFAULT, cursor: Cursor = None
    ) -> Response[bytes]:
        return await deployment_service.list_deployments(limit, cursor)

    @get(
        "/active",
        operation_id="getActiveDeployment",
        summary="Get the active deployment",
        description="New runs begin on it, except for the share of another deployment, which "
        "`shares` states. Use its ETag in If-Match.",
        responses={
            200: _response_spec(Deployment, ACTIVE_WITH_SHARE, "Active."),
            **problem_responses("forbidden", NO_ACTIVE_DEPLOYMENT, *_LOG_PROBLEMS),
        },
    )
    async def get_active() -> Response[bytes]:
        return await deployment_service.get_active()

    @get(
        "/{deploymentId:str}",
        operation_id="getDeployment",
        summary="Get a deployment",
        responses={
            200: _response_spec(Deployment, READ, "The deployment."),
            **problem_responses(
                "forbidden", DEPLOYMENT_NOT_FOUND, DEPLOYMENT_REMOVED, *_LOG_PROBLEMS
            ),
        },
    )
    async def get_deployment(
        deploymentId: FromPath[str],  # noqa: N803 (as the path has it)
    ) -> Response[bytes]:
        return await deployment_service.get_deployment(deploymentId)

    return [list_deployments, get_active, get_deployment]


def _active_id_route(deployment_service: DeploymentService) -> HTTPRouteHandler:
    @get(
        "/deployment-id",
        scope=Scope.WORLD_READ,
        operation_id="getActiveDeploymentId",
        summary="Get the id of the active deployment",
        responses={
            200: _response_spec(DeploymentId, {"deploymentId": ACTIVE["id"]}, "Active."),
            **problem_responses(NO_ACTIVE_DEPLOYMENT, *_LOG_PROBLEMS),
        },
    )
    async def get_active_id() -> Response[bytes]:
        return await deployment_service.get_active_id()

    return get_active_id


def _response_spec(kind: type, example: Any, description: str) -> ResponseSpec:  # noqa: ANN401 (JSON)
    return ResponseSpec(kind, False, description, _JSON, [Example(value=example)])


def _expected_active(if_match: str | None) -> str:
    """Return what must be active: the id of a deployment, or a tag with a share; "" for any.

    Raises:
        Problem: The header is not the ETag of a deployment.
    """
    return tag_of(if_match, _TAG, f'"dep_…" or "{NONE}", the quotes included')
