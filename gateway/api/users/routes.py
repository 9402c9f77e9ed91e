"""User routes under /v1. A user can read and change only their own data."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

from litestar import Router, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter
from litestar.types import Scope

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.json_bodies import LimitedBodies, check_texts
from headwater.gateway.api.key_guards import Callers, user_of
from headwater.gateway.api.openapi import USER_TOKEN, OptionalBody, problem_responses
from headwater.gateway.api.request_parameters import with_checked_parameters
from headwater.gateway.api.request_scope import AnyRequest, own_request_id
from headwater.gateway.api.users.bodies import (
    DAYS_MAX,
    IMPORTS,
    Disconnecting,
    Importing,
    Imports,
    NewConnection,
    NewImport,
    Session,
    days_of,
)
from headwater.gateway.api.users.connections import Connections, reconciled, with_states
from headwater.gateway.api.users.lab_reports import UploadLimits
from headwater.gateway.api.users.lab_uploads import upload_route
from headwater.gateway.api.users.ports import UserPorts
from headwater.gateway.api.users.user_operations import PROBLEMS as OPERATION_PROBLEMS
from headwater.gateway.api.users.user_operations import disconnect_one, list_imports, start_import
from headwater.gateway.api.workflows.request_guard import BodyRequest
from headwater.gateway.builtin.instances import DISCONNECT, IMPORT
from headwater.gateway.builtin.terra.answers import TerraFailed

#: Seconds that a request waits for a session of Terra.
_SESSION_WITHIN_S: Final = 20.0
_BODY_PROBLEMS: Final = (
    "invalid_body",
    "bad_request",
    "body_timeout",
    "body_too_large",
    "overloaded",
)
_TOKEN_PROBLEMS: Final = ("jwks_unavailable",)
_STARTING_PROBLEMS: Final = (*OPERATION_PROBLEMS, *_BODY_PROBLEMS, *_TOKEN_PROBLEMS)
#: Characters of an id of Terra, as in deliveries.
_ID_CHARS: Final = 512

TerraUserId = Annotated[str, PathParameter(description="Terra's id of the connection.")]


def user_routes(
    ports: UserPorts,
    callers: Callers,
    bodies: LimitedBodies,
    peer_of: Callable[[Scope], str],
    limits: UploadLimits,
) -> list[Router]:
    """Return the user routes: those with JSON bodies, and the upload of a form."""
    shared: dict[str, Any] = {
        "guards": [with_checked_parameters(callers.users_only)],
        "security": [{USER_TOKEN: []}],
        "request_max_body_size": None,
        "tags": ["users"],
    }
    return [
        Router(
            "/v1",
            route_handlers=[
                _connect(ports),
                _me(ports),
                _import(ports),
                _imports(ports),
                _disconnect(ports),
            ],
            middleware=[bodies],
            request_class=BodyRequest,
            **shared,
        ),
        Router("/v1", route_handlers=[upload_route(ports, peer_of, limits)], **shared),
    ]


def _connect(ports: UserPorts) -> HTTPRouteHandler:
    @post(
        "/connect",
        audit="users.connect",
        status_code=200,
        operation_class=OptionalBody,
        summary="Connect a wearable",
        description="Starts a session at Terra; redirect the user to its url. Terra gets the "
        "user's id as reference_id, which assigns the resulting connection to the user.",
        responses=problem_responses(
            "terra_failed", "terra_not_configured", *_BODY_PROBLEMS, *_TOKEN_PROBLEMS
        ),
    )
    async def connect(request: AnyRequest, data: JSONBody[NewConnection]) -> Session:
        try:
            async with asyncio.timeout(_SESSION_WITHIN_S):
                session = await ports.terra.widget_session(
                    user_of(request.scope),
                    providers=data.providers,
                    success_url=data.success_url,
                    failure_url=data.failure_url,
                )
        except TimeoutError:
            raise TerraFailed(f"Terra did not respond within {_SESSION_WITHIN_S:g} s") from None
        return Session(
            url=session.url, session_id=session.session_id, expires_in=round(session.expires_in)
        )

    return connect


def _me(ports: UserPorts) -> HTTPRouteHandler:
    @get(
        "/me",
        summary="List your connections",
        description="Your connections, reconciled with Terra's list. While Terra does not respond, "
        "they are those known to Headwater, with `reconciled: false`. `state` is `receiving`, "
        "`silent` without data for some days, or `failing` if Terra has reported an error since "
        "the last data, so that connecting again may help.",
        responses=problem_responses("store_unavailable", *_TOKEN_PROBLEMS),
    )
    async def me(request: AnyRequest) -> Connections:
        user_id, request_id = user_of(request.scope), own_request_id(request.scope)
        return await with_states(ports, await reconciled(ports, user_id, request_id))

    return me


def _import(ports: UserPorts) -> HTTPRouteHandler:
    @post(
        "/import",
        audit="users.import",
        audits_attempt=True,
        status_code=202,
        summary="Import past days",
        description="Starts a workflow that requests the data of each active connection from "
        f"Terra, of at most {DAYS_MAX} days; the data arrives as deliveries. Only one import of a "
        "user runs at a time: a second one is 409, with the first one as `running`.",
        responses=problem_responses(
            "invalid_days", "no_connections", "import_under_way", *_STARTING_PROBLEMS
        ),
    )
    async def import_days(request: AnyRequest, data: JSONBody[NewImport]) -> Importing:
        user_id, request_id = user_of(request.scope), own_request_id(request.scope)
        days = days_of(data.days)
        await attempt(request, workflow=IMPORT, count=days)
        importing = await start_import(ports, user_id, days, request_id)
        note(request, run_id=importing.instance.id)
        return importing

    return import_days


def _imports(ports: UserPorts) -> HTTPRouteHandler:
    @get(
        "/imports",
        summary="List your imports",
        description=IMPORTS,
        responses=problem_responses("store_unavailable", *_TOKEN_PROBLEMS),
    )
    async def imports(request: AnyRequest) -> Imports:
        return await list_imports(ports, user_of(request.scope))

    return imports


def _disconnect(ports: UserPorts) -> HTTPRouteHandler:
    @delete(
        "/connections/{terra_user_id:str}",
        audit="users.disconnect",
        audits_attempt=True,
        status_code=202,
        summary="Disconnect a wearable",
        description="Starts a workflow that ends one of your connections at Terra, so that no "
        "more data arrives, and then closes it here as a deauth does. What has arrived "
        "stays. While Terra does not respond, the workflow retries, and the connection is active. "
        "Requesting it again returns the same instance, which is retried if it has failed; for a "
        "connection that is closed, `connections` is 0 and `instance` null.",
        responses=problem_responses("not_found", *_STARTING_PROBLEMS),
    )
    async def disconnect(request: AnyRequest, terra_user_id: TerraUserId) -> Disconnecting:
        user_id, request_id = user_of(request.scope), own_request_id(request.scope)
        check_texts(_ID_CHARS, terra_user_id=terra_user_id)
        await attempt(request, workflow=DISCONNECT)
        disconnecting = await disconnect_one(ports, user_id, terra_user_id, request_id)
        if disconnecting.instance is not None:
            note(request, run_id=disconnecting.instance.id)
        return disconnecting

    return disconnect
