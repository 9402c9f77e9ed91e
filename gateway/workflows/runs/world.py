"""What programs elsewhere ask for whose runs are here: messages in queues, and events of runs."""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from headwater.gateway.http.json_bodies import invalid
from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.bodies import Body, check_value, read_part, text
from headwater.gateway.workflows.command_service import CommandService
from headwater.gateway.workflows.idempotency import refuse_derived_id
from headwater.gateway.workflows.runs.bodies import (
    EventType,
    HookReceived,
    Message,
    NewEvent,
    NewRun,
    RunCancellation,
    RunCreation,
)
from headwater.gateway.workflows.runs.idempotent_requests import RunResult
from headwater.gateway.workflows.runs.run_service import RunService, Touches
from headwater.processors.runs.limits import name_fault
from headwater.schemas.failures import INVALID_EVENT_TYPE, INVALID_INSTANCE_ID
from headwater.schemas.history import Limits, SendEvent
from headwater.schemas.run_answers import EventCreated, MessagePublished

B = TypeVar("B", bound=Body)

PUBLISH: Final = "world.queue.publish"
CREATE_EVENT: Final = "world.events.create"
RUN_CREATED: Final = "run_created"
RUN_CANCELLED: Final = "run_cancelled"
HOOK_RECEIVED: Final = "hook_received"
_TAKEN: Final = (RUN_CREATED, RUN_CANCELLED, HOOK_RECEIVED)
_AT: Final = "data."


def dedupe_key(event_type: str, run_id: str | None) -> str | None:
    """The key under which an event is taken once; None for one that is taken each time."""
    if event_type != RUN_CREATED or run_id is None:
        return None
    return f"{CREATE_EVENT}:{RUN_CREATED}:{run_id}"


def event_type_of(event: NewEvent) -> str:
    """Return the type of an event, whether or not it can be taken.

    Raises:
        Problem: The event has none.
    """
    try:
        kind = msgspec.json.decode(event.data, type=EventType).event_type
    except msgspec.ValidationError as error:
        raise invalid("data.eventType", f"expected {_one_of()}, found none") from error
    if not isinstance(kind, str):
        found = "none" if kind is None else f"{kind!r:.60}"
        raise invalid("data.eventType", f"expected {_one_of()}, found {found}")
    return kind


class WorldApi:
    """Publishes messages, and takes events.

    Errors: Problem from every method.
    """

    def __init__(
        self,
        run_service: RunService,
        command_service: CommandService,
        *,
        limits: Limits,
        new_id: Callable[[], str],
    ) -> None:
        self._run_service = run_service
        self._command_service = command_service
        self._limits = limits
        self._new_id = new_id

    async def publish(self, message: Message, touches: Touches) -> MessagePublished:
        """Put a message into a queue: once under a key, and each time without one."""
        new = NewRun(
            workflow_name=message.queue_name,
            input=message.message,
            deployment_id=message.opts.deployment_id,
        )
        key = message.opts.idempotency_key
        created = await self._created(PUBLISH, key, new, self._run_service.fresh_id(), touches)
        return MessagePublished(message_id=created.run_id, deduped=created.deduped)

    async def _created(
        self, endpoint: str, key: str | None, new: NewRun, run_id: str, touches: Touches
    ) -> RunResult:
        if key is not None:
            return await self._run_service.once(endpoint, key, new, run_id, touches)
        return await (await self._run_service.prepare(new, touches))(run_id)

    async def take(self, event: NewEvent, kind: str, touches: Touches) -> EventCreated:
        """Take an event of a run.

        Args:
            event: The event.
            kind: Its type, as `event_type_of` returns it.
            touches: Called with the id of a run before it is created.
        """
        match kind:
            case "run_created":
                creation = self._read(RunCreation, event.data)
                return await self._create(event.run_id, creation, touches)
            case "run_cancelled":
                return await self._cancel(event.run_id, self._read(RunCancellation, event.data))
            case "hook_received":
                return await self._deliver(event.run_id, self._read(HookReceived, event.data))
            case _:
                raise invalid(
                    "data.eventType",
                    f"expected {_one_of()}, found {kind!r:.60}; others are Headwater's to write",
                )

    def _read(self, kind: type[B], data: msgspec.Raw) -> B:
        return read_part(kind, data, self._limits, _AT)

    async def _create(
        self, run_id: str | None, event: RunCreation, touches: Touches
    ) -> EventCreated:
        new = event.event_data
        if run_id is not None:
            most = self._limits.max_instance_id
            fault = name_fault("the id of a run", run_id, most, "max_instance_id")
            if fault:
                raise Problem(INVALID_INSTANCE_ID, fault, field="runId")
            refuse_derived_id(run_id, "runId")
            await self._run_service.refuse_taken(run_id, new.workflow_name)
        key = dedupe_key(event.event_type, run_id)
        created = await self._created(
            CREATE_EVENT, key, new, run_id or self._run_service.fresh_id(), touches
        )
        return _taken(event.event_type, created.run_id, deduped=created.deduped)

    async def _cancel(self, run_id: str | None, event: RunCancellation) -> EventCreated:
        found = await self._run_service.find(_named(run_id))
        result = await self._run_service.cancel(found, event.event_data.reason)
        return _taken(event.event_type, found.run.run_id, deduped=result is None)

    async def _deliver(self, run_id: str | None, event: HookReceived) -> EventCreated:
        name, payload = event.correlation_id, event.event_data.payload
        fault = name_fault("an event type", name, self._limits.max_event_type, "max_event_type")
        if fault:
            raise Problem(INVALID_EVENT_TYPE, fault, field="data.correlationId")
        check_value("INVALID_EVENT_PAYLOAD", "data.eventData.payload", payload)
        run = (await self._run_service.find(_named(run_id))).run
        command = SendEvent(self._new_id(), name, text(payload))
        await self._command_service.send_command(run.workflow_name, run.run_id, command)
        return _taken(event.event_type, run.run_id, deduped=False)


def _named(run_id: str | None) -> str:
    if run_id is None:
        raise invalid("runId", "expected the id of a run, found null")
    return run_id


def _taken(event_type: str, run_id: str, *, deduped: bool) -> EventCreated:
    return EventCreated(run_id=run_id, event_type=event_type, deduped=deduped)


def _one_of() -> str:
    return f"one of {', '.join(_TAKEN)}"
