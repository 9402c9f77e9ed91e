"""The routes of programs elsewhere whose runs are here, `/v1/world`."""

from typing import Final

from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from headwater.gateway.http.auditing import note
from headwater.gateway.http.limited_bodies import BodySize
from headwater.gateway.http.request_scope import AnyRequest
from headwater.gateway.workflows.openapi import world_spec
from headwater.gateway.workflows.query_service import response_of
from headwater.gateway.workflows.runs.bodies import Message, NewEvent
from headwater.gateway.workflows.runs.world import (
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
_OF_CREATION: Final = (
    *(INVALID_PARAMS, WORKFLOW_NOT_FOUND, DEPLOYMENT_NOT_FOUND, NO_ACTIVE_DEPLOYMENT),
    *(IDEMPOTENCY_CONFLICT, "store_unavailable"),
)


def world_routes(world: WorldApi) -> list[HTTPRouteHandler]:
    """The routes."""
    return [_publishing(world), _events(world)]


def _publishing(world: WorldApi) -> HTTPRouteHandler:
    @post(
        "/queue/publish",
        audit=PUBLISH,
        body=BodySize.PARAMS,
        operation_id="publishMessage",
        summary="Publish a message",
        description="A queue is a workflow, and a message a run of it. What is published under an "
        "`idempotencyKey` is published once; without one, each call publishes.",
        **world_spec(MessagePublished, {"messageId": _ID, "deduped": False}, *_OF_CREATION),
    )
    async def publish_message(request: AnyRequest, data: JSONBody[Message]) -> Response[bytes]:
        note(request, workflow=data.queue_name, idempotency_key=data.opts.idempotency_key)
        published = await world.publish(data, lambda run_id: note(request, run_id=run_id))
        note(request, deduped=published.deduped, run_id=published.message_id)
        return response_of(published, {})

    return publish_message


def _events(world: WorldApi) -> HTTPRouteHandler:
    @post(
        "/events/create",
        audit=CREATE_EVENT,
        body=BodySize.EVENT,
        operation_id="createEvent",
        summary="Tell an event of a run",
        description="run_created creates a run, once for its `runId`; run_cancelled cancels it; "
        "hook_received sends it what its hook has received, as an event of the type that "
        "`correlationId` names. All other events are Headwater's to write.",
        **world_spec(
            EventCreated,
            {"runId": _ID, "eventType": "run_created", "deduped": False},
            *_OF_CREATION,
            *(INVALID_INSTANCE_ID, INSTANCE_EXISTS, "run_not_found", "ambiguous_run"),
            *(INSTANCE_TERMINAL, INVALID_EVENT_TYPE, INVALID_EVENT_PAYLOAD, MAILBOX_FULL),
        ),
    )
    async def create_event(request: AnyRequest, data: JSONBody[NewEvent]) -> Response[bytes]:
        note(request, run_id=data.run_id)
        kind = event_type_of(data)
        note(request, event_type=kind, idempotency_key=dedupe_key(kind, data.run_id))
        taken = await world.take(data, kind, lambda run_id: note(request, run_id=run_id))
        note(request, deduped=taken.deduped, run_id=taken.run_id)
        return response_of(taken, {})

    return create_event
