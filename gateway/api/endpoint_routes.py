"""Routes of endpoints and of the deliveries to them, under /v1/endpoints."""

from http import HTTPStatus
from typing import Annotated, Final

from litestar import Response, Router, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter

from headwater.gateway.api.endpoint_deliveries import (
    DeliveryPage,
    DeliveryShown,
    DeliveryStarted,
    DeliveryState,
    EndpointDeliveries,
    EndpointReplay,
    ReplaySince,
)
from headwater.gateway.api.endpoints import (
    Disabling,
    EndpointDeletion,
    EndpointList,
    EndpointListed,
    EndpointService,
    EndpointShown,
    NewEndpoint,
    SecretRotation,
)
from headwater.gateway.api.json_bodies import LimitedBodies, OperatorRequest
from headwater.gateway.api.key_guards import OPERATORS, KeyGuard
from headwater.gateway.api.openapi import ADMIN_KEY, OptionalBody, problem_responses
from headwater.gateway.api.request_parameters import (
    LIMIT_DEFAULT,
    Cursor,
    Limit,
    with_checked_parameters,
)
from headwater.gateway.api.request_scope import AnyRequest
from headwater.processors.api_keys import Scope

_LOG_PROBLEMS: Final = ("broker_unavailable", "not_yet_readable")
_ONE: Final = ("not_found", *_LOG_PROBLEMS)
_DELIVERY: Final = ("not_found", "store_unavailable", *_LOG_PROBLEMS)
#: The secret is shown once, so no cache may store it.
_NOT_STORED: Final = {"cache-control": "no-store"}
#: Litestar gives a parameter that is named `state` another meaning.
_State = Annotated[
    DeliveryState | None,
    QueryParameter(name="state", description="Only deliveries of a state."),
]


def endpoint_router(
    service: EndpointService, deliveries: EndpointDeliveries, keys: KeyGuard, limited: LimitedBodies
) -> Router:
    """Return the router of /v1/endpoints."""
    return Router(
        "/v1/endpoints",
        route_handlers=[
            _create_route(service),
            *_read_routes(service),
            _rotate_route(service),
            *_state_routes(service),
            *_delivery_routes(deliveries),
            *_replay_routes(deliveries),
        ],
        guards=[with_checked_parameters(keys.requires(OPERATORS))],
        middleware=[limited],
        request_class=OperatorRequest,
        request_max_body_size=None,
        security=[{ADMIN_KEY: []}],
        tags=["endpoints"],
    )


def _create_route(service: EndpointService) -> HTTPRouteHandler:
    @post(
        "/",
        scope=Scope.ENDPOINTS_WRITE,
        audit="endpoints.create",
        audits_attempt=True,
        operation_id="createEndpoint",
        summary="Create an endpoint of notifications",
        description="The response has its signing secret, which is not shown again. The caller "
        "needs the scopes to read what the endpoint receives.",
        status_code=201,
        responses={
            201: ResponseSpec(EndpointShown, False, "Created."),
            **problem_responses("insufficient_scope", "too_many_endpoints", *_ONE),
        },
    )
    async def create_endpoint(
        request: AnyRequest, data: JSONBody[NewEndpoint]
    ) -> Response[EndpointShown]:
        return _once(await service.create(request, data), HTTPStatus.CREATED)

    return create_endpoint


def _read_routes(service: EndpointService) -> list[HTTPRouteHandler]:
    @get(
        "/",
        scope=Scope.ENDPOINTS_READ,
        operation_id="listEndpoints",
        summary="List endpoints, newest first",
        responses=problem_responses(*_LOG_PROBLEMS),
    )
    async def list_endpoints() -> EndpointList:
        return await service.list_endpoints()

    @get(
        "/{endpointId:str}",
        scope=Scope.ENDPOINTS_READ,
        operation_id="getEndpoint",
        summary="Get an endpoint",
        responses=problem_responses(*_ONE),
    )
    async def get_endpoint(endpointId: FromPath[str]) -> EndpointListed:  # noqa: N803 (as the path has it)
        return await service.get_endpoint(endpointId)

    return [list_endpoints, get_endpoint]


def _rotate_route(service: EndpointService) -> HTTPRouteHandler:
    @post(
        "/{endpointId:str}/rotate",
        scope=Scope.ENDPOINTS_WRITE,
        audit="endpoints.rotate",
        audits_attempt=True,
        operation_id="rotateEndpoint",
        operation_class=OptionalBody,
        summary="Rotate the secret of an endpoint",
        description="The response has the new secret. For a day, or as long as the request states, "
        "notifications are signed with both secrets.",
        status_code=200,
        responses={
            200: ResponseSpec(EndpointShown, False, "Rotated."),
            **problem_responses(*_ONE),
        },
    )
    async def rotate_endpoint(
        request: AnyRequest,
        endpointId: FromPath[str],  # noqa: N803 (as the path has it)
        data: JSONBody[SecretRotation | None] = None,
    ) -> Response[EndpointShown]:
        rotation = data or SecretRotation()
        return _once(await service.rotate(request, endpointId, rotation), HTTPStatus.OK)

    return rotate_endpoint


