"""Deliveries of notifications to an endpoint: list them with their attempts, and replay them.

A delivery is an instance of the built-in workflow `headwater-notification`.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from headwater.gateway.api.audit import attempt
from headwater.gateway.api.endpoints import EndpointService, require_scopes
from headwater.gateway.api.operations import Operations
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import moment_of
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.command_outcomes import refusal, send_all
from headwater.gateway.builtin.endpoint_sender import Sent
from headwater.gateway.builtin.instances import RESEND, ResendParams
from headwater.processors.notifications import (
    ENDPOINT_LABEL,
    NOTIFY,
    TYPE_LABEL,
    instance_id,
    message_id,
    of_test,
    sending,
)
from headwater.projections.workflows.queries import RunKey
from headwater.schemas.answers import CurrentStep, Instance, InstanceFound, Step
from headwater.schemas.failures import is_refused
from headwater.schemas.history import Command, RestartRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.workflows.client import Addressed, OutcomeUnknown

#: Runs of a delivery whose attempts are listed: the first, and those of its replays.
_RUNS_MAX: Final = 10
_ENTRIES_MAX: Final = 100
_ATTEMPT: Final = "attempt "


class DeliveryState(StrEnum):
    """State of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELED = "canceled"


#: State of a delivery by the status of its instance; of others, PENDING.
_STATES: Final = {
    RunStatus.COMPLETE: DeliveryState.DELIVERED,
    RunStatus.ERRORED: DeliveryState.FAILED,
    RunStatus.TERMINATED: DeliveryState.CANCELED,
}
#: Status of the instances with a state; those that wait are pending between their attempts.
_STATUSES: Final = {DeliveryState.PENDING: RunStatus.WAITING} | {
    state: status for status, state in _STATES.items()
}


class DeliveryListed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A delivery of a notification to an endpoint: pending, delivered, failed or canceled."""

    id: str
    #: Value of the header webhook-id.
    message_id: str
    type: str
    state: str
    #: Why it failed.
    error: str | None
    created_at: datetime
    updated_at: datetime
    #: When the next attempt begins, if the last one failed.
    next_attempt_at: datetime | None


class AttemptListed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An attempt: accepted, failed, skipped, stopped, or pending."""

    run: int
    number: int
    at: datetime
    outcome: str
    #: Status of the response, if there was one.
    status: int | None = None
    #: Why there was none.
    detail: str = ""
    #: The beginning of the response.
    response: str = ""
    ms: int = 0


class DeliveryShown(DeliveryListed, frozen=True, kw_only=True):
    """A delivery with its attempts, the latest first."""

    attempts: list[AttemptListed]


class DeliveryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries, the newest first."""

    deliveries: list[DeliveryListed]
    cursor: str | None


class DeliveryStarted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A delivery that was started, or started again."""

    id: str
    message_id: str


