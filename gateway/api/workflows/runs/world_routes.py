"""Routes under `/v1/world`, for external programs whose runs Headwater executes."""

from typing import Final

from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from headwater.gateway.api.auditing import note
from headwater.gateway.api.limited_bodies import BodySize
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.openapi import world_spec
from headwater.gateway.api.workflows.query_service import response_of
from headwater.gateway.api.workflows.runs.bodies import Message, NewEvent
from headwater.gateway.api.workflows.runs.world import (
    CREATE_EVENT,
    PUBLISH,
    WorldApi,
    dedupe_key,
    event_type_of,
)
from headwater.schemas.failures import (
    DEPLOYMENT_NOT_FOUND,
    IDEMPOTENCY_CONFLICT,
    INSTANCE_EXISTS,
    INSTANCE_TERMINAL,
    INVALID_EVENT_PAYLOAD,
    INVALID_EVENT_TYPE,
    INVALID_INSTANCE_ID,
    INVALID_PARAMS,
    MAILBOX_FULL,
    NO_ACTIVE_DEPLOYMENT,
    WORKFLOW_NOT_FOUND,
)
from headwater.schemas.run_answers import EventCreated, MessagePublished

BASE: Final = "/v1/world"
_ID: Final = "run_01J9ZB4Q3V8D5T2M7K6N1XWYRA"
_CREATION_PROBLEMS: Final = (
    *(INVALID_PARAMS, WORKFLOW_NOT_FOUND, DEPLOYMENT_NOT_FOUND, NO_ACTIVE_DEPLOYMENT),
    *(IDEMPOTENCY_CONFLICT, "store_unavailable"),
)


def world_routes(world: WorldApi) -> list[HTTPRouteHandler]:
    """Return the routes."""
    return [_publish_route(world), _event_route(world)]


def _publish_route(world: WorldApi) -> HTTPRouteHandler:
    @post(
        "/queue/publish",
        audit=PUBLISH,
        body=BodySize.PARAMS,
        operation_id="publishMessage",
        summary="Publish a message",
        description="A queue is a workflow, and a message is a run of it. Messages with the same "
        "`idempotencyKey` are published once; without a key, every request publishes one.",
        **world_spec(MessagePublished, {"messageId": _ID, "deduped": False}, *_CREATION_PROBLEMS),
    )
    async def publish_message(request: AnyRequest, data: JSONBody[Message]) -> Response[bytes]:
        note(request, workflow=data.queue_name, idempotency_key=data.opts.idempotency_key)
        published = await world.publish(data, lambda run_id: note(request, run_id=run_id))
        note(request, deduped=published.deduped, run_id=published.message_id)
        return response_of(published, {})

    return publish_message


def _event_route(world: WorldApi) -> HTTPRouteHandler:
    @post(
        "/events/create",
        audit=CREATE_EVENT,
        body=BodySize.EVENT,
        operation_id="createEvent",
        summary="Create an event of a run",
        description="run_created creates a run, once per `runId`; run_cancelled cancels it; "
        "hook_received sends the payload of a hook to it, as an event of the type that "
        "`correlationId` names. All other events are written by Headwater.",
        **world_spec(
            EventCreated,
            {"runId": _ID, "eventType": "run_created", "deduped": False},
            *_CREATION_PROBLEMS,
            *(INVALID_INSTANCE_ID, INSTANCE_EXISTS, "run_not_found", "ambiguous_run"),
            *(INSTANCE_TERMINAL, INVALID_EVENT_TYPE, INVALID_EVENT_PAYLOAD, MAILBOX_FULL),
        ),
    )
    async def create_event(request: AnyRequest, data: JSONBody[NewEvent]) -> Response[bytes]:
        note(request, run_id=data.run_id)
        kind = event_type_of(data)
        note(request, event_type=kind, idempotency_key=dedupe_key(kind, data.run_id))
        created = await world.create_event(data, kind, lambda run_id: note(request, run_id=run_id))
        note(request, deduped=created.deduped, run_id=created.run_id)
        return response_of(created, {})

    return create_event
