"""Send notifications to endpoints, and disable endpoints that accept none."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headwater.gateway.builtin.endpoint_requests import Attempt, EndpointRequests
from headwater.processors.endpoints import Endpoint, EndpointState
from headwater.processors.input_texts import rfc3339
from headwater.processors.notifications import (
    DATA_BYTES_MAX,
    ENDPOINT_LABEL,
    NOTIFY,
    Notification,
    NotificationType,
    ToEndpoint,
)
from headwater.processors.signatures import SCHEMES, sign
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.projector.store import next_offsets
from headwater.projections.workflows.history import PROJECTION
from headwater.projections.workflows.instances import open_with_labels
from headwater.projections.workflows.queries import TimeRange, Workflows
from headwater.schemas.answers import Instance
from headwater.schemas.endpoints import EndpointStateSet
from headwater.schemas.errors import (
    BrokerUnavailable,
    Disposition,
    HeadwaterError,
    NotYetReadable,
    Overloaded,
    StoreUnavailable,
)
from headwater.schemas.records import OperationAudited
from headwater.schemas.statuses import RunStatus
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.streams.clock import monotonic
from headwater.streams.kafka.endpoint_log import EndpointLog

_LOG: Final = logging.getLogger("headwater.endpoints")

#: Who disables an endpoint that fails, in records and in the audit log.
BY: Final = "headwater"
#: Notifications that may wait for an endpoint: some 100 MB of histories. Its receiver has been
#: unavailable for long, or is too slow.
WAITING_MAX: Final = 10_000
#: The projector usually applies a record within some tens of milliseconds; 6 s in total.
_FIRST_PAUSE_S: Final = 0.05
_POLLS: Final = 8
#: For how long notifications that wait share one answer: however many wait, Postgres gets ten
#: queries a second.
_SHARED_S: Final = 0.1
_SCHEME: Final = SCHEMES["standard-webhooks"]
_SIGNATURE: Final = "webhook-signature"


class Sent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of an attempt, as its step records it.

    Attributes:
        outcome: accepted, failed, skipped (there is nothing to send any more), or stopped (the
            endpoint takes no notifications).
        detail: Why, for people.
        status: Status of the response; None without one.
        response: The beginning of its body.
        ms: How long it took, in milliseconds.
        retry_after_ms: Pause that the receiver asked for; 0 if none.
    """

    outcome: str
    detail: str = ""
    status: int | None = None
    response: str = ""
    ms: int = 0
    retry_after_ms: int = 0


class NotProjected(HeadwaterError):
    """Postgres does not have the end of the instance yet; try again."""

    disposition = Disposition.RETRY
    code = "position_not_reached"


def signed_headers(
    secrets: tuple[str, ...], message_id: str, at_s: int, body: bytes
) -> dict[str, str]:
    """Return the headers of Standard Webhooks, with a signature by every secret."""
    signed = [sign(_SCHEME, body, secret, at_s, message_id) for secret in secrets]
    return {**signed[0], _SIGNATURE: " ".join(headers[_SIGNATURE] for headers in signed)}


