"""Messages in queues and events of runs, and their routes under /v1/world."""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import msgspec
from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from headwater.gateway.api.audit import attempt_run, note
from headwater.gateway.api.authentication import scoped_key
from headwater.gateway.api.json_bodies import BodySize, invalid
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.bodies import Body, check_value, read_part, text
from headwater.gateway.api.workflows.command_service import CommandService
from headwater.gateway.api.workflows.openapi import world_spec
from headwater.gateway.api.workflows.parameters import refuse_derived_id
from headwater.gateway.api.workflows.query_service import response_of
from headwater.gateway.api.workflows.request_guard import attempt_change
from headwater.gateway.api.workflows.runs.bodies import (
    EventType,
    HookReceived,
    Message,
    NewEvent,
    NewMessage,
    NewRun,
    PublishOptions,
    RunCancellation,
    RunCreation,
)
from headwater.gateway.api.workflows.runs.queues import Queues
from headwater.gateway.api.workflows.runs.run_service import OnRunId, RunResult, RunService
from headwater.processors.canonical_json import canonical_hash
from headwater.processors.runs.limits import name_problem
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
from headwater.schemas.history import Limits, SendEvent
from headwater.schemas.v1_answers import EventCreated, MessagePublished

B = TypeVar("B", bound=Body)

PUBLISH: Final = "world.queue.publish"
CREATE_EVENT: Final = "world.events.create"
RUN_CREATED: Final = "run_created"
RUN_CANCELLED: Final = "run_cancelled"
HOOK_RECEIVED: Final = "hook_received"
_EVENT_TYPES: Final = (RUN_CREATED, RUN_CANCELLED, HOOK_RECEIVED)
_AT: Final = "data."


def dedupe_key(event_type: str, run_id: str | None) -> str | None:
    """Return the key that deduplicates an event; None if the event is not deduplicated."""
    if event_type != RUN_CREATED or run_id is None:
        return None
    return f"{CREATE_EVENT}:{RUN_CREATED}:{run_id}"


def event_type_of(event: NewEvent) -> str:
    """Return the type of an event, which may be unknown.

    Raises:
        Problem: The event has no type.
    """
    try:
        event_type = msgspec.json.decode(event.data, type=EventType).event_type
    except msgspec.ValidationError as error:
        raise invalid("data.eventType", f"expected {_one_of()}, found none") from error
    if not isinstance(event_type, str):
        found = "none" if event_type is None else f"{event_type!r:.60}"
        raise invalid("data.eventType", f"expected {_one_of()}, found {found}")
    return event_type


