"""Operator routes for deliveries: list them, get one with its bytes, and process some again."""

from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from litestar import get, post
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from headwater.gateway.api.audit import attempt
from headwater.gateway.api.json_bodies import check_texts
from headwater.gateway.api.openapi import OptionalBody, problem_responses
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import LIMIT_DEFAULT, Cursor, Limit, moment_of
from headwater.gateway.api.request_scope import AnyRequest
from headwater.processors.api_keys import Scope
from headwater.processors.wipes import digest
from headwater.projections.deliveries.lineage import (
    Deliveries,
    DeliveryFilter,
    DeliveryWhole,
    Journey,
    Refusal,
    deliveries,
    delivery,
    refusal,
)
from headwater.projections.deliveries.queries import Outcome
from headwater.projections.deliveries.users import WaitingDelivery, oldest_waiting, subjects_of
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.errors import PARSE_ERRORS, UndecodableRecord, UnknownSchema
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.pipeline.reprocessing import (
    WEBHOOKS_POSITION,
    DeadLetters,
    DeliveryToReplay,
    known_positions,
)
from headwater.streams.pipeline.webhook_log import Stored, WebhookLog

Moment = Annotated[str | None, QueryParameter(description="RFC 3339.")]


class DeliveriesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a listing of deliveries."""

    source: FromQuery[str | None] = None
    type: FromQuery[str | None] = None
    user_id: FromQuery[str | None] = None
    status: FromQuery[str | None] = None
    reason: FromQuery[str | None] = None
    since: Moment = None
    until: Moment = None


class DeliveryAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery, or a request that was refused.

    `body` is set on request: the signed bytes in base64. It is absent if the log no longer has
    them.
    """

    delivery: DeliveryWhole | None = None
    refusal: Refusal | None = None
    body: str | None = None


def delivery_routes(reader: PooledReader, log: WebhookLog) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/deliveries."""

    @get(
        "/deliveries",
        scope=Scope.DELIVERIES_READ,
        summary="Deliveries with their outcomes, newest first",
        description="Includes requests that were refused, with the status `refused`.",
        dependencies={"filters": Provide(DeliveriesQuery, sync_to_thread=False)},
        responses=problem_responses("invalid_parameter", "invalid_cursor", "store_unavailable"),
    )
    async def listing(
        filters: NamedDependency[DeliveriesQuery],
        limit: Limit = LIMIT_DEFAULT,
        after: Cursor = None,
    ) -> Deliveries:
        times = {name: moment_of(name, getattr(filters, name)) for name in ("since", "until")}
        selected = DeliveryFilter(**{**msgspec.structs.asdict(filters), **times})
        return await deliveries(reader, selected, limit=limit, after=after)

    @get(
        "/deliveries/{named:str}",
        scope=Scope.PERSONAL_DATA_READ,
        audit_read="deliveries.read",
        summary="Get a delivery with its traces, rows and effects",
        description="Accepts an event id, the id of a request that delivered it, or a position in "
        "the topic webhooks such as `3@17`. Returns each trace with its stages, the rows that have "
        "values of the delivery, its effects on workflows, and its dead letters.",
        responses=problem_responses("not_found", "broker_unavailable", "store_unavailable"),
    )
    async def one(
        named: FromPath[str],
        with_body: Annotated[
            bool, QueryParameter(name="body", description="Include the body.")
        ] = False,
    ) -> DeliveryAnswer:
        at = WEBHOOKS_POSITION.fullmatch(named)
        if at is not None:
            received = await log.read(int(at[1]), int(at[2]))
            named = named if received is None else received.delivery.event_id
        details = await delivery(reader, named)
        if details is None:
            refused = await refusal(reader, named)
            if refused is None:
                raise Problem("not_found", f"No delivery {named[:64]} is known (yet).")
            return DeliveryAnswer(refusal=refused)
        body = await _body(log, details) if with_body else None
        return DeliveryAnswer(delivery=details, body=body)

    return [listing, one]


async def _body(log: WebhookLog, details: DeliveryWhole) -> str | None:
    try:
        received = await log.read(details.outcome.partition, details.outcome.offset)
    except (UndecodableRecord, UnknownSchema):
        return None
    return None if received is None else b64encode(received.delivery.body).decode()


# -- raw deliveries

#: Deliveries of one drain. They are read and appended one by one, at some milliseconds a delivery.
DRAIN_MAX: Final = 1_000
_DRAIN_DEFAULT: Final = 100
_USER_CHARS: Final = 512


class RawEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery with its bytes.

    `position` is where it is stored now. `body` is present if the bytes are JSON. If the log no
    longer has the bytes, `gone` states why.
    """

    raw_event_id: str
    source: str
    type: str
    subject: str
    user_id: str | None
    received_at: datetime
    position: str
    headers: tuple[tuple[str, str], ...]
    body_base64: str | None
    body: Any = msgspec.UNSET
    gone: str | None = None
    outcome: Outcome
    journeys: tuple[Journey, ...]