class EndpointSender:
    """Sends notifications.

    Args:
        endpoints: The topic of endpoints.
        requests: Posts to endpoints.
        reader: Returns the reader of Postgres.
        audit: Appends an entry to the audit log.
        project: The project, for entries of the audit log.
        clock: Returns Unix milliseconds.
        new_id: Returns a new id.
    """

    def __init__(  # noqa: PLR0913 (its dependencies)
        self,
        *,
        endpoints: EndpointLog,
        requests: EndpointRequests,
        reader: Callable[[], Awaitable[PooledReader]],
        audit: Callable[[OperationAudited], Awaitable[None]],
        project: str,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._endpoints = endpoints
        self._requests = requests
        self._reader = reader
        self._audit = audit
        self._project = project
        self._clock = clock
        self._new_id = new_id
        self._disabling = asyncio.Lock()
        self._applied = _Applied()

    async def attempt(self, params: ToEndpoint, number: int) -> Sent:
        """Make an attempt to send a notification.

        Args:
            params: The notification and its endpoint.
            number: Number of the attempt; the first is 1.

        Raises:
            BrokerUnavailable, StoreUnavailable, NotProjected: Nothing was sent; try again.
        """
        endpoint = (await self._endpoints.catch_up()).by_id.get(params.endpoint)
        if endpoint is None:
            return Sent(outcome="stopped", detail="the endpoint was deleted")
        if not endpoint.is_active and params.notification.type != NotificationType.TEST:
            return Sent(outcome="stopped", detail="the endpoint is disabled")
        more = await self.details(params.notification)
        if more is None:
            return Sent(outcome="skipped", detail="the instance no longer exists")
        attempt = await self._post(endpoint, params.notification, more)
        if attempt.is_accepted:
            return _sent("accepted", attempt)
        await self._disable_if_useless(endpoint, attempt, number)
        return _sent("failed", attempt)

    async def _post(
        self, endpoint: Endpoint, notification: Notification, more: dict[str, Any]
    ) -> Attempt:
        body, now_ms = notification.body(more), self._clock()
        headers = signed_headers(endpoint.secrets(now_ms), notification.id, now_ms // 1_000, body)
        return await self._requests.post(endpoint.id, endpoint.created.url, headers, body)

    async def details(self, notification: Notification) -> dict[str, Any] | None:
        """Return what Postgres adds to the data of a notification; None if it was deleted.

        Params and results of instances are not copied into other histories: a wipe would not find
        them there.

        Raises:
            StoreUnavailable: Postgres does not answer.
            NotProjected: Postgres does not have the record yet.
        """
        if notification.position is None:
            return {}
        reader, data = await self._reader(), notification.data
        await self._applied.wait(reader, *notification.position)
        located = await Workflows(reader).instance(data["workflow"], data["id"])
        return None if located is None else _details(located.instance, data["run"])

    async def _disable_if_useless(self, endpoint: Endpoint, attempt: Attempt, number: int) -> None:
        # Without Kafka or Postgres the attempt counts all the same: it would be made again at once.
        # The next attempt tries to disable the endpoint again.
        with contextlib.suppress(StoreUnavailable, BrokerUnavailable, Overloaded, NotYetReadable):
            if attempt.is_gone:
                await self.disable(endpoint.id, "its receiver answered 410 (gone)")
            elif number > 1 and await self._waiting(endpoint.id) > WAITING_MAX:
                why = f"more than {WAITING_MAX} notifications wait for it"
                await self.disable(endpoint.id, why)

    async def _waiting(self, endpoint_id: str) -> int:
        labels = {ENDPOINT_LABEL: endpoint_id}
        return await open_with_labels(await self._reader(), NOTIFY, labels, WAITING_MAX + 1)

    async def give_up(self, endpoint_id: str, since_ms: int) -> bool:
        """Disable an endpoint that has accepted nothing since a time; return whether it was.

        Raises:
            BrokerUnavailable, StoreUnavailable: Try again.
        """
        endpoint = (await self._endpoints.catch_up()).by_id.get(endpoint_id)
        if endpoint is None or not endpoint.is_active or endpoint.active_since_ms > since_ms:
            return False
        if await self._has_accepted(endpoint_id, since_ms):
            return False
        await self.disable(
            endpoint_id, f"a notification was not accepted, nor any other since {rfc3339(since_ms)}"
        )
        return True

    async def _has_accepted(self, endpoint_id: str, since_ms: int) -> bool:
        accepted = await Workflows(await self._reader()).instances(
            NOTIFY,
            status=RunStatus.COMPLETE,
            labels={ENDPOINT_LABEL: endpoint_id},
            updated=TimeRange(since=datetime.fromtimestamp(since_ms / 1_000, UTC)),
            limit=1,
        )
        return bool(accepted.rows)

    async def disable(self, endpoint_id: str, why: str) -> None:
        """Disable an endpoint if it is active; log it, and record it in the audit log.

        Raises:
            BrokerUnavailable, Overloaded, NotYetReadable: Try again.
        """
        # Several attempts may want it at the same time.
        async with self._disabling:
            endpoint = (await self._endpoints.catch_up()).by_id.get(endpoint_id)
            if endpoint is not None and endpoint.is_active:
                await self._disable(endpoint_id, why)

    async def _disable(self, endpoint_id: str, why: str) -> None:
        now_ms = self._clock()
        entry = OperationAudited(
            id=self._new_id(),
            key_id=BY,
            project_id=self._project,
            action="endpoints.disable",
            resource=f"/v1/endpoints/{endpoint_id}",
            result="success",
            ip="",
            user_agent=BY,
            metadata=msgspec.json.encode({"endpoint": endpoint_id, "why": why}).decode(),
            at_ms=now_ms,
        )
        await self._audit(entry)
        await self._endpoints.write(
            EndpointStateSet(
                id=endpoint_id, state=EndpointState.DISABLED, why=why, by=BY, at_ms=now_ms
            )
        )
        _LOG.warning(
            "the endpoint %s is disabled: %s; `headwater endpoints enable` enables it",
            *(endpoint_id, why),
        )


class _Applied:
    """Up to where Postgres has the histories; all that wait for it share their queries."""

    def __init__(self) -> None:
        self._query: asyncio.Future[dict[int, int]] | None = None
        self._began_s = 0.0

    async def wait(self, reader: PooledReader, partition: int, offset: int) -> None:
        """Wait, for some seconds, until Postgres has a record of the histories.

        Raises:
            StoreUnavailable: Postgres does not answer.
            NotProjected: It does not have it yet.
        """
        pause_s, applied = _FIRST_PAUSE_S, 0
        for _ in range(_POLLS):
            applied = (await self._offsets(reader)).get(partition, 0)
            if applied > offset:
                return
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise NotProjected(
            f"expected Postgres to have {WORKFLOW_HISTORY}/{partition}@{offset}, got that it ends "
            f"before {applied}"
        )

    async def _offsets(self, reader: PooledReader) -> dict[int, int]:
        now_s = monotonic()
        is_old = now_s - self._began_s >= _SHARED_S
        if self._query is None or (self._query.done() and is_old):
            self._query = asyncio.ensure_future(next_offsets(reader, PROJECTION, WORKFLOW_HISTORY))
            # Those that waited for it may have stopped.
            self._query.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._began_s = now_s
        return await asyncio.shield(self._query)


def _sent(outcome: str, attempt: Attempt) -> Sent:
    return Sent(
        outcome=outcome,
        detail=attempt.error,
        status=attempt.status,
        response=attempt.response,
        ms=attempt.ms,
        retry_after_ms=attempt.retry_after_ms,
    )


def _details(instance: Instance, run_number: int) -> dict[str, Any] | None:
    """Return params, labels and output of a run that has ended; None if there is no such run."""
    meta, is_current = instance.meta, instance.meta.run_number == run_number
    # A record of an owner that had lost its partition does not count: the run goes on.
    if meta.run_number < run_number or (is_current and not instance.details.ended):
        return None
    output = instance.details.output if is_current else None
    return {
        "labels": instance.labels,
        "params": _bounded(meta.params),
        "output": _bounded(output),
    }


def _bounded(value: Any) -> Any:  # noqa: ANN401 (JSON)
    """Return a value, or None if it is too large to be sent."""
    return value if len(msgspec.json.encode(value)) <= DATA_BYTES_MAX else None