class WorldApi:
    """Publishes messages and creates events.

    Raises:
        Problem: Every method raises it when a request is refused.
    """

    def __init__(
        self,
        run_service: RunService,
        command_service: CommandService,
        queues: Queues,
        *,
        limits: Limits,
        new_id: Callable[[], str],
    ) -> None:
        self._run_service = run_service
        self._command_service = command_service
        self._queues = queues
        self._limits = limits
        self._new_id = new_id

    async def publish(self, message: Message, own_key: str, on_run_id: OnRunId) -> MessagePublished:
        """Publish a message, once per key if it has a key.

        Args:
            message: The message.
            own_key: Its key, scoped to its caller by `scoped_key`; "" for none.
            on_run_id: Called with the id and the workflow of the run before its command is sent.
        """
        opts = message.opts or PublishOptions()
        if opts.deployment_id is None:
            await self._run_service.artifact_for(message.queue_name, None)  # One must be active.
        new = NewMessage(
            message=message.message,
            deployment_id=opts.deployment_id,
            delay_seconds=opts.delay_seconds,
            headers=opts.headers,
        )
        return await self._queues.publish(PUBLISH, message.queue_name, new, own_key, on_run_id)

    async def create_event(
        self, event: NewEvent, event_type: str, on_run_id: OnRunId
    ) -> EventCreated:
        """Create an event of a run.

        Args:
            event: The event.
            event_type: Its type, as `event_type_of` returns it.
            on_run_id: Called with the id and the workflow of the run before its command is sent.
        """
        match event_type:
            case "run_created":
                creation = self._parse(RunCreation, event.data)
                return await self._create_by_event(event.run_id, creation, on_run_id)
            case "run_cancelled":
                cancellation = self._parse(RunCancellation, event.data)
                return await self._cancel_run(event.run_id, cancellation, on_run_id)
            case "hook_received":
                hook = self._parse(HookReceived, event.data)
                return await self._send_event(event.run_id, hook, on_run_id)
            case _:
                raise invalid(
                    "data.eventType",
                    f"expected {_one_of()}, found {event_type!r:.60}; all others are written by "
                    "Headwater",
                )

    def _parse(self, kind: type[B], data: msgspec.Raw) -> B:
        return read_part(kind, data, self._limits, _AT)

    async def _create_by_event(
        self, run_id: str | None, event: RunCreation, on_run_id: OnRunId
    ) -> EventCreated:
        new = event.event_data
        if run_id is not None:
            max_length = self._limits.max_instance_id
            problem = name_problem("the id of a run", run_id, max_length, "max_instance_id")
            if problem:
                raise Problem(INVALID_INSTANCE_ID, problem, field="runId")
            refuse_derived_id(run_id, "runId")
            await self._run_service.refuse_taken_id(run_id, new.workflow_name)
        key = dedupe_key(event.event_type, run_id)
        created = await self._create_run(
            key, new, run_id or self._run_service.new_run_id(), on_run_id
        )
        return _event_created(event.event_type, created.run_id, deduped=created.deduped)

    async def _create_run(
        self, key: str | None, new: NewRun, run_id: str, on_run_id: OnRunId
    ) -> RunResult:
        prepare = partial(self._run_service.prepare_creation, new, on_run_id)
        if key is None:
            create = await prepare()
            return await create(run_id)
        # The workflow is half of the identity of a run.
        request_hash = canonical_hash([new.workflow_name])
        return await self._run_service.create_once(CREATE_EVENT, key, request_hash, run_id, prepare)

    async def _cancel_run(
        self, run_id: str | None, event: RunCancellation, on_run_id: OnRunId
    ) -> EventCreated:
        row = await self._run_service.find_run(_require_id(run_id))
        await on_run_id(row.run.run_id, row.run.workflow_name)
        result = await self._run_service.cancel(row, event.event_data.reason)
        return _event_created(event.event_type, row.run.run_id, deduped=result is None)

    async def _send_event(
        self, run_id: str | None, event: HookReceived, on_run_id: OnRunId
    ) -> EventCreated:
        name, payload = event.correlation_id, event.event_data.payload
        problem = name_problem("an event type", name, self._limits.max_event_type, "max_event_type")
        if problem:
            raise Problem(INVALID_EVENT_TYPE, problem, field="data.correlationId")
        check_value("INVALID_EVENT_PAYLOAD", "data.eventData.payload", payload)
        run = (await self._run_service.find_run(_require_id(run_id))).run
        await on_run_id(run.run_id, run.workflow_name)
        command = SendEvent(self._new_id(), name, text(payload))
        await self._command_service.send_command(run.workflow_name, run.run_id, command)
        return _event_created(event.event_type, run.run_id, deduped=False)


def _require_id(run_id: str | None) -> str:
    if run_id is None:
        raise invalid("runId", "expected the id of a run, found null")
    return run_id


def _event_created(event_type: str, run_id: str, *, deduped: bool) -> EventCreated:
    return EventCreated(run_id=run_id, event_type=event_type, deduped=deduped)


def _one_of() -> str:
    return f"one of {', '.join(_EVENT_TYPES)}"


# -- routes

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
        audits_attempt=True,
        body=BodySize.PARAMS,
        operation_id="publishMessage",
        summary="Publish a message",
        description="A rule of the queue decides which workflow the message starts or signals; "
        "without a rule it is the workflow of the same name. Messages with the same "
        "`idempotencyKey` are published once; without a key, every request publishes one.",
        **world_spec(MessagePublished, {"messageId": _ID, "deduped": False}, *_CREATION_PROBLEMS),
    )
    async def publish_message(request: AnyRequest, data: JSONBody[Message]) -> Response[bytes]:
        key = data.opts.idempotency_key if data.opts else None
        note(request, workflow=data.queue_name, idempotency_key=key)
        own_key = scoped_key(request.scope, key or "")
        published = await world.publish(data, own_key, partial(attempt_run, request))
        note(request, deduped=published.deduped, run_id=published.message_id)
        return response_of(published, {})

    return publish_message


def _event_route(world: WorldApi) -> HTTPRouteHandler:
    @post(
        "/events/create",
        audit=CREATE_EVENT,
        audits_attempt=True,
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
        on_run_id = attempt_run if kind == RUN_CREATED else attempt_change
        created = await world.create_event(data, kind, partial(on_run_id, request))
        note(request, deduped=created.deduped, run_id=created.run_id)
        return response_of(created, {})

    return create_event
