"""User routes under /v1. A user can read and change only their own data."""

import asyncio
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from litestar import Router, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from litestar.types import Scope

from headwater.gateway.api.authentication import Callers, user_of
from headwater.gateway.api.json_bodies import LimitedBodies
from headwater.gateway.api.openapi import USER_TOKEN, OptionalBody, problem_responses
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import with_checked_parameters
from headwater.gateway.api.request_scope import AnyRequest, own_request_id
from headwater.gateway.api.users.bodies import (
    DAYS_MAX,
    Importing,
    NewConnection,
    NewImport,
    Session,
)
from headwater.gateway.api.users.connections import Connections, reconciled
from headwater.gateway.api.users.lab_reports import UploadLimits
from headwater.gateway.api.users.lab_uploads import upload_route
from headwater.gateway.api.users.ports import UserPorts, begin
from headwater.gateway.api.workflows.request_guard import BodyRequest
from headwater.gateway.builtin.instances import IMPORT, ImportParams, InstanceNamed
from headwater.gateway.builtin.terra.answers import TerraFailed
from headwater.gateway.builtin.terra.client import DATA_TYPES

_LABEL: Final = "user"
_DIGEST_BYTES: Final = 16


async def next_import(ports: UserPorts, user_id: str) -> str:
    """Return the instance id of a user's next import.

    The imports of a user are numbered. The next one may start when the latest has ended according
    to Postgres, and its id is the next number: of two concurrent starts, the owner of that instance
    accepts one.

    Raises:
        Problem: An import of the user is running.
        StoreUnavailable: Postgres did not answer.
    """
    digest = _digest(user_id)
    page = await ports.instances.instances(IMPORT, limit=1, labels={_LABEL: digest})
    if not page.rows:
        return f"{digest}-1"
    latest = page.rows[0]
    if not latest.details.ended:
        raise _under_way(latest.id)
    return f"{digest}-{int(latest.id.rpartition('-')[2]) + 1}"


async def begin_import(ports: UserPorts, instance_id: str, params: ImportParams) -> None:
    """Start an import.

    Raises:
        Problem: Another request has just started it, or no worker has the workflow.
    """
    labels = {_LABEL: _digest(params.user_id)}
    if not await begin(ports.commands, IMPORT, instance_id, params, labels):
        raise _under_way(instance_id)


def _digest(user_id: str) -> str:
    return hashlib.blake2b(user_id.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _under_way(instance_id: str) -> Problem:
    return Problem(
        "import_under_way",
        f"The import {instance_id} is running; wait until it has ended.",
        running={"workflow": IMPORT, "id": instance_id},
    )


# -- routes

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
            route_handlers=[_connect(ports), _me(ports), _import(ports)],
            middleware=[bodies],
            request_class=BodyRequest,
            **shared,
        ),
        Router("/v1", route_handlers=[upload_route(ports, peer_of, limits)], **shared),
    ]


def _connect(ports: UserPorts) -> HTTPRouteHandler:
    @post(
        "/connect",
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
        "they are those known to Headwater, with `reconciled: false`.",
        responses=problem_responses("store_unavailable", *_TOKEN_PROBLEMS),
    )
    async def me(request: AnyRequest) -> Connections:
        return await reconciled(ports, user_of(request.scope), own_request_id(request.scope))

    return me


def _import(ports: UserPorts) -> HTTPRouteHandler:
    @post(
        "/import",
        status_code=202,
        summary="Import past days",
        description="Starts a workflow that requests the data of each active connection from "
        f"Terra, of at most {DAYS_MAX} days; the data arrives as deliveries. Only one import of a "
        "user runs at a time.",
        responses=problem_responses(
            "invalid_days",
            "no_connections",
            "import_under_way",
            "terra_not_configured",
            "broker_unavailable",
            "store_unavailable",
            "outcome_unknown",
            "worker_unavailable",
            "not_yet_readable",
            *_BODY_PROBLEMS,
            *_TOKEN_PROBLEMS,
        ),
    )
    async def import_days(request: AnyRequest, data: JSONBody[NewImport]) -> Importing:
        ports.terra.require()
        user_id = user_of(request.scope)
        instance_id = await next_import(ports, user_id)
        current = await reconciled(ports, user_id, own_request_id(request.scope))
        active = tuple(
            connection.terra_user_id for connection in current.connections if connection.active
        )
        if not active:
            raise Problem(
                "no_connections", "There is no active connection; connect a wearable first."
            )
        params = ImportParams(
            user_id=user_id,
            days=min(data.days, DAYS_MAX),
            until=datetime.fromtimestamp(ports.clock() / 1000, UTC).date().isoformat(),
            connections=active,
        )
        await begin_import(ports, instance_id, params)
        return Importing(
            ok=True,
            days=params.days,
            connections=len(active),
            requests=len(active) * len(DATA_TYPES),
            instance=InstanceNamed(IMPORT, instance_id),
        )

    return import_days