def _state_routes(service: EndpointService) -> list[HTTPRouteHandler]:
    @post(
        "/{endpointId:str}/disable",
        scope=Scope.ENDPOINTS_WRITE,
        audit="endpoints.disable",
        audits_attempt=True,
        operation_id="disableEndpoint",
        operation_class=OptionalBody,
        summary="Disable an endpoint",
        description="It receives no notifications; those that wait for their next attempt fail.",
        status_code=200,
        responses=problem_responses(*_ONE),
    )
    async def disable_endpoint(
        request: AnyRequest,
        endpointId: FromPath[str],  # noqa: N803 (as the path has it)
        data: JSONBody[Disabling | None] = None,
    ) -> EndpointListed:
        return await service.disable(request, endpointId, data.why if data else "")

    @post(
        "/{endpointId:str}/enable",
        scope=Scope.ENDPOINTS_WRITE,
        audit="endpoints.enable",
        audits_attempt=True,
        operation_id="enableEndpoint",
        summary="Enable an endpoint",
        description="It receives what happens from now on. A replay sends it what it missed.",
        status_code=200,
        responses=problem_responses(*_ONE),
    )
    async def enable_endpoint(request: AnyRequest, endpointId: FromPath[str]) -> EndpointListed:  # noqa: N803 (as the path has it)
        return await service.enable(request, endpointId)

    @delete(
        "/{endpointId:str}",
        scope=Scope.ENDPOINTS_WRITE,
        audit="endpoints.delete",
        audits_attempt=True,
        operation_id="deleteEndpoint",
        summary="Delete an endpoint",
        description="Its secret is removed, too. Deliveries that wait for their next attempt fail.",
        status_code=200,
        responses=problem_responses(*_ONE),
    )
    async def delete_endpoint(request: AnyRequest, endpointId: FromPath[str]) -> EndpointDeletion:  # noqa: N803 (as the path has it)
        return await service.delete(request, endpointId)

    return [disable_endpoint, enable_endpoint, delete_endpoint]


def _delivery_routes(deliveries: EndpointDeliveries) -> list[HTTPRouteHandler]:
    @get(
        "/{endpointId:str}/deliveries",
        scope=Scope.ENDPOINTS_READ,
        operation_id="listEndpointDeliveries",
        summary="List the deliveries to an endpoint, newest first",
        responses=problem_responses("invalid_cursor", *_DELIVERY),
    )
    async def list_deliveries(
        endpointId: FromPath[str],  # noqa: N803 (as the path has it)
        delivery_state: _State = None,
        limit: Limit = LIMIT_DEFAULT,
        cursor: Cursor = None,
    ) -> DeliveryPage:
        return await deliveries.list_deliveries(
            endpointId, state=delivery_state, limit=limit, cursor=cursor
        )

    @get(
        "/{endpointId:str}/deliveries/{deliveryId:str}",
        scope=Scope.ENDPOINTS_READ,
        operation_id="getEndpointDelivery",
        summary="Get a delivery to an endpoint, with its attempts",
        responses=problem_responses(*_DELIVERY),
    )
    async def get_delivery(
        endpointId: FromPath[str],  # noqa: N803 (as the path has it)
        deliveryId: FromPath[str],  # noqa: N803 (as the path has it)
    ) -> DeliveryShown:
        return await deliveries.get_delivery(endpointId, deliveryId)

    @post(
        "/{endpointId:str}/test",
        scope=Scope.ENDPOINTS_WRITE,
        audit="endpoints.test",
        audits_attempt=True,
        operation_id="testEndpoint",
        summary="Send a notification of the type test",
        description="There is one attempt, also if the endpoint is disabled.",
        status_code=202,
        responses=problem_responses("overloaded", *_ONE),
    )
    async def test_endpoint(request: AnyRequest, endpointId: FromPath[str]) -> DeliveryStarted:  # noqa: N803 (as the path has it)
        return await deliveries.test(request, endpointId)

    return [list_deliveries, get_delivery, test_endpoint]


def _replay_routes(deliveries: EndpointDeliveries) -> list[HTTPRouteHandler]:
    @post(
        "/{endpointId:str}/deliveries/{deliveryId:str}/replay",
        scope=Scope.ENDPOINTS_WRITE,
        audit="endpoints.replay",
        audits_attempt=True,
        operation_id="replayEndpointDelivery",
        summary="Send a notification again",
        description="With the same id, and with all attempts.",
        status_code=202,
        responses=problem_responses("COMMAND_REFUSED", "overloaded", *_DELIVERY),
    )
    async def replay_delivery(
        request: AnyRequest,
        endpointId: FromPath[str],  # noqa: N803 (as the path has it)
        deliveryId: FromPath[str],  # noqa: N803 (as the path has it)
    ) -> DeliveryStarted:
        return await deliveries.replay(request, endpointId, deliveryId)

    @post(
        "/{endpointId:str}/replays",
        scope=Scope.ENDPOINTS_WRITE,
        audit="endpoints.replay",
        audits_attempt=True,
        operation_id="replayEndpoint",
        summary="Send an endpoint what it missed",
        description="Reads the logs from a time on, and sends the notifications that the endpoint "
        "has not accepted. A replay is a workflow instance, which continues after its last page "
        "when a worker is killed.",
        status_code=202,
        responses=problem_responses("endpoint_disabled", "overloaded", *_DELIVERY),
    )
    async def replay_endpoint(
        request: AnyRequest,
        endpointId: FromPath[str],  # noqa: N803 (as the path has it)
        data: JSONBody[ReplaySince],
    ) -> EndpointReplay:
        return await deliveries.replay_since(request, endpointId, data)

    @get(
        "/{endpointId:str}/replays/{replayId:str}",
        scope=Scope.ENDPOINTS_READ,
        operation_id="getEndpointReplay",
        summary="Get the state of a replay to an endpoint",
        responses=problem_responses(*_DELIVERY),
    )
    async def get_replay(
        endpointId: FromPath[str],  # noqa: N803 (as the path has it)
        replayId: FromPath[str],  # noqa: N803 (as the path has it)
    ) -> EndpointReplay:
        return await deliveries.get_replay(endpointId, replayId)

    return [replay_delivery, replay_endpoint, get_replay]


def _once(shown: EndpointShown, status: HTTPStatus) -> Response[EndpointShown]:
    return Response(shown, status_code=status, headers=_NOT_STORED)