class ReplaySince(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Which notifications are sent again."""

    since: str
    until: str | None = None
    #: Also those that were delivered.
    delivered: bool = False


class EndpointReplay(msgspec.Struct, frozen=True, kw_only=True):
    """A replay: running, done or failed."""

    id: str
    state: str
    #: Notifications that had not been sent.
    sent: int
    #: Deliveries that were started again.
    restarted: int


class EndpointDeliveries:
    """Lists, tests and replays deliveries to endpoints.

    Args:
        endpoints: The endpoints.
        operations: Sends commands to instances, and reads them.

    Raises:
        Problem: Every method raises it when a request is refused.
        StoreUnavailable: Postgres does not answer.
    """

    def __init__(self, endpoints: EndpointService, operations: Operations) -> None:
        self._endpoints = endpoints
        self._operations = operations

    async def list_deliveries(
        self, endpoint_id: str, *, state: DeliveryState | None, limit: int, cursor: str | None
    ) -> DeliveryPage:
        """Return the deliveries to an endpoint, the newest first."""
        await self._endpoints.find(endpoint_id)
        page = await self._operations.workflows.instances(
            NOTIFY,
            status=None if state is None else _STATUSES[state],
            labels={ENDPOINT_LABEL: endpoint_id},
            limit=limit,
            after=cursor,
        )
        return DeliveryPage(deliveries=[_listed(row) for row in page.rows], cursor=page.cursor)

    async def get_delivery(self, endpoint_id: str, delivery_id: str) -> DeliveryShown:
        """Return a delivery, with the attempts of its latest runs."""
        instance = await self._find(endpoint_id, delivery_id)
        attempts: list[AttemptListed] = []
        latest = instance.meta.run_number
        for number in range(latest, max(-1, latest - _RUNS_MAX), -1):
            run = RunKey(NOTIFY, delivery_id, number)
            page = await self._operations.workflows.steps(run, order="desc", limit=_ENTRIES_MAX)
            attempts += _attempts(page.rows, number)
        meta, error = instance.meta, instance.details.error
        return DeliveryShown(
            id=delivery_id,
            message_id=message_id(delivery_id),
            type=instance.labels.get(TYPE_LABEL, ""),
            state=_STATES.get(instance.details.status, DeliveryState.PENDING),
            error=error.message if error else None,
            created_at=meta.created_at,
            updated_at=meta.updated_at,
            next_attempt_at=_wakes_at(meta.current_step),
            attempts=attempts,
        )

    async def test(self, request: AnyRequest, endpoint_id: str) -> DeliveryStarted:
        """Send a notification of the type `test`, once, also to a disabled endpoint."""
        await self._endpoints.find(endpoint_id)
        operations = self._operations
        notification = of_test(endpoint_id, operations.new_id(), operations.clock())
        delivery_id = instance_id(notification, endpoint_id)
        await attempt(request, endpoint=endpoint_id, run_id=delivery_id)
        await self._send(delivery_id, sending(notification, endpoint_id, ()))
        return DeliveryStarted(id=delivery_id, message_id=notification.id)

    async def replay(
        self, request: AnyRequest, endpoint_id: str, delivery_id: str
    ) -> DeliveryStarted:
        """Start a delivery again, with all of its attempts; the notification has the same id."""
        endpoint = await self._endpoints.find(endpoint_id)
        require_scopes(request, endpoint.created.types)
        await self._find(endpoint_id, delivery_id)
        await attempt(request, endpoint=endpoint_id, run_id=delivery_id)
        await self._send(delivery_id, RestartRun())
        return DeliveryStarted(id=delivery_id, message_id=message_id(delivery_id))

    async def replay_since(
        self, request: AnyRequest, endpoint_id: str, order: ReplaySince
    ) -> EndpointReplay:
        """Send an endpoint what happened within a time, unless it has accepted it."""
        endpoint = await self._endpoints.find(endpoint_id)
        require_scopes(request, endpoint.created.types)
        if not endpoint.is_active:
            raise Problem("endpoint_disabled", "expected an active endpoint; enable it first")
        since, until = moment_of("since", order.since), moment_of("until", order.until)
        now_ms = self._operations.clock()
        params = ResendParams(
            endpoint=endpoint_id,
            since_ms=0 if since is None else int(since.timestamp() * 1_000),
            until_ms=now_ms if until is None else min(now_ms, int(until.timestamp() * 1_000)),
            delivered=order.delivered,
        )
        if params.since_ms >= params.until_ms:
            detail = "since: expected a time before until, and in the past"
            raise Problem("invalid_parameter", detail, field="since")
        await attempt(request, endpoint=endpoint_id)
        replay_id = await self._operations.begin(request, RESEND, params)
        return EndpointReplay(id=replay_id, state="running", sent=0, restarted=0)

    async def get_replay(self, endpoint_id: str, replay_id: str) -> EndpointReplay:
        """Return the state of a replay."""
        operation = await self._operations.find(RESEND, replay_id, ResendParams)
        done = operation.progress
        if operation.params.endpoint != endpoint_id:
            raise Problem("not_found", f"There is no replay {replay_id[:64]} of this endpoint.")
        return EndpointReplay(
            id=replay_id, state=operation.state, sent=done.done, restarted=done.skipped
        )

    async def _find(self, endpoint_id: str, delivery_id: str) -> Instance:
        located = await self._operations.workflows.instance(NOTIFY, delivery_id)
        if located is None or located.instance.labels.get(ENDPOINT_LABEL) != endpoint_id:
            name = f"a delivery to {endpoint_id[:64]!r}"
            raise Problem("not_found", f"expected the id of {name}, found {delivery_id[:100]!r}")
        return located.instance

    async def _send(self, delivery_id: str, command: Command) -> None:
        with suppress(OutcomeUnknown):  # The command is in the log, so a worker will carry it out.
            addressed = Addressed(NOTIFY, delivery_id, command)
            (reply,) = await send_all(self._operations.commands, [addressed])
            if is_refused(reply.code):
                raise refusal(reply)


def _listed(row: InstanceFound) -> DeliveryListed:
    error = row.details.error
    return DeliveryListed(
        id=row.id,
        message_id=message_id(row.id),
        type=row.labels.get(TYPE_LABEL, ""),
        state=_STATES.get(row.details.status, DeliveryState.PENDING),
        error=error.message if error else None,
        created_at=row.created_at,
        updated_at=row.updated_at,
        next_attempt_at=_wakes_at(row.current_step),
    )


def _wakes_at(step: CurrentStep | None) -> datetime | None:
    return None if step is None else step.wake_at


def _attempts(steps: Iterable[Step], run_number: int) -> Iterator[AttemptListed]:
    for step in steps:
        if not step.name.startswith(_ATTEMPT):
            continue
        number = int(step.name.removeprefix(_ATTEMPT))
        sent = msgspec.json.decode(step.result, type=Sent) if step.result else None
        at = step.last_attempt_at or step.created_at
        if sent is None:
            yield AttemptListed(run=run_number, number=number, at=at, outcome="pending")
        else:
            yield AttemptListed(
                run=run_number,
                number=number,
                at=at,
                outcome=sent.outcome,
                status=sent.status,
                detail=sent.detail,
                response=sent.response,
                ms=sent.ms,
            )
