"""Operator routes that act for one user: import, reconcile, disconnect."""

from typing import Final

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.request_parameters import UserId, check_user_id
from headwater.gateway.api.request_scope import AnyRequest, own_request_id
from headwater.gateway.api.users.bodies import (
    DAYS_MAX,
    IMPORTS,
    Days,
    Disconnecting,
    Importing,
    Imports,
    Reconciling,
    days_of,
)
from headwater.gateway.api.users.ports import UserPorts
from headwater.gateway.api.users.user_operations import (
    PROBLEMS,
    disconnect_all,
    list_imports,
    start_import,
    start_reconcile,
)
from headwater.gateway.builtin.instances import DISCONNECT, IMPORT, RECONCILE_USER, InstanceNamed
from headwater.processors.api_keys import Scope

_PROBLEMS: Final = ("overloaded", *PROBLEMS)


class ImportOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of past days to import for a user."""

    days: Days = None


def user_operation_routes(ports: UserPorts) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/user for operations, and what came of imports."""

    @post(
        "/user/{user_id:str}/import",
        scope=Scope.PERSONAL_DATA_WRITE,
        audit="users.import",
        audits_attempt=True,
        status_code=202,
        summary="Import past days of a user",
        description="As the user's own POST /v1/import: starts a workflow that requests the data "
        f"of each active connection from Terra, of at most {DAYS_MAX} days. Only one import of a "
        "user runs at a time: a second one is 409, with the first one as `running`.",
        responses=problem_responses(
            "invalid_days", "no_connections", "import_under_way", *_PROBLEMS
        ),
    )
    async def import_days(
        request: AnyRequest, user_id: UserId, data: JSONBody[ImportOrder]
    ) -> Importing:
        check_user_id(user_id)
        days, request_id = days_of(data.days), own_request_id(request.scope)
        await attempt(request, workflow=IMPORT, count=days)
        answer = await start_import(ports, user_id, days, request_id)
        _note_instance(request, answer.instance)
        return answer

    @post(
        "/user/{user_id:str}/reconcile",
        scope=Scope.PERSONAL_DATA_WRITE,
        audit="users.reconcile",
        audits_attempt=True,
        status_code=202,
        summary="Compare a user's connections with Terra",
        description="Starts a workflow that compares the connections with Terra's list, opens and "
        "closes those that differ, and requests the last 7 days of each active connection.",
        responses=problem_responses(*_PROBLEMS),
    )
    async def reconcile(request: AnyRequest, user_id: UserId) -> Reconciling:
        check_user_id(user_id)
        await attempt(request, workflow=RECONCILE_USER)
        answer = await start_reconcile(ports, user_id)
        _note_instance(request, answer.instance)
        return answer

    return [import_days, _imports(ports), reconcile, _disconnect(ports)]


def _disconnect(ports: UserPorts) -> HTTPRouteHandler:
    @post(
        "/user/{user_id:str}/disconnect",
        scope=Scope.PERSONAL_DATA_WRITE,
        audit="users.disconnect",
        audits_attempt=True,
        status_code=202,
        summary="Disconnect all wearables of a user",
        description="Starts a workflow that ends all active connections at Terra, so that no more "
        "data arrives, and then closes them here as a deauth does. What has arrived stays. While "
        "Terra does not respond, the workflow retries, and the connections are active. Requesting "
        "it again returns the same instance, which is retried if it has failed.",
        responses=problem_responses("no_connections", *_PROBLEMS),
    )
    async def disconnect(request: AnyRequest, user_id: UserId) -> Disconnecting:
        check_user_id(user_id)
        await attempt(request, workflow=DISCONNECT)
        answer = await disconnect_all(ports, user_id, own_request_id(request.scope))
        _note_instance(request, answer.instance)
        return answer

    return disconnect


def _imports(ports: UserPorts) -> HTTPRouteHandler:
    @get(
        "/user/{user_id:str}/imports",
        scope=Scope.PERSONAL_DATA_READ,
        audit_read="users.read",
        summary="List the imports of a user",
        description=IMPORTS,
        responses=problem_responses("store_unavailable"),
    )
    async def imports(user_id: UserId) -> Imports:
        check_user_id(user_id)
        return await list_imports(ports, user_id)

    return imports


def _note_instance(request: AnyRequest, instance: InstanceNamed | None) -> None:
    if instance is not None:
        note(request, run_id=instance.id, workflow=instance.workflow)
