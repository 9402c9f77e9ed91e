"""Routes that send commands to workflows, and the route that ticks workers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec
from litestar import Response, post
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.params import JSONBody

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.authentication import scoped_key
from headwater.gateway.api.json_bodies import BodySize
from headwater.gateway.api.openapi import OptionalBody
from headwater.gateway.api.request_scope import AnyConnection, AnyRequest
from headwater.gateway.api.workflows import examples
from headwater.gateway.api.workflows.authorization import Policy, RequestContext
from headwater.gateway.api.workflows.bodies import (
    BranchOutput,
    BulkChange,
    Ending,
    NewEvent,
    NewInstance,
    NewInstances,
    NoFields,
    Restart,
    Retry,
    Tick,
    generic,
)
from headwater.gateway.api.workflows.command_service import BulkService, CommandService, event_of
from headwater.gateway.api.workflows.moves import Moves
from headwater.gateway.api.workflows.openapi import tick_spec, write_spec
from headwater.gateway.api.workflows.parameters import (
    BATCH_PATH,
    BULK_PATH,
    INSTANCES_PATH,
    IdempotencyKey,
    PathName,
    Prefer,
    instance_id_of,
    refuse_derived_id,
)
from headwater.gateway.api.workflows.query_service import response_of
from headwater.gateway.api.workflows.request_guard import RequestGuard
from headwater.gateway.api.workflows.ticks import Ticks
from headwater.processors.runs.lifecycle import MOVE, Action
from headwater.schemas import answers
from headwater.schemas.failures import (
    BRANCH_NOT_FOUND,
    DEPLOYMENT_NOT_FOUND,
    IDEMPOTENCY_CONFLICT,
    INSTANCE_EXISTS,
    INSTANCE_NOT_ERRORED,
    INSTANCE_NOT_FOUND,
    INSTANCE_TERMINAL,
    INVALID_EVENT_PAYLOAD,
    INVALID_EVENT_TYPE,
    INVALID_INSTANCE_ID,
    INVALID_LABELS,
    INVALID_PARAMS,
    MAILBOX_FULL,
    NO_ACTIVE_DEPLOYMENT,
    NOT_A_GRAPH,
    RECORD_TOO_LARGE,
    WORKFLOW_NOT_FOUND,
)

#: Problems of routes that may create instances.
_CREATION_PROBLEMS: Final = (
    *(INVALID_INSTANCE_ID, INVALID_LABELS),
    *(INVALID_PARAMS, WORKFLOW_NOT_FOUND),
)


def creation_routes(
    request_guard: RequestGuard, command_service: CommandService, new_id: Callable[[], str]
) -> list[HTTPRouteHandler]:
    """Return the routes that create instances."""
    return [
        _creation_route(request_guard, command_service, new_id),
        _batch_creation_route(request_guard, command_service),
    ]


def _creation_route(
    request_guard: RequestGuard, command_service: CommandService, new_id: Callable[[], str]
) -> HTTPRouteHandler:
    @post(
        INSTANCES_PATH,
        audit="instances.create",
        audits_attempt=True,
        body=BodySize.PARAMS,
        operation_id="createInstance",
        operation_class=OptionalBody,
        summary="Create an instance",
        description="Of several requests with the same id, exactly one creates the instance. Of "
        "several with the same Idempotency-Key, too, but all of them get the same response. If the "
        "request has no id, the id is derived from the key.",
        **write_spec(
            Policy.CREATE,
            answers.InstanceListed,
            examples.CREATED,
            *_CREATION_PROBLEMS,
            *(INSTANCE_EXISTS, IDEMPOTENCY_CONFLICT),
        ),
    )
    async def create_instance(
        request: AnyRequest,
        workflow: PathName,
        data: JSONBody[NewInstance],
        key: IdempotencyKey = None,
        prefer: Prefer = "",
    ) -> Response[bytes]:
        await _authorize_new(request_guard, request, data.id, data.params)
        refuse_derived_id(data.id, "id")
        own_key = scoped_key(request.scope, key)
        instance_id = data.id or (instance_id_of(own_key) if key else new_id())
        await attempt(request, run_id=instance_id, idempotency_key=key or "")
        return await command_service.create_instance(workflow, instance_id, data, own_key, prefer)

    return create_instance


def _batch_creation_route(
    request_guard: RequestGuard, command_service: CommandService
) -> HTTPRouteHandler:
    @post(
        BATCH_PATH,
        audit="instances.create_many",
        audits_attempt=True,
        body=BodySize.PARAMS_OF_MANY,
        operation_id="createInstances",
        summary="Create up to 100 instances",
        description="Instances that exist are skipped and left out of the response, so a batch may "
        "be sent again. Of several with the same id the first is created. Instances that were "
        "created under the same Idempotency-Key are not left out.",
        **write_spec(
            Policy.CREATE,
            answers.InstancesCreated,
            examples.BATCH,
            *(*_CREATION_PROBLEMS, IDEMPOTENCY_CONFLICT),
        ),
    )
    async def create_instances(
        request: AnyRequest,
        workflow: PathName,
        data: JSONBody[NewInstances],
        key: IdempotencyKey = None,
        prefer: Prefer = "",
    ) -> Response[bytes]:
        note(request, run_ids=[new.id for new in data.instances], idempotency_key=key or "")
        for number, new in enumerate(data.instances):
            refuse_derived_id(new.id, f"instances[{number}].id")
            await _authorize_new(request_guard, request, new.id, new.params)
        own_key = scoped_key(request.scope, key)
        await attempt(request, count=len(data.instances))
        return await command_service.create_instances(workflow, data, own_key, prefer)

    return create_instances


async def _authorize_new(
    request_guard: RequestGuard, request: AnyRequest, instance_id: str | None, params: msgspec.Raw
) -> None:
    if request_guard.has_hook(Policy.CREATE):
        context = request_guard.context_of(request, request.route_handler)
        await _authorize_creation(request_guard, context, instance_id, params)


async def _authorize_creation(
    request_guard: RequestGuard,
    context: RequestContext,
    instance_id: str | None,
    params: msgspec.Raw,
) -> None:
    creation_context = replace(context, policy=Policy.CREATE, instance_id=instance_id)
    await request_guard.authorize(
        creation_context, lambda: {"id": instance_id, "params": generic(params)}
    )


async def _authorize_event(
    request_guard: RequestGuard, context: RequestContext, event: NewEvent
) -> None:
    """Authorize an event, and also the creation that it may cause."""
    await request_guard.authorize(
        context, lambda: {"type": event.type, "payload": generic(event.payload)}
    )
    start = event.start_if_missing
    if start is not None:
        await _authorize_creation(request_guard, context, context.instance_id, start.params)


def lifecycle_route(command_service: CommandService, action: Action) -> HTTPRouteHandler:
    """Return the route of a lifecycle command, such as pause."""
    described = post(
        f"/{action.name}",
        audit=f"instances.{action.name}",
        operation_id=f"{action.name}Instance",
        operation_class=OptionalBody,
        summary=action.summary,
        description=action.effect,
        **write_spec(
            Policy.MANAGE,
            answers.Managed,
            examples.RUN_STARTED if action.begins_run else examples.DONE,
            *(INSTANCE_NOT_FOUND, *action.refusals),
        ),
    )

    async def send_plain(
        workflow: PathName, instance_id: PathName, data: JSONBody[NoFields], prefer: Prefer = ""
    ) -> Response[bytes]:
        return await command_service.control_instance(workflow, instance_id, action.command, prefer)

    async def send_with_reason(
        workflow: PathName, instance_id: PathName, data: JSONBody[Ending], prefer: Prefer = ""
    ) -> Response[bytes]:
        command = action.command_with({"reason": data.reason})
        return await command_service.control_instance(workflow, instance_id, command, prefer)

    async def send_restart(
        request: AnyRequest,
        workflow: PathName,
        instance_id: PathName,
        data: JSONBody[Restart],
        prefer: Prefer = "",
    ) -> Response[bytes]:
        note(request, deployment=data.deployment)
        command = action.command_with({"deployment": data.deployment})
        return await command_service.control_instance(workflow, instance_id, command, prefer)

    async def send_retry(
        request: AnyRequest,
        workflow: PathName,
        instance_id: PathName,
        data: JSONBody[Retry],
        prefer: Prefer = "",
    ) -> Response[bytes]:
        note(request, from_step=data.from_step, deployment=data.deployment)
        arguments = {"fromStep": data.from_step, "deployment": data.deployment}
        command = action.command_with(arguments)
        return await command_service.control_instance(workflow, instance_id, command, prefer)

    match action.arguments:
        case ("reason",):
            return described(send_with_reason)
        case ("deployment",):
            return described(send_restart)
        case ("fromStep", "deployment"):
            return described(send_retry)
        case _:
            return described(send_plain)


def bulk_route(service: BulkService, moves: Moves) -> HTTPRouteHandler:
    """Return the route that changes many instances."""

    @post(
        BULK_PATH,
        audit="instances.change_many",
        audits_attempt=True,
        operation_id="changeInstances",
        summary="Change many instances",
        description="Applies an action to all instances with a status or labels, a page at a time: "
        "repeat the request with the cursor until there is no next page. An instance that refuses "
        "the action does not affect the others. Before a move, the runs of a page are replayed "
        "against the code of the deployment; those that do not fit are not moved.",
        **write_spec(
            Policy.MANAGE,
            answers.BulkPage,
            examples.BULK,
            *("invalid_cursor", "store_unavailable", INVALID_LABELS, WORKFLOW_NOT_FOUND),
            *(DEPLOYMENT_NOT_FOUND, NO_ACTIVE_DEPLOYMENT),
        ),
    )
    async def change_instances(
        request: AnyRequest, workflow: PathName, data: JSONBody[BulkChange], prefer: Prefer = ""
    ) -> Response[bytes]:
        target = None
        if data.action == MOVE.name and data.deployment is not None:
            target = await moves.target(workflow, data.deployment)
        page = await service.page(workflow, data)
        ids = [row.id for row in page.rows]
        note(
            request,
            change=data.action,
            selection={
                "status": data.status,
                "errorName": data.error_name,
                "labels": dict(data.labels),
            },
            run_ids=ids,
            deployment=data.deployment,
            count=len(ids),
            dry_run=data.dry_run,
        )
        move = None
        if target is not None:
            move, _ = await moves.check(request, target, workflow, ids, data.forced())
        if ids and not data.dry_run:
            await attempt(request)
        return await service.change(workflow, data, page, prefer, move)

    return change_instances


def event_route(
    request_guard: RequestGuard, command_service: CommandService, new_id: Callable[[], str]
) -> HTTPRouteHandler:
    """Return the route that sends an event."""

    @post(
        "/events",
        audit="instances.send_event",
        audits_attempt=True,
        body=BodySize.EVENT,
        operation_id="sendEvent",
        summary="Send an event to an instance",
        description="The event is kept until the workflow waits for one of its type. With "
        "`startIfMissing` an instance that does not exist is created with the event in its "
        "mailbox. An event that is sent again with the same Idempotency-Key is received once.",
        **write_spec(
            Policy.SEND_EVENT,
            answers.EventSent,
            examples.EVENT_SENT,
            *(INVALID_EVENT_TYPE, INVALID_EVENT_PAYLOAD, *_CREATION_PROBLEMS),
            *(INSTANCE_NOT_FOUND, INSTANCE_TERMINAL, MAILBOX_FULL, IDEMPOTENCY_CONFLICT),
        ),
    )
    async def send_event(
        request: AnyRequest,
        workflow: PathName,
        instance_id: PathName,
        data: JSONBody[NewEvent],
        key: IdempotencyKey = None,
        prefer: Prefer = "",
    ) -> Response[bytes]:
        note(request, event_type=data.type, idempotency_key=key or "")
        if request_guard.has_hook(Policy.SEND_EVENT) or request_guard.has_hook(Policy.CREATE):
            context = request_guard.context_of(request, request.route_handler)
            await _authorize_event(request_guard, context, data)
        if data.start_if_missing is not None:
            refuse_derived_id(instance_id, "instanceId")
        command = event_of(data, new_id(), scoped_key(request.scope, key))
        await attempt(request)
        return await command_service.send_event(workflow, instance_id, command, prefer)

    return send_event


def branch_output_route(command_service: CommandService) -> HTTPRouteHandler:
    """Return the route that replaces the output of a branch."""

    @post(
        "/branch-output",
        audit="instances.set_branch_output",
        audits_attempt=True,
        body=BodySize.VALUE,
        operation_id="setBranchOutput",
        summary="Set the output of a branch of an errored graph run",
        description="For a run of which outputs could not be merged. A retry merges them again; it "
        "runs no node for that.",
        **write_spec(
            Policy.MANAGE,
            answers.Managed,
            examples.OUTPUT_SET,
            *(INSTANCE_NOT_FOUND, INSTANCE_NOT_ERRORED, NOT_A_GRAPH, BRANCH_NOT_FOUND),
            *(INVALID_PARAMS, RECORD_TOO_LARGE),
        ),
    )
    async def set_branch_output(
        request: AnyRequest,
        workflow: PathName,
        instance_id: PathName,
        data: JSONBody[BranchOutput],
        prefer: Prefer = "",
    ) -> Response[bytes]:
        branch = {"group": data.group, "fork": data.fork, "index": data.branch}
        await attempt(request, branch=branch)
        command = data.command()
        return await command_service.control_instance(workflow, instance_id, command, prefer)

    return set_branch_output


def tick_route(request_guard: RequestGuard, ticks: Ticks) -> HTTPRouteHandler:
    """Return the route that ticks workers."""

    async def enabled(_connection: AnyConnection, _handler: BaseRouteHandler) -> None:
        ticks.require()

    @post(
        "/_runner/tick",
        operation_id="tick",
        operation_class=OptionalBody,
        summary="Make workers execute what is due",
        description="For workers that were started with --tick. Disabled unless HEADWATER_TICK_URL "
        "and HEADWATER_TICK_KEY are set. Concurrent ticks are safe.",
        guards=[enabled, request_guard.guard],
        **tick_spec(answers.Ticked, examples.TICKED, "tick_disabled", "worker_unavailable"),
    )
    async def tick(data: JSONBody[Tick]) -> Response[bytes]:
        return response_of(await ticks.tick(data), {})

    return tick
