"""Publish messages to queues, and list the messages that wait."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import JSONBody, PathParameter

from headwater.gateway.api.audit import attempt_run, note
from headwater.gateway.api.authentication import scoped_key
from headwater.gateway.api.json_bodies import BodySize
from headwater.gateway.api.openapi import OptionalBody
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.authorization import Policy
from headwater.gateway.api.workflows.bodies import generic, text
from headwater.gateway.api.workflows.command_outcomes import refusal
from headwater.gateway.api.workflows.command_service import CommandService
from headwater.gateway.api.workflows.openapi import read_spec, write_spec
from headwater.gateway.api.workflows.parameters import IdempotencyKey, Position
from headwater.gateway.api.workflows.query_service import QueryService, response_of
from headwater.gateway.api.workflows.request_guard import RequestGuard
from headwater.gateway.api.workflows.runs.bodies import NewMessage
from headwater.gateway.api.workflows.runs.run_service import (
    CreateRun,
    OnRunId,
    RunResult,
    RunService,
)
from headwater.processors.canonical_json import canonical_hash
from headwater.processors.queue_messages import (
    DELIVERY,
    QUEUE_NAME_MAX,
    QueueMessage,
    delivery_of,
)
from headwater.processors.triggers.queues import route_problem, workflows_of
from headwater.processors.triggers.rules import Rule
from headwater.projections.workflows.runs import Runs
from headwater.schemas.failures import (
    DEPLOYMENT_NOT_FOUND,
    IDEMPOTENCY_CONFLICT,
    INSTANCE_CREATED_BEFORE,
    INVALID_PARAMS,
    NO_ACTIVE_DEPLOYMENT,
    WORKFLOW_NOT_FOUND,
    is_refused,
)
from headwater.schemas.history import Artifact, Once, StartRun
from headwater.schemas.v1_answers import MessagePublished, QueueList
from headwater.streams.workflows.client import Addressed


class Queues:
    """Publishes messages.

    A message with a delay, or for a queue with a rule, becomes an instance of DELIVERY. Any other
    is a run of the workflow with the name of its queue, and starts at once.

    Raises:
        Problem: Every method raises it when a request is refused.
    """

    def __init__(
        self, run_service: RunService, command_service: CommandService, rules: Sequence[Rule]
    ) -> None:
        self._run_service = run_service
        self._command_service = command_service
        self._rules = rules

    def workflows_of(self, queue: str) -> list[str]:
        """Return the workflows that messages of a queue may start or signal."""
        return workflows_of(self._rules, queue)

    async def publish(
        self, endpoint: str, queue: str, message: NewMessage, key: str, on_run_id: OnRunId
    ) -> MessagePublished:
        """Publish a message, once per key if it has a key.

        Only the key and the queue are compared: a repeated message may have another content.

        Args:
            endpoint: Endpoint that the key is scoped to.
            queue: Name of the queue.
            message: The message.
            key: The caller's key; empty for none.
            on_run_id: Called with the id of the message and its workflow before it is sent.
        """
        problem = route_problem(self._rules, queue)
        if problem:
            raise Problem(WORKFLOW_NOT_FOUND, problem)
        prepare = partial(self._prepare, queue, message, on_run_id)
        run_id = self._run_service.new_run_id()
        if key:
            request_hash = canonical_hash([queue])
            result = await self._run_service.create_once(
                endpoint, key, request_hash, run_id, prepare
            )
        else:
            create = await prepare(None)
            result = await create(run_id)
        return MessagePublished(message_id=result.run_id, deduped=result.deduped)

    async def _prepare(
        self, queue: str, message: NewMessage, on_run_id: OnRunId, once: Once | None
    ) -> CreateRun:
        deployment = await self._deployment_of(queue, message.deployment_id)
        if not message.delay_seconds and not any(rule.takes(queue) for rule in self._rules):
            command = StartRun(text(message.message), deployment=deployment, once=once)
            return self._run_service.creation(queue, command, on_run_id)
        queued = QueueMessage(
            queue=queue,
            body=message.message,
            delay_ms=round(message.delay_seconds * 1_000),
            headers=message.headers or {},
            deployment=deployment,
        )
        return partial(self._deliver, delivery_of(queued, once), on_run_id)

    async def _deployment_of(self, queue: str, deployment_id: str | None) -> Artifact | None:
        """Return the deployment that a message names; it must have the workflows of the queue."""
        deployment = None
        for workflow in self.workflows_of(queue) if deployment_id else ():
            deployment = await self._run_service.artifact_for(workflow, deployment_id)
        return deployment

    async def _deliver(self, command: StartRun, on_run_id: OnRunId, message_id: str) -> RunResult:
        await on_run_id(message_id, DELIVERY)
        result = await self._command_service.send_commands(
            [Addressed(DELIVERY, message_id, command)], ""
        )
        (reply,) = result.replies
        if is_refused(reply.code):
            raise refusal(reply)
        deduped = reply.code == INSTANCE_CREATED_BEFORE
        return RunResult(message_id, HTTPStatus.OK, "", deduped, result)


# -- routes

BASE: Final = "/v1/queues"
SEND: Final = "queues.send"
_QueueName = Annotated[
    str,
    PathParameter(
        description="Name of the queue; a slash in it is written as %2F.",
        max_length=QUEUE_NAME_MAX,
        examples=[Example(value="order")],
    ),
]
_PUBLISHED: Final = {"messageId": "run_01J9ZB4Q3V8D5T2M7K6N1XWYRA", "deduped": False}
_LISTED: Final = {"data": [{"name": "order", "waiting": 2}]}


def queue_routes(
    request_guard: RequestGuard, query_service: QueryService, queues: Queues, rows: Runs
) -> list[HTTPRouteHandler]:
    """Return the routes of queues."""
    return [_send_route(request_guard, queues), _list_route(query_service, rows)]


def _send_route(request_guard: RequestGuard, queues: Queues) -> HTTPRouteHandler:
    @post(
        "/{queue:str}/messages",
        audit=SEND,
        audits_attempt=True,
        body=BodySize.PARAMS,
        operation_id="sendMessage",
        operation_class=OptionalBody,
        summary="Publish a message",
        description="A rule of the queue decides which workflow the message starts or signals; "
        "without a rule it is the workflow of the same name. Messages with the same "
        "Idempotency-Key are published once; without a key, every request publishes one.",
        **write_spec(
            Policy.CREATE,
            MessagePublished,
            _PUBLISHED,
            *(INVALID_PARAMS, WORKFLOW_NOT_FOUND, DEPLOYMENT_NOT_FOUND, NO_ACTIVE_DEPLOYMENT),
            *(IDEMPOTENCY_CONFLICT, "store_unavailable"),
        ),
    )
    async def send_message(
        request: AnyRequest,
        queue: _QueueName,
        data: JSONBody[NewMessage],
        key: IdempotencyKey = None,
    ) -> Response[bytes]:
        note(request, workflow=queue, idempotency_key=key or "")
        context = request_guard.context_of(request, request.route_handler)
        for workflow in queues.workflows_of(queue):
            await request_guard.authorize(
                replace(context, workflow_name=workflow),
                lambda: {"id": None, "params": generic(data.message)},
            )
        published = await queues.publish(
            SEND, queue, data, scoped_key(request.scope, key), partial(attempt_run, request)
        )
        note(request, deduped=published.deduped, run_id=published.message_id)
        return response_of(published, {})

    return send_message


def _list_route(query_service: QueryService, rows: Runs) -> HTTPRouteHandler:
    @get(
        "/",
        operation_id="listQueues",
        summary="List queues with messages that wait",
        description="Messages wait for the end of their delay, or for a worker.",
        **read_spec(QueueList, _LISTED),
    )
    async def list_queues(position: Position) -> Response[bytes]:
        applied = await query_service.wait_until_applied(position)
        return response_of(QueueList(data=await rows.queues()), applied)

    return list_queues