class RawEventReplayed(msgspec.Struct, frozen=True):
    """A delivery that was appended again, with its new position."""

    ok: bool
    raw_event_id: str
    position: str


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parked deliveries to process again: those of a user or all, at most `limit`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=DRAIN_MAX)] = _DRAIN_DEFAULT
    user_id: Annotated[str, msgspec.Meta(min_length=1, max_length=_USER_CHARS)] | None = None


#: The request without a body.
_DRAIN: Final = DrainRequest()


class Drained(msgspec.Struct, frozen=True):
    """Number of deliveries that were enqueued again."""

    ok: bool
    enqueued: int


def raw_event_routes(
    reader: PooledReader, log: WebhookLog, replays: DeadLetters
) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/raw-events, and /admin/drain."""

    @get(
        "/raw-events/{named:str}",
        scope=Scope.PERSONAL_DATA_READ,
        audit_read="deliveries.read",
        summary="Get a delivery with its bytes, headers, outcome and traces",
        description="Accepts an event id (the `raw_event_id` of the gateway's response), the id of "
        "a request that delivered it, or a position in the topic webhooks such as `3@17`. If the "
        "log no longer has its bytes, `gone` states why.",
        responses=problem_responses("not_found", "broker_unavailable", "store_unavailable"),
    )
    async def raw_event(named: FromPath[str]) -> RawEvent:
        details = await _find(reader, log, named)
        async for position, stored in _stored(log, details):
            return _raw_event(details, position, stored)
        return _raw_event(details, None, None)

    @post(
        "/raw-events/{named:str}/replay",
        scope=Scope.DELIVERIES_WRITE,
        audit="raw_events.replay",
        audits_attempt=True,
        status_code=202,
        summary="Process a delivery again",
        description="Rows and outcome converge; replaying it never duplicates anything.",
        responses=problem_responses("not_found", "gone", "broker_unavailable", "store_unavailable"),
    )
    async def replay(request: AnyRequest, named: FromPath[str]) -> RawEventReplayed:
        details = await _find(reader, log, named)
        event_id = details.outcome.event_id
        delivery = DeliveryToReplay(event_id, _positions(details))
        at = f"{details.outcome.partition}@{details.outcome.offset}"
        await attempt(request, positions=[f"{WEBHOOKS}/{at}"])
        appended = await replays.reprocess([delivery])
        if event_id not in appended:
            raise Problem("gone", _GONE.format(details.outcome.partition, details.outcome.offset))
        partition, offset = appended[event_id]
        position = f"{WEBHOOKS}/{partition}@{offset}"
        return RawEventReplayed(ok=True, raw_event_id=event_id, position=position)

    return [raw_event, replay, _drain_route(reader, replays)]


def _drain_route(reader: PooledReader, replays: DeadLetters) -> HTTPRouteHandler:
    @post(
        "/drain",
        scope=Scope.DELIVERIES_WRITE,
        audit="deliveries.drain",
        audits_attempt=True,
        status_code=200,
        operation_class=OptionalBody,
        summary="Process parked deliveries again",
        description="Those that were checked longest ago come first. A delivery whose user is "
        "still unknown stays parked, and its parking time is not extended. What no longer waits is "
        "left alone.",
        responses=problem_responses("broker_unavailable", "store_unavailable"),
    )
    async def drain(request: AnyRequest, data: JSONBody[DrainRequest] = _DRAIN) -> Drained:
        check_texts(_USER_CHARS, user_id=data.user_id)
        subjects = None if data.user_id is None else await subjects_of(reader, data.user_id)
        user = None if data.user_id is None else f"sha256:{digest(data.user_id)}"
        waiting = await oldest_waiting(reader, subjects=subjects, limit=data.limit)
        selection = {"user_id": user, "limit": data.limit}
        await attempt(request, selection=selection, count=len(waiting))
        appended = await replays.reprocess([_last_read(parked) for parked in waiting])
        return Drained(ok=True, enqueued=len(appended))

    return drain


_GONE: Final = (
    "The delivery is neither at webhooks/{}@{} nor where it was replayed to: it was wiped, or "
    "compaction kept another record with the same id."
)


async def _find(reader: PooledReader, log: WebhookLog, named: str) -> DeliveryWhole:
    """Return the details of a delivery by event id, request id or position."""
    event_id = named
    at = WEBHOOKS_POSITION.fullmatch(named)
    if at is not None:
        stored = await log.read(int(at[1]), int(at[2]))
        if stored is None:
            raise Problem(
                "not_found",
                f"There is no delivery at {WEBHOOKS}/{at[1]}@{at[2]}: the offset does not exist "
                "yet, or the delivery was wiped or compacted.",
            )
        event_id = stored.delivery.event_id
    details = await delivery(reader, event_id)
    if details is None:
        raise Problem(
            "not_found",
            f"No delivery {named[:64]} is known: it was never accepted, is not in Postgres yet, or "
            "was wiped.",
        )
    return details


def _positions(details: DeliveryWhole) -> tuple[tuple[int, int], ...]:
    outcome = details.outcome
    later = [journey.position for journey in reversed(details.journeys)]
    return known_positions(outcome.partition, outcome.offset, outcome.position, *later)


def _last_read(parked: WaitingDelivery) -> DeliveryToReplay:
    """Return a parked delivery, first where it was last read."""
    positions = known_positions(parked.partition, parked.offset, parked.position)
    return DeliveryToReplay(parked.event_id, positions[::-1], if_waiting=True)


async def _stored(log: WebhookLog, details: DeliveryWhole) -> AsyncIterator[tuple[str, Stored]]:
    for partition, offset in _positions(details):
        stored = await log.read(partition, offset)
        if stored is not None and stored.delivery.event_id == details.outcome.event_id:
            yield f"{WEBHOOKS}/{partition}@{offset}", stored


def _raw_event(details: DeliveryWhole, position: str | None, stored: Stored | None) -> RawEvent:
    outcome = details.outcome
    body = None if stored is None else stored.delivery.body
    return RawEvent(
        raw_event_id=outcome.event_id,
        source=outcome.source,
        type=outcome.type,
        subject=outcome.subject,
        user_id=outcome.user_id,
        received_at=outcome.received_at,
        position=position or f"{WEBHOOKS}/{outcome.partition}@{outcome.offset}",
        headers=() if stored is None else stored.headers,
        body_base64=None if body is None else b64encode(body).decode(),
        body=_json(body),
        gone=_GONE.format(outcome.partition, outcome.offset) if stored is None else None,
        outcome=outcome,
        journeys=details.journeys,
    )


def _json(body: bytes | None) -> Any:  # noqa: ANN401 (JSON)
    """Return a body as JSON, byte for byte; unset if it is not JSON."""
    if body is None:
        return msgspec.UNSET
    try:
        body.decode()
        # Checks the syntax in linear time, and builds no values.
        msgspec.json.decode(body, type=msgspec.Raw)
    except PARSE_ERRORS:
        return msgspec.UNSET
    return msgspec.Raw(body)
